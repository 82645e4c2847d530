"""JSON objects, strictly: what json.loads lets pass in silence is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NoReturn

from data_prep.errors import DataError, FieldError
from data_prep.printing import short
from data_prep.reading.block import RawRow, Record

MOST_ROW_BYTES = 64 << 20
MOST_LEVELS = 128
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Literal(float):
    """A number with a fraction or an exponent, and how it was written: ``1.50`` stays ``1.50`` as a ground truth.

    Raises:
        FieldError: the number does not fit a double.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Literal:
        number = float.__new__(cls, text)
        if not math.isfinite(number):
            raise FieldError(None, f"the number {short(text)} is too large for a double")
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[Literal], tuple[str]]:
        return Literal, (self.text,)


def _unique(pairs: list[tuple[str, Any]]) -> RawRow:
    row = dict(pairs)
    if len(row) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FieldError(key, "the key occurs twice in one object")
            seen.add(key)
    return row


def _no_constant(name: str) -> NoReturn:
    raise FieldError(None, f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=Literal)


def parse_object(line: bytes) -> RawRow:
    """One JSON object from UTF-8.

    Raises:
        FieldError: not UTF-8, not JSON (NaN and Infinity are not), a doubled key, nested over 128 levels, a number
            that Python cannot hold, or another JSON type than an object.
    """
    try:
        text = line.decode("utf-8")
        if line.count(b"{") + line.count(b"[") > MOST_LEVELS:
            _check_depth(text)
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise FieldError(None, f"expected UTF-8, got byte 0x{line[error.start]:02X} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise FieldError(
            None, f"expected a JSON object on one line: {error.msg.removesuffix(' at')} at column {error.colno}"
        ) from error
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:  # an integer of more digits than Python converts
        raise FieldError(None, str(error)) from error
    if not isinstance(value, dict):
        raise FieldError(None, f"expected a JSON object, got {type(value).__name__} {short(value)}")
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for character in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if character in "[{" else -1
        if depth > MOST_LEVELS:
            raise FieldError(None, f"nested too deeply: more than {MOST_LEVELS} levels")


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines of a JSONL file; ``first`` is the number of the first one, from 1."""

    data: bytes
    first: int
    lines: ClassVar[bool] = True

    def records(self) -> Iterator[Record]:
        for number, raw in enumerate(self.data.split(b"\n"), self.first):
            line = raw.strip()
            if line:
                yield record(number, line)


def record(number: int, text: bytes) -> Record:
    """The row in ``text``, or why there is none."""
    try:
        return Record(number, parse_object(text), text)
    except FieldError as error:
        return Record(number, error, text)


def line_blocks(stream: BinaryIO, shown: str, block_bytes: int) -> Iterator[LineBlock]:
    """Cut a JSONL stream at line ends; a leading BOM is dropped.

    Raises:
        DataError: a line over 64 MiB; UTF-16; only blank lines.
    """
    rest, first, rows = b"", 1, False
    while chunk := stream.read(block_bytes):
        if first == 1 and not rest:
            if chunk.startswith(_UTF_16):
                raise DataError(
                    f"{shown}: UTF-16 text; JSON lines are UTF-8: iconv -f UTF-16 -t UTF-8 converts it."
                )
            chunk = chunk.removeprefix(_BOM)
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
            if len(rest) > MOST_ROW_BYTES:
                raise DataError(f"{shown}:{first}: the line is longer than {MOST_ROW_BYTES >> 20} MiB.")
            continue
        data = rest + chunk[:end]
        rest = chunk[end:]
        rows = rows or not data.isspace()
        yield LineBlock(data, first)
        first += data.count(b"\n")
    if rest.strip():
        yield LineBlock(rest, first)
    elif not rows:
        raise DataError(f"{shown}: no rows.")
