"""Write YAML without a library: scalars that cannot be read as something else, comments that stay comments."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*[A-Za-z0-9_/]|[A-Za-z]")
# YAML 1.1 reads these as true, false, null; in any case.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def scalar(value: str | int) -> str:
    """Text or a number as YAML: text in quotes, unless it can only be text."""
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return (
        '"' + "".join(_ESCAPES.get(char) or (char if _as_it_is(char) else _escaped(char)) for char in value) + '"'
    )


def _as_it_is(char: str) -> bool:
    return char.isprintable() and ord(char) <= 0xFFFF


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # bytes of a name that is not UTF-8: YAML has no way to write them
        return "?"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def flow_list(values: Sequence[str]) -> str:
    """[a, "b c"]"""
    return "[" + ", ".join(scalar(value) for value in values) + "]"


def one_line(text: str) -> str:
    """Text for a comment: on one line, without control characters."""
    return " ".join("".join(char if _as_it_is(char) else " " for char in text).split())


def comment(text: str, indent: int) -> list[str]:
    """Lines of a comment."""
    before = " " * indent + "# "
    return textwrap.wrap(
        one_line(text), WIDTH, initial_indent=before, subsequent_indent=before, break_on_hyphens=False
    )


def entry(name: str, value: str, why: str, *, written: bool = True) -> list[str]:
    """`name: value` in a section, `why` beside it or, where it is long, above; a comment where not `written`."""
    line = f"  {'' if written else '# '}{name}: {value}"
    beside = f"{line}  # {one_line(why)}" if why else line
    return [beside] if len(beside) <= WIDTH else [*comment(why, 2), line]
