"""SHA-256 of the input files, computed in a thread beside the conversion."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from data_prep.reading.files import InputFile


class Hashes:
    """A context manager that ends the thread.

    Attributes:
        sources: (path as given, bytes, function that waits for the hash) of each file.
    """

    def __init__(self, files: list[InputFile]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._files = files
        self._found: dict[int, Future[str]] = {}
        self.sources: list[tuple[str, int, Callable[[], str]]] = [
            (file.shown, file.origin.stat().st_size, partial(self._hash, number))
            for number, file in enumerate(files)
        ]

    def __enter__(self) -> Hashes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def start(self) -> None:
        """Begin with all files."""
        for number in range(len(self._files)):
            self._submit(number)

    def _submit(self, number: int) -> Future[str]:
        if number not in self._found:
            self._found[number] = self._pool.submit(self._files[number].sha256)
        return self._found[number]

    def _hash(self, number: int) -> str:
        return self._submit(number).result()
