"""dataset.json: what the files beside it were made of, and how; the same input gives the same record."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.digest import file_sha256
from data_prep.errors import DataError
from data_prep.options import Options

RECORD_NAME = "dataset.json"
# Readers refuse a record of another number.
RECORD_VERSION = 1
_MOST_BYTES = 64 << 20
# Not what a tokenizer reads, and long to hash.
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_DISTRIBUTION = "verl-slurm-launcher"
# Escaped in the text: what moves a cursor or reorders a line, and what UTF-8 cannot hold (in file names).
_ESCAPED = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class FileRecord:
    """One input file.

    Attributes:
        path: as given; the files of a folder by their path.
        sha256, bytes: of the file as it was.
        split: which split its rows are for; ``train`` where the test rows are taken from it.
        weight: of its source in a blend.
        read: rows in it, which are then bad, too long, or in the rest of the counts (``part``).
    """

    path: str
    sha256: str
    bytes: int
    format: str
    split: str
    weight: str | None = None
    read: int = 0
    bad: int = 0
    too_long: int = 0
    systems_replaced: int = 0


@dataclass
class PartRecord:
    """What became of the usable rows of one SOURCE or test file: ``rows`` is the sum of the others."""

    source: str
    rows: int
    duplicates: int
    leaked: int
    unused: int
    train: int
    test: int


@dataclass
class OutputRecord:
    """One file that was written."""

    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass
class DatasetRecord:
    """All of dataset.json.

    Attributes:
        composition: rows by data_source, ability and split, in order of appearance.
        repeats: what is repeated in the rows that were written: ``exact`` and ``normalized`` (white space and case
            do not count), each with ``train``, ``test`` (rows whose prompt an earlier row of that split has) and
            ``leaked`` (training rows with the prompt of a test row); ``conflicting`` (rows whose prompt has
            another ground truth elsewhere).
        columns: type by path.
    """

    sources: list[FileRecord]
    parts: list[PartRecord]
    outputs: list[OutputRecord]
    composition: list[dict[str, Any]]
    repeats: dict[str, Any]
    columns: dict[str, str]
    options: dict[str, Any]
    versions: dict[str, str]
    record_version: int = RECORD_VERSION
    not_used: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """The text of the file."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"

    def rows(self, split: str) -> int:
        """Rows of a split, 0 where it has no file."""
        return sum(part.train if split == "train" else part.test for part in self.parts)


def versions() -> dict[str, str]:
    """Of what decides the bytes that are written."""
    try:
        toolkit = version(_DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout
        toolkit = "unknown"
    return {"toolkit": toolkit, "python": platform.python_version(), "pyarrow": pa.__version__}


def options_json(options: Options, **others: Any) -> dict[str, Any]:
    """Options as JSON values; ``others`` beside them."""
    return {name: _plain(value) for name, value in {**asdict(options), **others}.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return value


def read_record(path: Path) -> dict[str, Any] | None:
    """The record at ``path`` as JSON; None where there is none that this version wrote."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("record_version") == RECORD_VERSION else None


def why_again(
    record: dict[str, Any] | None,
    sources: list[tuple[str, int, Callable[[], str]]],
    options: dict[str, Any],
    out: Path,
) -> str | None:
    """Why the conversion has to run; None where ``out`` holds just what it would write.

    Args:
        record: :func:`read_record`.
        sources: (path, bytes, function that gives the SHA-256) of each input file.
        options: :func:`options_json`.
    """
    if record is None:
        return "there is no dataset.json of an earlier conversion"
    try:
        before = [(entry["path"], entry["bytes"], entry["sha256"]) for entry in record["sources"]]
        outputs = [(str(entry["file"]), entry["bytes"], entry["sha256"]) for entry in record["outputs"]]
        told = {"options": record["options"], "versions": record["versions"]}
    except (KeyError, TypeError):
        return "dataset.json is not what this version writes"
    for what, now in (("options", options), ("versions", versions())):
        if (name := _first_other(told[what], now)) is not None:
            return f"{name} was another one" if what == "options" else f"the version of {name} was another one"
    if [entry[0] for entry in before] != [path for path, _, _ in sources]:
        return "the source files are others"
    for (path, size, _), (_, bytes_now, _) in zip(before, sources, strict=True):
        if size != bytes_now:
            return f"{path} has changed"
    for (path, _, sha256), (_, _, hashed) in zip(before, sources, strict=True):
        if sha256 != hashed():
            return f"{path} has changed"
    for name, size, sha256 in outputs:
        file = out / Path(name).name
        if not file.is_file() or file.stat().st_size != size or file_sha256(file) != sha256:
            return f"{file} is not what was written"
    return None


def _first_other(before: Any, now: dict[str, Any]) -> str | None:
    """The first name of ``now``, or else of ``before``, whose value is another one."""
    if not isinstance(before, dict):
        return next(iter(now))
    return next((name for name in [*now, *before] if name not in before or before[name] != now.get(name)), None)


def folder_sha256(folder: Path) -> str:
    """Of the names and contents of a model folder's files, the weights left out; of nothing without the folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.is_file() and path.suffix not in _WEIGHTS:
            digest.update(f"{path.name!r} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def write_atomic(path: Path, text: str, scratch: Path) -> None:
    """Put ``text`` at ``path`` in one step, by way of the folder ``scratch`` on the same file system.

    Raises:
        DataError: it cannot be written.
    """
    part = scratch / f"{path.name}.part"
    try:
        with part.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
