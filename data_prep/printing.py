"""Text of data and of file names for messages and tables: nothing that a terminal might obey, nothing long."""

from __future__ import annotations

SHOWN_CHARS = 60


def escaped(text: str, keep: str = "") -> str:
    """``text`` with an escape for each character that is not printable, those of ``keep`` as they are."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)


def printable(text: str, limit: int = SHOWN_CHARS) -> str:
    """``text`` escaped, in one line of ``limit`` characters, its end left out where it is too long."""
    safe = escaped(text[: limit + 1])
    return safe if len(text) <= limit and len(safe) <= limit else safe[: limit - 3] + "..."


def shortened(text: str, width: int) -> str:
    """``text`` escaped, its middle left out where it is too long: both ends of a path tell something."""
    safe = escaped(text)
    if len(safe) <= width:
        return safe
    half = (width - 3) // 2
    return f"{safe[:half]}...{safe[len(safe) - (width - 3 - half) :]}"


def short(value: object) -> str:
    """The beginning of any value, ASCII only."""
    text = ascii(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def quoted(value: object) -> str:
    """A value for a message, in quotes where it is text."""
    return repr(printable(value)) if isinstance(value, str) else printable(ascii(value))
