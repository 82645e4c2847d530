# PYTHON_ARGCOMPLETE_OK
"""`python -m converters.merge`: a checkpoint that verl saved -> a Hugging Face model folder.

    python -m converters.merge --local_dir CKPT --target_dir OUT [--base_model DIR]

Takes the arguments of `python -m verl.model_merger merge` too, with dashes or underscores. Needs no GPU, torch,
Ray, verl or Megatron.
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

from converters.command_line import fail, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports(extra="convert")  # nothing is there to keep yet

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
        return fail(told(error), as_json=command.json)


def _run(command: Command) -> int:
    begin, options, shown = time.monotonic(), command.options, not command.quiet
    conversion = convert.prepare(options)
    if command.dry_run:
        planned = convert.dry_run(conversion, options)
        put(json.dumps(planned.as_json(), indent=2) if command.json else planned.as_text())
        return 0
    for note in (*command.notes, *conversion.notes):
        tell(escaped(f"note: {note}"), sys.stderr)
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
    signal.signal(signal.SIGTERM, _end)  # what is written is kept for --resume on the way out
    sys.exit(run(main))
