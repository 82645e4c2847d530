"""What is wrong with a job that does not fit its model, in words: place, value, rule, remedy."""

import difflib
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeGuard, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from launch.config.base import IN_WORDS, without_null, written
from launch.config.job import Job
from launch.config.verl_keys import VERL_SECTIONS, instead_of, marked_fields
from launch.finding import Finding, error
from launch.tokens import hide

Place = Sequence[int | str]
_MOST_KEYS = 20
# By the start of pydantic's type of error.
_RULES = {
    "bool": "must be true or false",
    "dict_type": "must be a section of names with values: {NAME: value}",
    "float": "must be a number",
    "int": "must be a whole number",
    "list_type": "must be a list: [a, b]",
    "number_type": "must be a number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


class JobError(ValueError):
    """The job cannot be read as it is.

    Attributes:
        problems: one for each mistake.
        rest: the job with the defaults of the fields that are wrong, to be looked at with all rules; None where
            there is none.
    """

    def __init__(self, problems: Sequence[Finding], rest: Job | None = None) -> None:
        super().__init__("\n".join(f"{problem.message}; {problem.remedy}" for problem in problems))
        self.problems = list(problems)
        self.rest = rest


class _Short(reprlib.Repr):
    """Values short enough for a line, without what looks like a secret."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(hide(x), level)

    def repr_WrittenInt(self, x: int, level: int) -> str:
        return self.repr_str(written(x), level)[1:-1]

    repr_WrittenFloat = repr_WrittenInt

    def repr_bool(self, x: bool, level: int) -> str:
        return "true" if x else "false"

    def repr_NoneType(self, x: None, level: int) -> str:
        return "null"


_short = _Short()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 2


def shortened(value: object) -> str:
    """A value of a job as a message shows it."""
    return _short.repr(value)


def explain(problem: ValidationError) -> list[Finding]:
    """One finding for each mistake of a validation."""
    findings: list[Finding] = []
    for item in problem.errors(include_url=False):
        if item["type"] == "extra_forbidden":
            findings += _unknown(item["loc"], item["input"])
        else:
            findings.append(wrong(item))
    return findings


def _dotted(place: Place) -> str:
    return ".".join(str(part) for part in place if part != "[key]") or "job"


def _section_at(place: Place) -> type[BaseModel]:
    section: type[BaseModel] = Job
    for name in place:
        field = section.model_fields.get(str(name))
        if field is None or not _is_section(field.annotation):
            break
        section = field.annotation
    return section


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _field_at(place: Place) -> FieldInfo | None:
    """The field that a place is or is below of (an item of a list, a name of a mapping)."""
    section: type[BaseModel] | None = Job
    field = None
    for name in place:
        if section is None or str(name) not in section.model_fields:
            break
        field = section.model_fields[str(name)]
        section = field.annotation if _is_section(field.annotation) else None
    return field


# Names that are not there.


def _unknown(place: Place, value: Any) -> Iterator[Finding]:
    """A field that a section does not have: another name of one, or a key of verl."""
    keys = [*_leaves(_dotted(place), value)]
    if place[0] not in Job.model_fields and place[0] in VERL_SECTIONS:
        for key in keys[:_MOST_KEYS]:
            told = instead_of(key)
            remedy = f"use the field {told}" if told else f"put it into overrides: [{key}=...]"
            yield error("field", f"{key}: no such field; it is a key of verl", remedy)
        if (more := len(keys) - _MOST_KEYS) > 0:
            yield error("field", f"{place[0]}: and {more} more keys of verl", "see those above")
        return
    told = instead_of(keys[0])
    if len(keys) == 1 and told is not None:
        yield error("field", f"{keys[0]}: no such field; it is a key of verl", f"use the field {told}")
        return
    section, parent, name = _section_at(place[:-1]), _dotted(place[:-1]), str(place[-1])
    prefix = "" if len(place) == 1 else f"{parent}."
    near = nearest(section, prefix, name)
    known = f"known here: {', '.join(sorted(section.model_fields))}"
    remedy = f"did you mean {' or '.join(near)}?" if near else known
    yield error("field", f"{shortened(_dotted(place))[1:-1]}: no such field", remedy)


def _leaves(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below)
    else:
        yield key


def nearest(section: type[BaseModel], prefix: str, name: str) -> list[str]:
    """Places of fields that `name`, not a field of the section at `prefix`, may mean.

    Looked for in this order: the same name in verl, a name that starts alike, a misspelt one, the words of a
    description, the same name in another section.
    """
    fields = section.model_fields
    in_verl = [place for place, key in marked_fields() if key.rpartition(".")[2] == name]
    here = [place for place in in_verl if place.startswith(prefix) and "." not in place.removeprefix(prefix)]
    starts = [f"{prefix}{one}" for one in fields if one.startswith(f"{name}_") or name.startswith(f"{one}_")]
    alike = [f"{prefix}{one}" for one in difflib.get_close_matches(name, [*fields], n=1, cutoff=0.6)]
    words = name.replace("_", " ")
    described = [f"{prefix}{one}" for one, field in fields.items() if words in (field.description or "")]
    elsewhere = [place for place in _places(Job, "") if place.rpartition(".")[2] == name]
    found = next((one for one in (here, starts, alike, described, elsewhere, in_verl) if one), [])
    return found[:3]


def _places(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _places(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


# Values that a field does not take.


def wrong(item: ErrorDetails) -> Finding:
    """What is wrong with one value, as pydantic found it."""
    place, value, kind = item["loc"], item["input"], item["type"]
    field = _field_at(place)
    meaning = f"it is: {field.description}" if field is not None and field.description else "see --schema"
    if kind == "value_error":
        rule, semicolon, told = shortened_text(item["msg"].removeprefix("Value error, ")).partition("; ")
        return error("field", f"{_dotted(place)}: {rule}", told if semicolon else meaning)
    rule, remedy = _rule(item, field)
    got = shortened(value)
    if isinstance(value, (dict, list)):
        got = "a section" if isinstance(value, dict) else "a list"
    # Its values may be secrets that look like nothing.
    shown = "" if place[:2] == ("container", "env") else f" (got {got})"
    return error("field", f"{_dotted(place)}: {rule}{shown}", remedy or meaning)


def _rule(item: ErrorDetails, field: FieldInfo | None) -> tuple[str, str]:
    """What a value must be, and a remedy where there is a better one than the meaning of the field."""
    value, kind = item["input"], item["type"]
    if kind in ("model_type", "model_attributes_type"):
        return "this is a section, not a value", _of_the_section(item["loc"], value)
    if kind == "literal_error":
        choices = _choices(field)
        near = difflib.get_close_matches(str(value), choices, n=1)
        return f"must be one of {', '.join(choices)}{_or_null(field)}", f"did you mean {near[0]}?" if near else ""
    if kind == "string_pattern_mismatch":
        return f"must be {IN_WORDS[str(item['ctx']['pattern'])]}", ""
    if kind == "string_type":
        return "must be text", _as_text(value)
    for start, rule in _RULES.items():
        if kind.startswith(start):
            return rule if rule.startswith("must not") else f"{rule}{_or_null(field)}", ""
    return item["msg"].replace("Input should be", "must be"), ""


def shortened_text(text: str, limit: int = 400) -> str:
    """A message that holds a value of any length, without secrets."""
    text = hide(text)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _of_the_section(place: Place, value: Any) -> str:
    section, here = _section_at(place), _dotted(place)
    fields = [name for name, field in section.model_fields.items() if not _is_section(field.annotation)]
    if len(fields) == 1 and isinstance(value, (str, int, float)):
        return f"write {here}.{fields[0]}={shortened_text(str(value), 80)}"
    return f"write its fields: {', '.join(f'{here}.{name}' for name in fields)}"


def _choices(field: FieldInfo | None) -> list[str]:
    wanted = without_null(field.annotation) if field is not None else None
    if get_origin(wanted) is list:
        wanted = get_args(wanted)[0]
    return [str(one) for one in get_args(wanted)] if get_origin(wanted) is Literal else []


def _or_null(field: FieldInfo | None) -> str:
    """What null means for a field, by its description ("null: bf16")."""
    if field is None or type(None) not in get_args(field.annotation):
        return ""
    told = re.search(r"null: ([^;]*)", field.description or "")
    return f", or null for {told[1]}" if told else ", or null"


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "put it in quotes if it is text: 'true'" if value else "put it in quotes if it is text: 'false'"
    return "write '' for an empty value" if value is None else "write one text, in quotes where it is not plain"
