"""Read a job from YAML files, of a site and of the job, and from --set key.path=value."""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launch.config.job import Job
from launch.config.problems import JobError, explain, shortened, shortened_text
from launch.config.templates import TEMPLATES, Template, template_defaults
from launch.config.yaml_text import YamlError, parse_yaml
from launch.finding import Finding, error

_MOST_ROUNDS = 10
_ENV = ("container", "env")
_MOST_BYTES = 1 << 20  # of a file


def _text(path: Path) -> str:
    """The text of a regular file, not of a pipe or a device, which might wait or go on for ever.

    Raises:
        OSError: it cannot be read, or is no such file.
        UnicodeDecodeError: it is no text.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError("it is no regular file")
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(f"it has more than {_MOST_BYTES} bytes; a job has a few thousand")
    return content.decode("utf-8-sig")


def _read_file(path: Path, named: str) -> dict[str, Any]:
    """The mapping in a YAML file; `named` is how the user named it, for a message."""
    try:
        text = _text(path)
    except UnicodeDecodeError as problem:
        line = problem.object[: problem.start].count(b"\n") + 1
        told = f"{named}: cannot be read: line {line} is not UTF-8 text"
        remedy = "save it as UTF-8, or name another file if it is no text"
        raise JobError([error("job-file", told, remedy)]) from problem
    except OSError as problem:
        told = f"{named}: cannot be read: {problem.strerror or problem}"
        raise JobError([error("job-file", told, "correct the path")]) from problem
    try:
        data = parse_yaml(text)
    except YamlError as problem:
        remedy = "correct it, or put the value in quotes"
        raise JobError([error("job-file", f"{named}: not valid YAML: {problem}", remedy)]) from problem
    if data is None:
        return {}
    if not isinstance(data, dict):
        told = f"{named}: a job is a mapping of sections, not a {type(data).__name__}"
        raise JobError([error("job-file", told, "write it as cluster: {nodes: 2}")])
    return data


def _apply(data: dict[str, Any], assignment: str) -> Finding | None:
    """Put one --set into `data`; what is wrong with it."""
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.split(".")):
        return error("set", f"--set {shortened(assignment)}: no assignment", "write it as --set key.path=value")
    try:
        value = parse_yaml(text)
    except YamlError as problem:
        return error("set", f"--set {key}: not valid YAML: {problem}", "correct it, or put the value in quotes")
    *parents, last = key.split(".")
    place = data
    for depth, name in enumerate(parents):
        below = place.setdefault(name, {})
        if below is None:  # a section with nothing in it
            below = place[name] = {}
        if not isinstance(below, dict):
            parent = ".".join(parents[: depth + 1])
            return error("set", f"--set {key}: {parent} is a value, not a section", f"set {parent} itself")
        place = below
    place[last] = value
    return None


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, section by section."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        if isinstance(under, dict) and value is None:  # a section with nothing in it
            continue
        merged[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _without(data: dict[Any, Any], place: tuple[int | str, ...]) -> dict[Any, Any]:
    """`data` without the field at `place`; a list goes as a whole."""
    name, *deeper = place
    found = next((key for key in data if _is_key(key, name)), None)
    kept = {key: value for key, value in data.items() if not _is_key(key, name)}
    if deeper and found in data and isinstance(data[found], dict):
        return {**kept, found: _without(data[found], (*deeper,))}
    return kept


def _is_key(key: Any, name: int | str) -> bool:
    """Whether the place of an error says `name` for `key`: a key that is no text stands there as its text."""
    return bool(key == name or (not isinstance(key, str) and str(key).lower() == str(name).lower()))


def _validated(data: dict[str, Any], defaults: dict[str, Any]) -> tuple[Job | None, list[Finding], dict[str, Any]]:
    """The job of `data` over `defaults`, without the fields that do not validate; what is wrong with those; and
    `data` without them."""
    problems: list[Finding] = []
    for _ in range(_MOST_ROUNDS):
        try:
            return Job.model_validate(_over(defaults, data)), problems, data
        except ValidationError as wrong:
            problems += explain(wrong)
            before = data
            for item in wrong.errors(include_url=False):
                data = _without(data, item["loc"]) if item["loc"] else data
            if data == before:
                break
    return None, problems, data


def _with_sections(data: dict[str, Any]) -> dict[str, Any]:
    """A section with nothing in it is an empty one."""
    return {name: {} if value is None else value for name, value in data.items()}


def _site_values(site: Path) -> tuple[dict[str, Any], list[Finding]]:
    """What a site's file sets, and what is wrong with it, named by the file.

    It is looked at alone, so that each mistake is told where it is.
    """
    data = _with_sections(_read_file(site, f"--site {site}"))
    problems = []
    if "template" in data:
        del data["template"]
        problems.append(error("template", "template is the job's own", "name it in the job file or by --template"))
    _, wrong, kept = _validated(data, {})
    told = [replace(one, message=f"{site}: {one.message}") for one in (*problems, *wrong)]
    return kept, told


@dataclass(frozen=True)
class Otherwise:
    """A field that a site's file sets and a job's file sets to another value, which holds.

    Attributes:
        job, site: the values as a message shows them.
    """

    field: str
    job: str
    site: str

    def __str__(self) -> str:
        return f"{self.field}={self.job} (site: {self.site})"


def otherwise(path: Path, site: Path) -> list[Otherwise]:
    """Where a job's file differs from a site's, in the order of the site's.

    Raises:
        JobError: one of them cannot be read.
    """
    return [*_otherwise(_read_file(site, f"--site {site}"), _read_file(path, f"--job {path}"), ())]


def _otherwise(below: dict[str, Any], above: dict[str, Any], place: tuple[str, ...]) -> Iterator[Otherwise]:
    for name, under in below.items():
        over, here = above.get(name), (*place, str(name))
        if name not in above or here == ("template",) or (over is None and isinstance(under, dict)):
            continue
        if isinstance(under, dict) and isinstance(over, dict):
            yield from _otherwise(under, over, here)
        elif over != under and not (under is None and isinstance(over, dict)):
            # Variables may be secrets of any form.
            values = ("...", "another") if here[:2] == _ENV else (_shown(over), _shown(under))
            yield Otherwise(".".join(here), *values)


def _shown(value: Any) -> str:
    """A value as a job has it, shortened and without secrets."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shortened_text(text, 80)


