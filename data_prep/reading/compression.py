"""gzip and zstd streams that end where they should, or raise."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from data_prep.errors import DataError

Compression = Literal["gzip", "zstd"]
SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class Decompressed(io.RawIOBase):
    """Reads ``stream`` decompressed; several gzip members or zstd frames follow each other as one text.

    Reading raises DataError where the stream is cut off or damaged.
    """

    def __init__(self, stream: BinaryIO, compression: Compression, shown: str) -> None:
        self._shown = shown
        self._compression = compression
        if compression == "gzip":
            self._source: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        else:
            self._source = cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            data = self._source.read(len(buffer))
        except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
            why = " ".join(str(error).split())[:200]
            raise DataError(
                f"{self._shown}: the {self._compression} stream is cut off or damaged: {why}. Copy the file again."
            ) from error
        buffer[: len(data)] = data
        return len(data)


def decompressed(stream: BinaryIO, compression: Compression | None, shown: str) -> BinaryIO:
    """``stream`` as it is, or decompressed."""
    if compression is None:
        return stream
    return cast(BinaryIO, io.BufferedReader(Decompressed(stream, compression, shown), 1 << 20))
