"""Read a job from a YAML file and from --set key.path=value."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from launch.config.job import Job
from launch.config.templates import Template, template_defaults
from launch.tokens import hide


class JobError(ValueError):
    """The job cannot be read. `problems` holds one line for each mistake: place, value, rule, remedy."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars, and no key twice.

    YAML 1.1 reads 12:00:00 as 43200, 1e-6 as text and `no` as false; a key given twice loses its first value.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)) and key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key!r} is given twice; keep one of them")
            if isinstance(key, (str, int, float, bool)):
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """YAML 1.1 reads 010 as 8."""
        return int(str(node.value), 10)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in {"null", "merge"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# The core schema of YAML 1.2.2, section 10.3.2.
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_decimal)


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    # PyYAML lets the errors of its constructors and its recursion through.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        told = " ".join(str(error).split())[:300]
        raise JobError([f"{where}: not valid YAML: {told}"]) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError([f"--job {path}: cannot be read: {error}"]) from error
    data = _parse_yaml(text, f"--job {path}")
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise JobError([f"--job {path}: a job is a mapping of sections, not a {type(data).__name__}"])
    return data


def _apply(data: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise JobError([f"--set {assignment!r}: write it as --set key.path=value"])
    value = _parse_yaml(text, f"--set {key}")
    *parents, last = key.split(".")
    place = data
    for depth, name in enumerate(parents):
        below = place.setdefault(name, {})
        if below is None:  # a section with nothing in it
            below = place[name] = {}
        if not isinstance(below, dict):
            raise JobError([f"--set {key}: {'.'.join(parents[: depth + 1])} is a value, not a section"])
        place = below
    place[last] = value


def _nearest(section: type[BaseModel], name: str) -> str:
    fields = sorted(section.model_fields)
    match = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
    return f"did you mean {match[0]!r}?" if match else f"known here: {', '.join(fields)}"


def _section_at(path: tuple[int | str, ...]) -> type[BaseModel]:
    section: type[BaseModel] = Job
    for name in path:
        field = section.model_fields.get(str(name))
        if field is None or not isinstance(field.annotation, type):
            break
        if issubclass(field.annotation, BaseModel):
            section = field.annotation
    return section


def _explain(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        place = ".".join(str(part) for part in item["loc"]) or "job"
        if item["type"] == "extra_forbidden":
            name = str(item["loc"][-1])
            lines.append(f"{place}: no such field; {_nearest(_section_at(item['loc'][:-1]), name)}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            shown = repr(item["input"])
            value = f" (got {shown if len(shown) <= 80 else shown[:77] + '...'})"
            lines.append(f"{place}: {message}{'' if item['type'] == 'value_error' else value}")
    return [hide(line) for line in lines]


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, section by section."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        if isinstance(under, dict) and value is None:  # a section with nothing in it
            continue
        merged[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def load_job(template: Template, path: Path | None = None, assignments: Iterable[str] = ()) -> Job:
    """Build the job of `template` from its defaults, a YAML file, and --set assignments, in this order.

    Raises:
        JobError: with one line for every mistake found, not only the first.
    """
    data = _read_file(path) if path is not None else {}
    problems: list[str] = []
    stated = data.setdefault("template", template)
    if stated != template:
        problems.append(f"template: the job file says {stated!r} but --template is {template!r}; make them agree")
        data["template"] = template
    for assignment in assignments:
        try:
            _apply(data, assignment)
        except JobError as error:
            problems += error.problems
    data = {name: {} if value is None else value for name, value in data.items()}
    data = _over(template_defaults(template), data)
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise JobError([*problems, *_explain(error)]) from error
    if problems:
        raise JobError(problems)
    return job
