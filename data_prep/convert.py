# PYTHON_ARGCOMPLETE_OK
"""Raw data to the parquet files that verl reads: ``python -m data_prep.convert SOURCE... --out DIR``.

    python -m data_prep.convert sample:gsm8k --out data

writes data/train.parquet, data/test.parquet and data/dataset.json, which records what they were made of.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from data_prep.command_line import INTERRUPTED, fail, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports(extra="data")

from data_prep.arguments import options_of, parser
from data_prep.errors import DataError
from data_prep.pipeline import Outcome, convert
from data_prep.printing import shortened
from data_prep.record import RECORD_NAME
from data_prep.report import report_lines

WRITTEN, UNUSABLE, SET_ASIDE = 0, 1, 3
_BY_SIGNAL = 128
_MOST_CHARS = 4000


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 written or nothing to do, 1 the data cannot be used, 3 written and rows were set
    aside, 130 Ctrl-C, 143 SIGTERM; usage errors exit with 2."""
    command = parser()
    args = command.parse_args(argv)
    sources, options = options_of(command, args)
    begun = time.monotonic()
    try:
        with _stopped_by_sigterm():
            outcome = convert(
                sources,
                options,
                args.out,
                force=args.force,
                workers=args.workers,
                show_progress=not args.quiet,
            )
    except (DataError, OSError) as error:
        return fail(_safe(told(error)), as_json=args.json, code=UNUSABLE)
    except _Stopped as stop:
        print(f"stopped by {stop.signal.name}: run it again", file=sys.stderr)
        return _BY_SIGNAL + stop.signal
    except KeyboardInterrupt:
        print("stopped by Ctrl-C: run it again", file=sys.stderr)
        return INTERRUPTED
    _tell(outcome, args, time.monotonic() - begun)
    return SET_ASIDE if outcome.set_aside else WRITTEN


class _Stopped(BaseException):
    """As KeyboardInterrupt is: nobody on the way takes it for an error of the data."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """What is on disk for a while goes when a scheduler ends the conversion, too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _safe(text: str) -> str:
    """Paths and values may hold what moves a terminal's cursor."""
    return "\n".join(shortened(line, _MOST_CHARS) for line in text.split("\n"))


def _tell(outcome: Outcome, args: argparse.Namespace, seconds: float) -> None:
    record = outcome.record
    if record is None:
        if args.json:
            print((args.out / RECORD_NAME).read_text(encoding="utf-8"), end="")
        if not args.quiet:
            print(
                f"{_safe(str(args.out))}: made of the same files with the same options, nothing to do (--force)",
                file=sys.stderr,
            )
        return
    if args.json:
        print(record.to_json(), end="")
    elif not args.quiet:
        print(*report_lines(record, outcome.bad, str(args.skip_bad)), sep="\n")
        for file in record.outputs:
            print(f"{_safe(str(args.out / file.file))}: {file.rows:,} rows")
        rows = sum(entry.read for entry in record.sources)
        print(f"{rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s")
    if not any(file.file == "test.parquet" for file in record.outputs):
        print(
            "no test split: verl needs one as data.val_files; give --test-size or --test-file",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(run(main))
