"""Read JSON files of a model folder, bounded, with errors that name the file and the key."""

import json
from pathlib import Path
from typing import Any

_LIMIT = 64 * 1024 * 1024


class ShapeError(ValueError):
    """A model folder cannot be understood; the message names the file, the key and the value."""


class UnknownModelError(ShapeError):
    """The architecture is not one whose parameters are counted here; a number would be a guess."""


def read_json(path: Path, limit: int = _LIMIT) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        ShapeError: it cannot be read, is larger than `limit` bytes, or holds no JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ShapeError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise ShapeError(f"{path}: larger than {limit} bytes; that is no such file")
    if data.startswith(LFS_MAGIC):
        raise ShapeError(f"{path}: a Git LFS pointer, not the file: run `git lfs pull`")
    try:
        value = json.loads(data)
    # A deeply nested text makes the parser recurse until Python stops it.
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"{path}: not JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(value, dict):
        raise ShapeError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


class Keys:
    """One mapping of config.json, read key by key with the type that is expected."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path = path
        self.data = data

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; null counts as absent.

        Raises:
            ShapeError: absent without a default, of another type, or too small.
        """
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise ShapeError(f"{self.path}: no {key!r}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ShapeError(f"{self.path}: {key} is {value!r}; expected a whole number >= {least}")
        return value

    def optional(self, key: str) -> int | None:
        """A whole number >= 1, or None where it is absent, null or 0."""
        return self.integer(key, 0, least=0) or None

    def flag(self, key: str, default: bool) -> bool:
        """true or false.

        Raises:
            ShapeError: something else.
        """
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ShapeError(f"{self.path}: {key} is {value!r}; expected true or false")
        return value

    def text(self, key: str) -> str:
        """A string, or "" where it is absent or something else."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""

    def section(self, key: str) -> "Keys | None":
        """A mapping inside this one, or None where there is none."""
        value = self.data.get(key)
        return Keys(self.path, value) if isinstance(value, dict) else None

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers; absent or null: empty.

        Raises:
            ShapeError: something else.
        """
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(
            isinstance(item, bool) or not isinstance(item, int) for item in value
        ):
            raise ShapeError(f"{self.path}: {key} is {value!r}; expected a list of whole numbers")
        return value
