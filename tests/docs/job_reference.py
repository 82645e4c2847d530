"""docs/job.md: every field of a job, from the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from launch.config import Job
from launch.config.base import IN_WORDS, TEXT
from launch.config.templates import TEMPLATES, template_defaults
from launch.config.verl_keys import ALSO_FIELDS, PLANNED, QUANTIZATION, marked_fields
from launch.engines.command import trainer_command
from launch.engines.versions import VERSIONS

_HEAD = """\
# The job

What a job file may hold, and `--set` with it. A value of the template is replaced by one of the site
(`cluster.yaml`), that by one of the job file, and that by `--set`. A field that is not listed is refused. Where a
template has another default, it stands behind the model's own. `null` leaves a value to verl, to Slurm, or to what
the text says. Text may not hold line breaks and other control characters.

The last column names the key of verl's configuration that a field becomes or decides, with the versions of verl
that get it there where not all of {versions} do. A field without a key is the launcher's own.
"""
_KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}


def job_page() -> str:
    """The page, without the line that says what made it."""
    schema = Job.model_json_schema()
    lines = [_HEAD.format(versions=", ".join(sorted(VERSIONS))), "## At the top", ""]
    lines += _table("", Job, schema, schema)
    for place, section in _sections(Job):
        own = schema["$defs"][section.__name__]
        lines += [f"## {place}", "", " ".join(str(own["description"]).split()), ""]
        lines += _table(f"{place}.", section, own, schema)
    return "\n".join(lines).rstrip() + "\n"


def _sections(section: type[BaseModel], place: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield f"{place}{name}", kind
            yield from _sections(kind, f"{place}{name}.")


def _table(place: str, section: type[BaseModel], own: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    rows = []
    for name in section.model_fields:
        field = own["properties"][name]
        if "$ref" in field or "allOf" in field:
            continue
        keys = "<br>".join(f"`{key}`{versions}" for key, versions in _keys(f"{place}{name}"))
        meaning = _cell(str(field["description"]))
        limits = _cell(_limits(field, schema))
        rows.append(f"| `{name}` | {_default(f'{place}{name}', field)} | {limits} | {meaning} | {keys} |")
    return ["| field | default | values | meaning | verl |", "|---|---|---|---|---|", *rows, ""]


def _default(place: str, field: dict[str, Any]) -> str:
    text = _code(field.get("default"))
    for template in TEMPLATES:
        value: Any = template_defaults(template)
        for name in place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None and value != field.get("default"):
            text += f"<br>{template}: {_code(value)}"
    return text


def _code(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{_cell(text)}`"


def _limits(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in field:
        return _limits(schema["$defs"][field["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in field:
        return ", or ".join(_limits(each, schema) for each in field["anyOf"])
    if "const" in field:
        return str(field["const"])
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    kind = field.get("type", "")
    if kind == "array":
        each = _limits(field["items"], schema)
        return f"list: {each}" if each not in _KINDS.values() else f"list of {each}"
    if kind == "object":
        return "NAME: text, ..."
    if field.get("pattern", TEXT) != TEXT:
        return IN_WORDS.get(field["pattern"], "text")
    return kind if kind == "null" else _KINDS[kind] + _range(field)


def _range(field: dict[str, Any]) -> str:
    low, above = field.get("minimum"), field.get("exclusiveMinimum")
    high, below = field.get("maximum"), field.get("exclusiveMaximum")
    parts = [f"from {low}"] if low is not None else [f"above {above}"] if above is not None else []
    parts += [f"to {high}"] if high is not None else [f"below {below}"] if below is not None else []
    return " " + " ".join(parts) if parts else ""


def _keys(place: str) -> list[tuple[str, str]]:
    """(verl's key, the versions that have it in words) of a field, as the commands for each version have them."""
    found = []
    for key in _keys_of_fields()[place]:
        known = [version for version in sorted(VERSIONS) if key in _written(version)]
        if known:
            found.append((key, "" if len(known) == len(VERSIONS) else f" ({', '.join(known)})"))
    return found


@cache
def _keys_of_fields() -> dict[str, list[str]]:
    keys = defaultdict(list)
    for place, key in marked_fields():
        keys[place].append(key)
    for key, place in (*ALSO_FIELDS.items(), *((key, place) for key, (place, _) in QUANTIZATION.items())):
        keys[place].append(key)
    for key, instead in PLANNED.items():
        for place in re.findall(r"[a-z_]+\.[a-z0-9_]+", instead.partition("(")[0].partition(";")[0]):
            keys[place].append(key)
    return keys


@cache
def _written(version: str) -> frozenset[str]:
    """Keys that the command for a version of verl may have."""
    found: set[str] = set()
    for mode, strategy, estimator, more in product(
        ("sync", "one_step_off"), ("megatron", "fsdp2"), ("grpo", "gae"), (False, True)
    ):
        if mode == "one_step_off" and (version == "0.6.1" or estimator == "gae"):
            continue
        job = _job(version, mode, strategy, estimator, more)
        command = trainer_command(job, Path("/"), rehearse=False, sample_data=False)
        found |= {text.partition("=")[0].lstrip("+") for text in command.overrides}
    return frozenset(found)


def _job(version: str, mode: str, strategy: str, estimator: str, more: bool) -> Job:
    """A job with a value for every field that has a key, where `more`."""
    chosen: dict[str, Any] = {
        "engine": {"verl": version, "mode": mode},
        "actor": {"strategy": strategy},
        "algorithm": {"estimator": estimator},
    }
    if more:
        chosen["actor"] |= {"fp8": "blockwise"} if strategy == "megatron" else {}
        chosen["rollout"] = {"fp8": True}
        chosen["algorithm"] |= {"filter_groups": {"enable": True}, "overlong_buffer": {"enable": True}}
        chosen["reward"] = {"kind": "function", "function": "reward.py"}
    job = Job.model_validate(chosen)
    return _filled(job) if more else job


def _filled(job: Job) -> Job:
    """`job` with a value where null would leave verl its own."""
    job = job.model_copy(deep=True)  # all jobs share the sections that are left at their defaults
    for place, _ in marked_fields():
        section, _, name = place.rpartition(".")
        owner: Any = job
        for part in filter(None, section.split(".")):
            owner = getattr(owner, part)
        if getattr(owner, name) is None:
            object.__setattr__(owner, name, 1)
    return job


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
