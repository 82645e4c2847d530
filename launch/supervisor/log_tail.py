"""The end of a log, with true line numbers and without what would harm a terminal or a JSON file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

# What is read for its text. A failure shows near the end of a log; verl's workers print a few MB at most after it.
TAIL_BYTES = 4 << 20
# Before that, line ends are counted and nothing else; of a larger log the line numbers stay unknown.
COUNTED_BYTES = 1 << 30
LINE_CHARS = 500
_CHUNK = 1 << 20
# Colours and titles first, whole: their rest without the escape character would be printable.
_UNPRINTABLE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[@-Z\\-_]?"
    r"|[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True)
class Line:
    """A line of a log: 1-based number, None where it is unknown, and its printable text."""

    number: Optional[int]
    text: str


def printable(text: str, limit: int = LINE_CHARS) -> str:
    """`text` on one line, at most `limit` characters, without escape sequences and control characters."""
    return _UNPRINTABLE.sub("", text.replace("\t", " ")).strip()[:limit]


def read_tail(log: Path, size: int = TAIL_BYTES) -> List[Line]:
    """The lines that are not empty in the last `size` bytes of a log; none for a missing or unreadable one.

    What a progress bar overwrites with carriage returns is not shown: only the last state of such a line is.
    """
    try:
        with log.open("rb") as stream:
            end = stream.seek(0, 2)
            start = max(0, end - size)
            number = _line_ends(log, start) if start <= COUNTED_BYTES else None
            stream.seek(start)
            data = stream.read(size)
    except OSError:
        return []
    lines: List[Line] = []
    for count, raw in enumerate(data.split(b"\n"), 1):
        if start and count == 1 and not _at_line_start(log, start):
            continue  # the rest of a line
        shown = raw.rstrip(b"\r").rpartition(b"\r")[2]
        # Cut before cleaning: one line may be megabytes. Indented text keeps its indent: it tells a frame.
        text = shown[: 8 * LINE_CHARS].decode(errors="replace")
        indent = " " if text[:1] in (" ", "\t") else ""
        text = printable(text)
        if text:
            lines.append(Line(None if number is None else number + count, indent + text))
    return lines


def _line_ends(log: Path, before: int) -> int:
    with log.open("rb") as stream:
        count = 0
        while before > 0:
            chunk = stream.read(min(_CHUNK, before))
            if not chunk:
                break
            count += chunk.count(b"\n")
            before -= len(chunk)
    return count


def _at_line_start(log: Path, offset: int) -> bool:
    with log.open("rb") as stream:
        stream.seek(offset - 1)
        return stream.read(1) == b"\n"
