"""What every section of a job has in common: how values may be written, and what text may hold."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

# A slip of the keyboard must not keep a rule searching for divisors without end.
_SENSELESS = 10**12


class WrittenInt(int):
    """A whole number that knows its text: an account 0042 is not 42."""

    written: str


class WrittenFloat(float):
    """A number that knows its text: CUDA 12.10 is not 12.1."""

    written: str


def written(number: int | float) -> str:
    """A number as its writer wrote it, where that is known."""
    return number.written if isinstance(number, (WrittenInt, WrittenFloat)) else str(number)


def without_null(annotation: Any) -> Any:
    """The type behind `| None` and Annotated."""
    if get_origin(annotation) is Annotated:
        return without_null(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return next((without_null(one) for one in get_args(annotation) if one is not type(None)), annotation)
    return annotation


def _as_meant(annotation: Any, value: Any) -> Any:
    """A value of YAML as the type of its field: a number where text is meant, one thing where a list is meant."""
    wanted = without_null(annotation)
    kind = get_origin(wanted) or wanted
    a_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is str and a_number:
        return written(value)
    if kind in (int, float) and isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number, not true or false")
    if kind is int and isinstance(value, int) and abs(value) >= _SENSELESS:
        raise PydanticCustomError("number_size", "Input should be a number below 10^12")
    if kind is list and (a_number or isinstance(value, str)):
        value = [value]
    if kind is list and isinstance(value, list):
        return [_as_meant(get_args(wanted)[0], one) for one in value]
    if kind is dict and isinstance(value, dict):
        return {name: _as_meant(get_args(wanted)[1], one) for name, one in value.items()}
    return value


class Section(BaseModel):
    """A part of the job: unknown fields are refused, values do not change after validation.

    A number is taken for text and one value for a list of one, as people write YAML; true is not 1.
    A field that becomes exactly one key of verl's configuration says so by `json_schema_extra=becomes(KEY)`.
    `launch.engines` writes those keys, and a raw override of one is read as the field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _written_as_meant(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return _as_meant(cls.model_fields[info.field_name].annotation, value)


def becomes(key: str) -> JsonDict:
    """Mark a field as the value of verl's `key`; null leaves verl's own default."""
    return {"verl": key}


# A line break, NUL or any other control character in a name or path is never meant, and splits #SBATCH lines.
TEXT = r"^[^\x00-\x1f\x7f]+$"
JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
SLURM_WORD = r"^[A-Za-z0-9_.:,+@/-]{1,255}\z"
CUDA_VERSION = r"^[0-9]{1,2}\.[0-9]{1,2}\z"
METRIC = r"^[A-Za-z_][A-Za-z0-9_/.-]*\z"
ON_OUTAGE = r"^(raise|penalty|wait:[1-9][0-9]{0,6}(\.[0-9]{1,3})?)\z"
IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*\z"
# What each pattern allows, for the message of a value that does not match.
IN_WORDS = {
    TEXT: "text without line breaks and other control characters",
    JOB_NAME: "letters, digits, dots, dashes and underscores, at most 63, a letter or digit first",
    SLURM_WORD: "letters, digits and _ . : , + @ / - without spaces or quotes",
    CUDA_VERSION: "two numbers with a dot, as 12.9",
    METRIC: "letters, digits and _ / . -, a letter first",
    ON_OUTAGE: "raise, penalty, or wait:SECONDS (from 1 on)",
    IDENTIFIER: "a Python name: letters, digits and underscores, no digit first",
}

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=TEXT)]
