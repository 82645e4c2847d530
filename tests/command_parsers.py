"""Every command of the toolkit, found by itself, and its parser."""

from __future__ import annotations

import argparse
import ast
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("launch", "singularity", "reward", "data_prep", "converters")
# Processes of a job, of an image's build and of prepare, which nobody calls by hand.
INTERNAL = {
    "launch.node",
    "launch.rehearsal.mcore_weights",
    "singularity.base_packages",
    "singularity.inside",
    "singularity.probe",
}


class _FoundError(BaseException):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def commands() -> list[str]:
    """Names of the modules that can be run, those of a job's own processes left out."""
    return [name for folder in FOLDERS for name in _below(ROOT / folder)]


def _below(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name in INTERNAL or name.startswith("launch.supervisor."):
            continue
        if any(_is_main(node) for node in ast.parse(path.read_text(encoding="utf-8")).body):
            yield name


def _is_main(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":` that ends the process."""
    if not isinstance(node, ast.If) or not ast.unparse(node.test).startswith("__name__ == "):
        return False
    return any(name in ast.unparse(node) for name in ("sys.exit(", "os._exit(", "raise SystemExit(", "main()"))


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that `python -m COMMAND` builds, from the first call of parse_args."""

    def found(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _FoundError(parser)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    environment, argv, parse = dict(os.environ), sys.argv, argparse.ArgumentParser.parse_args
    hook = sys.excepthook
    argparse.ArgumentParser.parse_args = found  # type: ignore[assignment, method-assign]
    sys.argv = [command]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the module may be imported already
            runpy.run_module(command, run_name="__main__")
    except _FoundError as one:
        return one.parser
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
        sys.argv, sys.excepthook = argv, hook
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in before.items():
            signal.signal(number, handler)
    raise LookupError(f"{command} has no parser")
