"""Blocks to converted blocks, in order, on several processors where that is worth their start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from data_prep.errors import DataError
from data_prep.reading.block import Block
from data_prep.rows import Converted, RowConverter, RowSettings

# Below it a worker's start (half a second of imports) costs more than it brings.
WORTH_WORKERS_BYTES = 24 << 20
# Each needs about 150 MB.
MOST_WORKERS = 2
_AHEAD = 2

_converters: dict[int, RowConverter] = {}
_settings: list[RowSettings] = []


def default_workers(size: int) -> int:
    """Processes for ``size`` bytes of input: 0 converts in this one."""
    if size < WORTH_WORKERS_BYTES:
        return 0
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, MOST_WORKERS) if cpus > 1 else 0


class Workers:
    """Converts blocks of several files; a context manager that ends its processes.

    Args:
        settings: of each file; ``convert`` takes the number of a file in it.
        processes: 0 converts in this process.
    """

    def __init__(self, settings: list[RowSettings], processes: int) -> None:
        self._settings = settings
        self._pool: ProcessPoolExecutor | None = None
        self._ahead = processes * _AHEAD
        if processes:
            # A fork would copy Arrow's threads and their locks.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(processes, context, initializer=_start, initargs=(settings,))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def convert(self, file: int, blocks: Iterable[Block]) -> Iterator[Converted]:
        """The blocks of file number ``file``, converted, in their order; a few are under way at a time.

        Raises:
            DataError: of the reader; or a worker process ended.
        """
        if self._pool is None:
            converter = RowConverter(self._settings[file])
            yield from map(converter.convert, blocks)
            return
        running: deque[Future[Converted]] = deque()
        source = iter(blocks)
        try:
            while True:
                for block in islice(source, self._ahead - len(running)):
                    running.append(_submitted(self._pool, file, block))
                if not running:
                    return
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process ended while it converted rows (killed for memory?): see the system's log, or "
                "give --workers 0 to convert in one process."
            ) from error


def _submitted(pool: ProcessPoolExecutor, file: int, block: Block) -> Future[Converted]:
    # A process that starts here keeps SIGINT blocked: Ctrl-C is for this process, which ends its workers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_convert, file, block)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(settings: list[RowSettings]) -> None:
    _settings[:] = settings
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker waits for blocks for ever, also where the process that would send them was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _convert(file: int, block: Block) -> Converted:
    converter = _converters.get(file)
    if converter is None:
        converter = _converters[file] = RowConverter(_settings[file])
    return converter.convert(block)
