"""`python -m converters.merge`: a checkpoint that verl saved -> a Hugging Face model folder.

    python -m converters.merge --local_dir CKPT --target_dir OUT [--base_model DIR]

Takes the arguments of `python -m verl.model_merger merge` too, with dashes or underscores. Needs no GPU, torch,
Ray, verl or Megatron. Exit codes: 0 OUT is whole, with --verify also equal to the checkpoint; 1 it is not, one
message names file or tensor, and the remedy; 2 usage; 130, 143 stopped, and --resume goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

# numpy starts a thread for each processor, which spins for a tenth of a second; steps have threads of their own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Nothing is there to keep while modules are imported, and no traceback to read.
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))

from converters import arguments, convert
from converters.arguments import Command, Options
from converters.convert import Conversion
from converters.errors import ConvertError
from converters.printing import escaped, put, tell
from converters.writing.earlier_result import MANIFEST


def merge(local_dir: Path, target_dir: Path, **options: Any) -> Conversion:
    """Convert the checkpoint in `local_dir`; `target_dir` appears when all of it is on disk.

    Args:
        options: the other fields of `arguments.Options`.

    Raises:
        ConvertError: with what is wrong and what to do; no target is left.
        OSError: reading or writing failed.
    """
    chosen = Options(local_dir, target_dir, **options)
    conversion = convert.prepare(chosen)
    convert.write(conversion, chosen, shown=False)
    return conversion


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    command = arguments.parse(sys.argv[1:] if argv is None else argv)
    try:
        return _run(command)
    except (ConvertError, OSError) as error:
        _tell("error", str(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(command: Command) -> int:
    begin, options, shown = time.monotonic(), command.options, not command.quiet
    conversion = convert.prepare(options)
    if command.dry_run:
        planned = convert.dry_run(conversion, options)
        put(json.dumps(planned.as_json(), indent=2) if command.json else planned.as_text(), "converters.merge")
        return 0
    for note in (*command.notes, *conversion.notes):
        _tell("note", note)
    # With --verify alone a result that is there is compared, not replaced.
    there = options.verify and not options.force and (options.target_dir / MANIFEST).is_file()
    if there:
        convert.compare(conversion, options.target_dir, options.workers, shown=shown)
    else:
        convert.write(conversion, options, shown=shown)
    seconds = time.monotonic() - begin
    if command.json:
        tell(json.dumps(_report(command, conversion, not there, seconds), indent=2), sys.stdout)
        return 0
    found = conversion.found
    lines = [
        f"{options.target_dir}: {'is there already, only compared: ' if there else ''}{len(conversion.outputs)} "
        f"tensors, {conversion.total_bytes} bytes, {'+'.join(conversion.dtypes)}, {'with' if there else 'from'} "
        f"{found.weights} ({found.backend}, layout {found.layout}, step {found.step}), {seconds:.1f} s"
    ]
    if options.verify:
        lines.append(
            f"verified: all {len(conversion.outputs)} tensors are what the checkpoint holds, byte for byte"
        )
    tell(escaped("\n".join(lines)), sys.stdout)
    return 0


def _tell(kind: str, text: str) -> None:
    """A line to standard error; names and values in it may come out of a checkpoint."""
    tell(escaped(f"converters.merge: {kind}: {text}"), sys.stderr)


def _report(command: Command, conversion: Conversion, written: bool, seconds: float) -> dict[str, object]:
    found = conversion.found
    return {
        "target": str(command.options.target_dir),
        "checkpoint": str(found.weights),
        "step": found.step,
        "role": found.role,
        "backend": found.backend,
        "layout": found.layout,
        "tensors": len(conversion.outputs),
        "bytes": conversion.total_bytes,
        "dtypes": conversion.dtypes,
        "written": written,
        "verified": command.options.verify,
        "seconds": round(seconds, 2),
        "notes": [*command.notes, *conversion.notes],
    }


def _end(signum: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end)  # what is written is kept for --resume on the way out
    raise SystemExit(main())
