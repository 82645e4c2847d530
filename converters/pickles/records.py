"""What stands for the objects that a pickle names: inert records, and the few values that are made from a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from converters.errors import ConvertError


class Damaged(Exception):
    """The bytes are no whole pickle of plain values and records."""


class Record:
    """What a pickle said about one object: the name that it called, with which arguments, and its state.

    Attributes:
        args: of the call.
        state: what the object would have set itself to; None: nothing.
        items: what would have been appended, added or set as items; None: nothing.
    """

    name = ""

    __slots__ = ("args", "items", "state")

    def __init__(self, args: tuple[Any, ...] = ()) -> None:
        self.args = args  # never a copy: a pickle may name one tuple a million times
        self.state: Any = None
        self.items: list[Any] | None = None

    def get(self, field: str) -> Any:
        """The value of `field` in the state.

        Raises:
            ConvertError: the state has no such field (a layout that this reader does not know).
        """
        if not isinstance(self.state, dict) or field not in self.state:
            raise ConvertError(f"{self.name} in the checkpoint has no field {field!r}: an unknown layout")
        return self.state[field]

    def add(self, items: list[Any]) -> None:
        if self.items is None:
            self.items = []
        self.items.extend(items)


class Made:
    """A name that stands for a plain value: `make` gets the arguments of the call as one tuple."""

    def __init__(self, make: Callable[[tuple[Any, ...]], Any]) -> None:
        self.make = make


class Table(dict[Any, Any]):
    """A dictionary of a class of its own (collections.OrderedDict); its attributes are left out."""
