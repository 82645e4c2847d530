"""One input file: what kind it is, its rows in blocks, its hash."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from data_prep.digest import file_sha256
from data_prep.errors import DataError
from data_prep.reading.block import Block, Record
from data_prep.reading.compression import MAGIC, SUFFIXES, Compression, decompressed
from data_prep.reading.csv_rows import csv_blocks
from data_prep.reading.json_array import array_blocks
from data_prep.reading.lines import line_blocks
from data_prep.reading.parquet_rows import open_parquet, parquet_blocks

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet"]
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
BLOCK_BYTES = 2 << 20
STDIN = "-"
_PEEK_BYTES = 256 << 10
_PARQUET = b"PAR1"
_KNOWN = "JSONL, JSON, CSV, TSV or parquet, also as .gz or .zst"


class _Counting(io.RawIOBase):
    """Counts what is read of a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        read: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self.count += read
        return read


@dataclass
class InputFile:
    """A file to read.

    Attributes:
        shown: its name in messages.
        path: the regular file that is read; a copy for standard input and for compressed parquet.
        origin: the file that the user named; the copy for standard input.
        size: bytes of ``path``.
        bytes_read: of ``path``, by :meth:`blocks` so far.
    """

    shown: str
    kind: Kind
    path: Path
    origin: Path
    compression: Compression | None
    size: int
    bytes_read: int = 0
    _stat: tuple[int, ...] = field(default=(), repr=False)

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """All rows, about ``block_bytes`` at a time.

        Raises:
            DataError: the file cannot be read to its end, or has no rows.
        """
        self.bytes_read = 0
        if self.kind == "parquet":
            rows = open_parquet(self.path, self.shown).metadata.num_rows
            for block in parquet_blocks(self.path, self.shown, block_bytes):
                self.bytes_read = self.size * (block.first + len(block.batch)) // rows
                yield block
            return
        with self.path.open("rb") as file:
            counting = _Counting(file)
            stream = decompressed(
                cast(BinaryIO, io.BufferedReader(counting, 1 << 20)), self.compression, self.shown
            )
            for found in self._text_blocks(stream, block_bytes):
                self.bytes_read = counting.count
                yield found
            self.bytes_read = self.size

    def _text_blocks(self, stream: BinaryIO, block_bytes: int) -> Iterator[Block]:
        if self.kind == "jsonl":
            return line_blocks(stream, self.shown, block_bytes)
        if self.kind == "json":
            return array_blocks(stream, self.shown, block_bytes)
        return csv_blocks(stream, self.shown, block_bytes, "," if self.kind == "csv" else "\t")

    def peek(self, rows: int = 20) -> list[Record]:
        """The first rows.

        Raises:
            DataError: as :meth:`blocks`.
        """
        blocks = self.blocks(_PEEK_BYTES)
        found = list(islice(chain.from_iterable(block.records() for block in blocks), rows))
        self.bytes_read = 0
        return found

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """The schema of a parquet file."""
        return open_parquet(self.path, self.shown).schema_arrow if self.kind == "parquet" else None

    def sha256(self) -> str:
        """Of the bytes as the user gave them."""
        return file_sha256(self.origin)

    def unchanged(self) -> None:
        """Check that the file is the one that was opened.

        Raises:
            DataError: it was changed since.
        """
        if _stat(self.origin) != self._stat:
            raise DataError(f"{self.shown}: changed while it was read; convert it when nothing writes to it.")


def open_input(path: str, work: Path) -> InputFile:
    """Recognise a file.

    Args:
        path: as the user gave it; ``-`` is standard input.
        work: folder for copies (standard input, compressed parquet).

    Raises:
        DataError: no such file, not a regular one, empty, or of no known kind.
    """
    if path == STDIN:
        shown, origin = "stdin", _copied(sys.stdin.buffer, work, "stdin")
    else:
        shown, origin = path, Path(path)
        if not origin.exists():
            raise DataError(f"{path}: no such file. Give {_KNOWN}, a folder with train.*, or sample:gsm8k.")
        if not origin.is_file():
            raise DataError(f"{path}: not a regular file.")
    if not origin.stat().st_size:
        raise DataError(f"{shown}: no rows: the file is empty.")
    try:
        return _recognised(shown, origin, work)
    except PermissionError as error:
        raise DataError(f"{shown}: {error.strerror}.") from error


def kind_of(name: str) -> Kind | None:
    """By the extensions of a file name: ``a.jsonl.gz`` is JSONL."""
    path = Path(name.lower())
    return KINDS.get(Path(path.stem).suffix if path.suffix in SUFFIXES else path.suffix)


def _recognised(shown: str, origin: Path, work: Path) -> InputFile:
    stat = _stat(origin)
    with origin.open("rb") as file:
        head = file.read(4)
    compression = next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
    named = SUFFIXES.get(Path(shown.lower()).suffix)
    if named is not None and compression != named:
        raise DataError(f"{shown}: not a {named} file, as its name says: it begins with {head!r}.")
    with origin.open("rb") as file:
        inner = decompressed(file, compression, shown)
        start = inner.read(1 << 16)
    if not start:
        raise DataError(f"{shown}: no rows: the file is empty.")
    kind = _kind(shown, start)
    path = origin
    if kind == "parquet" and compression is not None:
        with origin.open("rb") as file:
            path, compression = _copied(decompressed(file, compression, shown), work, Path(shown).name), None
    return InputFile(shown, kind, path, origin, compression, path.stat().st_size, _stat=stat)


def _kind(shown: str, start: bytes) -> Kind:
    """By name and by content, which has the last word between JSON and JSONL."""
    named = kind_of(shown)
    if start.startswith(_PARQUET) or named == "parquet":
        return "parquet"
    if named in ("csv", "tsv"):
        return named
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if named is None and shown == "stdin" and text[:1] not in (b"{", b"["):
        header = text.split(b"\n", 1)[0]
        if b"\t" in header or b"," in header:
            return "tsv" if b"\t" in header else "csv"
    if named is None and text[:1] not in (b"{", b"["):
        raise DataError(f"{shown}: kind not recognised by its name or content. Give {_KNOWN}.")
    if named == "jsonl" or text[:1] != b"[":
        _check_lines(shown, text)
        return "jsonl"
    return "json"


def _check_lines(shown: str, text: bytes) -> None:
    """One JSON object over many lines is no JSONL; what is wanted from it is probably a list inside."""
    if text.split(b"\n", 1)[0].strip() == b"{":
        raise DataError(
            f"{shown}: one JSON object over many lines; expected a JSON array, or an object on each line. "
            "If a list in it holds the rows: jq -c '.NAME[]' FILE > rows.jsonl; else: jq -c . FILE > rows.jsonl"
        )


def _copied(stream: BinaryIO, work: Path, name: str) -> Path:
    target = work / f"copy-{len(list(work.iterdir()))}-{name[-60:]}"
    with target.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return target


def _stat(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
