"""What every section of a job has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.config import JsonDict


class Section(BaseModel):
    """A part of the job: unknown fields are refused, values do not change after validation.

    A field that becomes exactly one key of verl's configuration says so by `json_schema_extra=becomes(KEY)`.
    `launch.engines` writes those keys, and a raw override of one is read as the field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def becomes(key: str) -> JsonDict:
    """Mark a field as the value of verl's `key`; null leaves verl's own default."""
    return {"verl": key}


# A line break, NUL or any other control character in a name or path is never meant, and splits #SBATCH lines.
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