def load_job(
    template: Template | None,
    path: Path | None = None,
    assignments: Iterable[str] = (),
    site: Path | None = None,
) -> Job:
    """Build a job from the defaults of its template, a site's file, the job's file, and --set assignments, in this
    order: a later one overrides.

    Args:
        template: None: the one that the file or --set names.
        path: the YAML file.
        assignments: KEY.PATH=VALUE.
        site: a file like a job's, with what all jobs of a cluster have in common.

    Raises:
        JobError: with every mistake found, not only the first, and with what is left of the job without them.
    """
    site_data, problems = _site_values(site) if site is not None else ({}, [])
    data = _read_file(path, f"--job {path}") if path is not None else {}
    problems += [problem for text in assignments if (problem := _apply(data, text)) is not None]
    if data.get("template") is None:
        data["template"] = template
    stated = data["template"]
    if template is not None and stated != template:
        told = f"the job says template {shortened(stated)}, --template says {template}"
        problems.append(error("template", told, "make them agree, or leave one out"))
        data["template"] = template
    elif stated is None:
        told = "neither --template nor the job names a template"
        problems.append(error("template", told, f"add --template with one of {', '.join(TEMPLATES)}"))
        del data["template"]
    data = _over(site_data, _with_sections(data))
    named = data.get("template")
    defaults = template_defaults(named) if named in TEMPLATES else {}
    job, wrong, _ = _validated(data, defaults)
    problems += wrong
    if problems or job is None:
        raise JobError(problems, job)
    return job
