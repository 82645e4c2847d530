"""What every command has in common: its help, its errors, completion, and how it ends.

`reward`, `data_prep` and `converters`, which do not import each other, have links to this file; `launch` imports
it from `singularity`. Standard library only, Python 3.9 and later: `launch.init` runs on a bare login node.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE
# Names to import of the packages that pyproject.toml always asks for, and of those in each of its extras.
BASE = ("argcomplete", "hydra", "jinja2", "pydantic", "yaml")
EXTRAS = {
    "data": ("numpy", "pyarrow", "tqdm"),
    "reward": (
        "aiohttp", "fastapi", "httptools", "matplotlib", "numpy", "prometheus_client", "requests", "torch",
        "transformers", "urllib3", "uvicorn",
    ),
    "convert": ("isal", "numpy", "tqdm"),
}  # fmt: skip
# Of most commands. What they import fails in an older one, each in its own way.
_PYTHON = (3, 10)
_EMPTY = "it is empty; is a variable of the shell not set?"


class Help(argparse.HelpFormatter):
    """Text is wrapped; lines that are indented (examples, tables) stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line if line.startswith(" ") or not line else textwrap.fill(line, width, break_on_hyphens=False)
            for line in text.splitlines()
        )


class CommandParser(argparse.ArgumentParser):
    """The parser of `python -m MODULE`, with examples and exit codes at the end of its help.

    Args:
        description: one sentence.
        examples: commands that run as they are; a line break is one of the shell's (after a backslash).
        exit_codes: what each one means.
        notes: text before the examples; a line is a paragraph, indented lines stay as they are.
    """

    def __init__(
        self,
        module: str,
        description: str,
        *,
        examples: Sequence[str],
        exit_codes: Mapping[int, str],
        notes: str = "",
    ) -> None:
        self.module, self.notes = module, notes.strip("\n")
        self.examples, self.exit_codes = tuple(examples), dict(exit_codes)
        shown = textwrap.indent("\n".join(examples), "  ")
        codes = "\n".join(
            textwrap.fill(
                text, 78, initial_indent=f"  {code:<4}", subsequent_indent=" " * 6, break_on_hyphens=False
            )
            for code, text in exit_codes.items()
        )
        head = "example" if len(self.examples) == 1 else "examples"
        parts = [self.notes, f"{head}:\n{shown}", f"exit codes:\n{codes}"]
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            epilog="\n\n".join(part for part in parts if part),
            formatter_class=Help,
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As of argparse; under a shell's completion it prints what may come next, and ends the process."""
        if "_ARGCOMPLETE" in os.environ:
            with suppress(ImportError):
                import argcomplete

                argcomplete.autocomplete(self, always_complete_options="long")
        return super().parse_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As of argparse, which passes over a help that cannot be written: that is an error."""
        if file is sys.stdout and file is not None:
            try:
                file.write(message)
            except OSError as error:
                raise OSError(error.errno, error.strerror, "standard output") from error
        else:
            super()._print_message(message, file)


def escaped(text: str, *, lines: bool = True) -> str:
    """`text` without what a terminal might obey; line ends stay, unless it is to be one line (`lines` False)."""
    kept = "\n" if lines else ""
    return "".join(each if each in kept or each.isprintable() else ascii(each)[1:-1] for each in text)


def filled(text: str) -> str:
    """The value of an option as it is.

    Raises:
        ArgumentTypeError: it is empty, as of a variable of the shell that is not set.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(_EMPTY)
    return text


def named(text: str) -> Path:
    """The value of an option as a path.

    Raises:
        ArgumentTypeError: it is empty, which `Path` takes for the folder that the process runs in.
    """
    if not text:
        raise argparse.ArgumentTypeError(f"{_EMPTY} (. is the folder that you are in)")
    return Path(text)


def fail(message: str, *, as_json: bool = False, code: int = 1, **more: object) -> int:
    """Tell an error (VALUE at PLACE: RULE; REMEDY) on standard error; with --json as an object on standard output
    too, which then holds one JSON value whatever happens. Returns `code`."""
    if as_json:
        print(json.dumps({**more, "error": message}))
    with suppress(OSError, ValueError):
        print(f"error: {escaped(message)}", file=sys.stderr, flush=True)
    return code


def told(error: Exception) -> str:
    """The message of an error, one of the system as PLACE: REASON."""
    if isinstance(error, FileNotFoundError) and not error.filename and _is_nowhere():
        return "the folder that this runs in was removed; cd to one that is there"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except OSError:
        return True
    return False


def quiet_imports(extra: str | None = None) -> None:
    """Let Ctrl-C end the process without a traceback while the modules of a command are imported, and let one line
    tell of a package that is missing (of the toolkit's own, or of `extra`, one of pyproject.toml), or of a Python
    that is too old."""
    sys.excepthook = partial(_told_missing, extra)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _told_missing(
    extra: str | None, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What Python calls before it ends with 1."""
    needed = _needed(extra, error, trace)
    if needed is None:
        sys.__excepthook__(kind, error, trace)
        return
    spec = sys.modules["__main__"].__spec__
    fail(f"{spec.name if spec else sys.argv[0]} needs {needed}", as_json="--json" in sys.argv[1:])


def _needed(extra: str | None, error: BaseException, trace: TracebackType | None) -> str | None:
    """What this Python lacks, by an error that nobody looked after; None: it is of another kind."""
    old = sys.version_info < _PYTHON
    if old and not any(frame.f_code is run.__code__ for frame, _ in traceback.walk_tb(trace)):
        wanted, here = (".".join(map(str, version)) for version in (_PYTHON, sys.version_info[:3]))
        return f"Python {wanted} or later, and this is {here}; use a newer one, as of the toolkit's .venv"
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    if error.name in BASE:
        named = "."
    elif extra is not None and error.name in EXTRAS[extra]:
        named = f"'.[{extra}]'"
    else:
        return None
    return f"{error.name}, which is not installed here; pip install {named} in the toolkit's folder"


def run(main: Callable[[], int]) -> int:
    """The exit code of a whole process: that of `main`, 130 after Ctrl-C, 141 where standard output was closed
    early (`| head`), 1 where it or a file that nobody looked after cannot be written or read."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed when the process began: the next file would take its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names that the locale has no characters for
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _ended(main)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:
        code = fail(told(error))
    return _flushed(code)


def _ended(main: Callable[[], int]) -> int:
    try:
        return main()
    except SystemExit as end:  # argparse
        if isinstance(end.code, int) or end.code is None:
            return end.code or 0
        return fail(str(end.code))


def _flushed(code: int) -> int:
    """Write what is left for standard output; Python would try at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code or PIPE_CLOSED
        return fail(f"standard output: {told(error)}")
    return code
