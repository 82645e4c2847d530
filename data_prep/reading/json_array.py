"""The elements of a JSON array, one after the other, without the array in memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from data_prep.errors import DataError
from data_prep.reading.block import Record
from data_prep.reading.lines import MOST_ROW_BYTES, record

# Only finds where an element ends; `record` parses it again, strictly. Numbers are not worth converting for that.
_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len, strict=False)
_BLANKS = " \t\r\n"
# An error that near to the end of what was read may be a piece of a word or an escape that goes on.
_CUT_CHARS = 16


@dataclass(frozen=True, slots=True)
class ElementBlock:
    """Elements of an array, as text, with their positions from 0."""

    elements: list[tuple[int, bytes]]
    lines: ClassVar[bool] = False

    def records(self) -> Iterator[Record]:
        for number, text in self.elements:
            yield record(number, text)


class _Text:
    """The text of a stream from a moving position on."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        self._chunk = 1 << 20
        self.text = ""
        self.place = 0
        self.ended = False

    def more(self) -> None:
        data = self._stream.read(max(self._chunk, len(self.text) - self.place))
        new = self._decoder.decode(data, final=not data)  # `record` finds what is not UTF-8, in its row
        self.ended = not data
        self.text, self.place = self.text[self.place :] + new, 0

    def next(self) -> str:
        """The next character that is not blank, not yet passed; "" at the end."""
        while True:
            while self.place < len(self.text):
                if self.text[self.place] not in _BLANKS:
                    return self.text[self.place]
                self.place += 1
            if self.ended:
                return ""
            self.more()


def array_blocks(stream: BinaryIO, shown: str, block_bytes: int) -> Iterator[ElementBlock]:
    """The elements of the array that ``stream`` holds.

    Raises:
        DataError: not a JSON array to its end; an element over 64 MiB; no element.
    """
    text = _Text(stream)
    if text.next() != "[":
        raise DataError(f"{shown}: expected a JSON array, got {text.text[text.place : text.place + 20]!a}.")
    text.place += 1
    elements: list[tuple[int, bytes]] = []
    number = size = 0
    separator = "["
    while text.next() != "]" or separator == ",":
        element = _element(text, f"{shown}: row {number} (from 0)")
        elements.append((number, element))
        number += 1
        size += len(element)
        separator = text.next()
        if separator == ",":
            text.place += 1
        elif separator != "]":
            found = ascii(separator) if separator else "the end of the file"
            raise DataError(f"{shown}: row {number - 1} (from 0): expected , or ] after it, got {found}.")
        if size >= block_bytes:
            yield ElementBlock(elements)
            elements, size = [], 0
    text.place += 1
    if text.next():
        raise DataError(f"{shown}: more text after the array: {text.text[text.place : text.place + 20]!a}.")
    if elements:
        yield ElementBlock(elements)
    if not number:
        raise DataError(f"{shown}: no rows.")


def _element(text: _Text, where: str) -> bytes:
    """The element that begins at ``text.place``, which moves behind it."""
    while True:
        try:
            _, end = _SCANNER.raw_decode(text.text, text.place)
            if end < len(text.text) or text.ended:  # else a number may go on
                found = text.text[text.place : end]
                text.place = end
                return found.encode("utf-8", "surrogateescape")
        except json.JSONDecodeError as error:
            cut = error.pos >= len(text.text) - _CUT_CHARS or error.msg.startswith("Unterminated string")
            if text.ended or not cut:
                ended = " (the file ends within it: is it whole?)" if text.ended else ""
                raise DataError(f"{where}: not JSON: {error.msg}{ended}.") from error
        except RecursionError as error:
            raise DataError(f"{where}: nested too deeply.") from error
        if len(text.text) - text.place > MOST_ROW_BYTES:
            raise DataError(f"{where}: longer than {MOST_ROW_BYTES >> 20} MiB.")
        text.more()
