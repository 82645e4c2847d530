"""Values of the job fields that become exactly one key of verl's configuration."""

from launch.config import Job
from launch.config.verl_keys import marked_fields
from launch.engines.hydra_text import Value


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
