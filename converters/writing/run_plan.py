"""Carry out all steps of a plan, several at a time, until they are done or one of them fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from converters.planning.steps import Step
from converters.storage.row_reader import Reader
from converters.writing import stream
from converters.writing.hf_writer import SafetensorsWriter

# How much may wait in memory to be written to disk, so that the end is not one long wait.
_FLUSH_BYTES = 256 << 20
_PATIENCE_S = 5.0


def default_workers() -> int:
    """Processors that this process may use, at most 4: then memory or disk is busy."""
    return min(4, len(os.sched_getaffinity(0)))


def copy(
    steps: Sequence[Step],
    writer: SafetensorsWriter,
    workers: int = 1,
    progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Write every block of every step; what an earlier run wrote is read again, and kept if it is whole.

    Args:
        workers: steps at a time; each holds one or two blocks.
        progress: called with a number of bytes, from any thread.

    Raises:
        ConvertError, OSError: the first that a step raises; the others are stopped at their next block.
    """
    run = _Run(_in_order(steps, workers), writer, progress)
    run.in_threads(max(1, workers))
    if run.error is not None:
        raise run.error


def _in_order(steps: Sequence[Step], workers: int) -> list[Step]:
    """As they are, but what would keep one thread busy at the end, while the others have nothing to do, first."""
    sizes = [sum(output.nbytes for output in step.outputs) for step in steps]
    large = sum(sizes) / (8 * max(1, workers))
    numbers = sorted(range(len(steps)), key=lambda number: -sizes[number] if sizes[number] > large else 0)
    return [steps[number] for number in numbers] if workers > 1 else list(steps)


class _Run:
    def __init__(self, steps: Sequence[Step], writer: SafetensorsWriter, progress: Callable[[int], None]) -> None:
        self._steps, self._writer, self._progress = iter(steps), writer, progress
        self._reader = Reader()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._unflushed = 0
        self.error: BaseException | None = None

    def in_threads(self, workers: int) -> None:
        """The main thread only waits, so that a signal is told at once."""
        # Daemons: one that a dead file system holds does not hold the process.
        threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(workers)]
        flusher = threading.Thread(target=self._flush, daemon=True)
        try:
            for thread in (*threads, flusher):
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(0.1)
        finally:
            self._stop.set()
            end = monotonic() + _PATIENCE_S
            for thread in (*threads, flusher):
                if thread.ident is not None:
                    thread.join(max(0.0, end - monotonic()))
            # The number of a descriptor that is closed is given to the next file: nobody may still write to it.
            if not any(thread.is_alive() for thread in threads):
                self._writer.close()

    def work(self) -> None:
        """Take steps until there are no more."""
        while not self._stop.is_set():
            with self._lock:
                step = next(self._steps, None)
            if step is None:
                return
            self._carry_out(step)

    def _guarded(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised by copy()
            with self._lock:
                self.error = self.error or error
            self._stop.set()

    def _carry_out(self, step: Step) -> None:
        names = [output.name for output in step.outputs]
        if self._writer.keep(names):
            self._progress(sum(output.nbytes for output in step.outputs))
            return
        for block in stream.blocks(step, self._reader):
            self._writer.write(block.output.name, block.first_row, block.words, block.crc)
            self._unflushed += block.words.nbytes  # threads may lose a count: it only sets the pace
            self._progress(block.words.nbytes)
            if self._stop.is_set():
                return
        for name in names:
            self._writer.complete(name)

    def _flush(self) -> None:
        """Let the disk write while the threads read."""
        while not self._stop.wait(0.05):
            if self._unflushed >= _FLUSH_BYTES:
                self._unflushed = 0
                try:
                    self._writer.flush()
                except OSError as error:
                    with self._lock:
                        self.error = self.error or error
                    self._stop.set()
