"""Job fields that become exactly one key of verl's configuration, by the mark that they carry (`becomes`)."""

from collections.abc import Iterator

from pydantic import BaseModel

from launch.config import Job
from launch.engines.hydra_text import Value


def marked_fields(section: type[BaseModel] = Job, place: str = "") -> Iterator[tuple[str, str]]:
    """(place of the field in a job, e.g. "rollout.n"; verl's key) of every marked field."""
    for name, field in section.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "verl" in extra:
            yield f"{place}{name}", str(extra["verl"])
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from marked_fields(field.annotation, f"{place}{name}.")


def marked_values(job: Job) -> dict[str, Value]:
    """verl's key -> value of every marked field of `job` that is not null. Null is verl's own default."""
    values: dict[str, Value] = {}
    for place, key in marked_fields():
        value: object = job
        for name in place.split("."):
            value = getattr(value, name)
        if value is not None:
            assert isinstance(value, (bool, int, float, str, list))
            values[key] = value
    return values
