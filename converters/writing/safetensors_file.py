"""One safetensors file that threads write.

Every position is known from the plan, so each tensor goes straight to its place, and nothing waits in memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from converters.planning import shards
from converters.planning.steps import Output
from converters.storage import checksum
from converters.storage.stored import BLOCK_BYTES, opened, read


class Shard:
    """A file of `outputs`, one after the other. It is open from its first tensor to its last."""

    def __init__(self, path: Path, outputs: Sequence[Output]) -> None:
        self.path, self.outputs = path, tuple(outputs)
        self._lock = Lock()
        self._file: int | None = None
        self._flushed = True
        self._missing = {output.name for output in outputs}
        self._size: dict[str, int] = {}
        self._start: dict[str, int] = {}
        self._header = shards.header(outputs)
        at = len(self._header)
        for output in outputs:
            self._start[output.name], self._size[output.name] = at, output.nbytes
            at += output.nbytes
        self._length = at

    def prepare(self, keep: bool) -> bool:
        """Make the file in full length; with `keep` leave one that is there. Whether it was left."""
        if keep and self.path.is_file() and self.path.stat().st_size == self._length:
            with self.path.open("rb") as file:
                if file.read(len(self._header)) == self._header:
                    return True
        with self.path.open("wb") as file:
            file.write(self._header)
            file.truncate(self._length)
        return False

    def write(self, name: str, begin: int, data: memoryview) -> None:
        """Put bytes at byte `begin` of a tensor."""
        file = self._open()
        at = self._start[name] + begin
        while data:
            done = os.pwrite(file, data, at)
            data, at = data[done:], at + done
        self._flushed = False

    def crc(self, name: str) -> int:
        """CRC-32 of a tensor's bytes as they are in the file."""
        at, left, crc = self._start[name], self._size[name], 0
        block = memoryview(bytearray(min(BLOCK_BYTES, left)))
        with opened(self.path) as file:
            while left:
                part = block[: min(len(block), left)]
                read(file, part, at, self.path)
                crc = checksum.crc32(part, crc)
                at, left = at + len(part), left - len(part)
        return crc

    def complete(self, name: str) -> None:
        """A tensor is written; the last one flushes the file to disk and closes it."""
        with self._lock:
            self._missing.discard(name)
            if self._missing:
                return
        self._open()
        with self._lock:
            if self._file is not None:
                os.fsync(self._file)
                os.close(self._file)
                self._file = None

    def flush(self) -> None:
        """Let what was written so far go to disk."""
        with self._lock:
            file = None if self._file is None or self._flushed else os.dup(self._file)
        if file is not None:
            try:
                self._flushed = True
                os.fdatasync(file)
            finally:
                os.close(file)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> int:
        with self._lock:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            return self._file
