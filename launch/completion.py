"""What a shell offers after `--set`: fields of the job, then the values of those that have few."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from launch.config import Job


def complete_set(prefix: str, **_: Any) -> list[str]:
    """`clu` -> `cluster.nodes=`, ...; `engine.mode=` -> `engine.mode=sync`, ... (a completer of argcomplete)."""
    key, equals, begun = prefix.partition("=")
    if not equals:
        return [f"{name}=" for name, _ in fields(Job) if name.startswith(key)]
    found = [value for name, kind in fields(Job) if name == key for value in values(kind)]
    # null alone would be typed for the user.
    return [f"{key}={value}" for value in found if value.startswith(begun) and found != ["null"]]


def fields(section: type[BaseModel], place: str = "") -> Iterator[tuple[str, Any]]:
    """(place in a job, annotation) of every field, in the order of the model."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{place}{name}.")
        else:
            yield f"{place}{name}", kind


def values(kind: Any) -> list[str]:
    """Everything that a field of this annotation can be, as YAML; nothing where that has no end."""
    if kind is bool:
        return ["true", "false"]
    if kind is type(None):
        return ["null"]
    origin = get_origin(kind)
    if origin is Literal:
        return [str(each) for each in get_args(kind)]
    if origin is Annotated:
        return values(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return [value for each in get_args(kind) for value in values(each)]
    return []
