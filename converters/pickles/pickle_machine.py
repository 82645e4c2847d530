"""Runs the program in a pickle: an interpreter of its opcodes (protocols 0 to 5) that can call nothing.

Python's own unpickler can be kept from importing, but not from what a few bytes ask of it: a memo of 2**32
entries, a key of a dictionary nested so deep that its hash ends the process or never ends. Here memory and time
grow with the length of the data only: lengths are compared with what is there, the memo is a table, keys are
plain values. Names become what `name` makes of them, and a call is a `Record` or one of the `Made`: ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from converters.pickles.pickle_opcodes import HANDLERS
from converters.pickles.records import Damaged, Made, Record, Table

# Digits of a number in text form (protocol 0): Python's int() takes quadratic time.
_DIGITS = 4000
_KEY_PARTS = 64


class Machine:
    """One run over `data`.

    Args:
        name: (module, name) -> a class of Records, a Made, or a plain value; raises what refuses it.
        persistent: what a persistent id stands for; raises what refuses it.
    """

    def __init__(self, data: bytes, name: Callable[[str, str], Any], persistent: Callable[[Any], Any]) -> None:
        self.data = data
        self._name = name
        self.persistent: Callable[[Any], Any] = persistent
        self.at: int = 0
        self.stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: list[Any] = []
        self._far: dict[int, Any] = {}  # places that were left out before

    def run(self) -> Any:
        """The value that the program leaves.

        Raises:
            Damaged: with what is wrong, and at which byte.
        """
        try:
            return self._run()
        except (IndexError, struct.error, UnicodeDecodeError, KeyError, ValueError, TypeError) as error:
            raise Damaged(f"{type(error).__name__} {str(error)[:200]}") from error

    def _run(self) -> Any:
        # The opcodes of 99 % of a .metadata, without a call for each.
        data, memo, far = self.data, self._memo, self._far
        size = len(data)
        at = 0
        while at < size:
            op = data[at]
            at += 1
            stack = self.stack
            if op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif op == 0x68:  # BINGET
                place = data[at]
                stack.append(memo[place] if place < len(memo) else far[place])
                at += 1
            elif op == 0x6A:  # LONG_BINGET
                place = int.from_bytes(data[at : at + 4], "little")
                stack.append(memo[place] if place < len(memo) else far[place])
                at += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif op == 0x71:  # BINPUT
                self.remember(data[at])
                at += 1
            elif op == 0x72:  # LONG_BINPUT
                self.remember(int.from_bytes(data[at : at + 4], "little"))
                at += 4
            elif op == 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
            elif op == 0x28:  # MARK
                self._marks.append(stack)
                self.stack = []
            elif op == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif op == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif op == 0x4E:  # NONE
                stack.append(None)
            elif op == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                stack.append(_text(data, at + 1, end))
                at = end
            elif op == 0x58:  # BINUNICODE
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                stack.append(_text(data, at + 4, end))
                at = end
            elif op == 0x2E:  # STOP
                self.at = at
                value = stack.pop()
                if stack or self._marks:
                    raise Damaged(f"{len(stack)} values are left over")
                return value
            else:
                self.at = at
                handler = HANDLERS.get(op)
                if handler is None:
                    raise Damaged(f"opcode {bytes([op])!r} is unknown or not allowed")
                handler(self)
                at = self.at
        self.at = size
        raise Damaged("the data ends before the program does")

    # ---- arguments in the data

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Damaged(f"{count} bytes are announced, {len(self.data) - self.at} are there")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(width), "little", signed=signed)

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Damaged("a line without an end")
        line = self.data[self.at : end]
        self.at = end + 1
        return line

    def digits(self) -> int:
        line = self.line().removesuffix(b"L")
        if len(line) > _DIGITS:
            raise Damaged(f"a number of {len(line)} digits")
        return int(line)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self._marks.pop()
        return items

    def remember(self, place: int) -> None:
        value = self.stack[-1]
        if place == len(self._memo):
            self._memo.append(value)
        elif 0 <= place < len(self._memo):
            self._memo[place] = value
        else:
            self._far[place] = value

    def recall(self, place: int) -> Any:
        return self._memo[place] if 0 <= place < len(self._memo) else self._far[place]

    # ---- names and calls

    def call(self, called: Any, args: Any) -> None:
        if not isinstance(args, tuple):
            raise Damaged(f"a call with {type(args).__name__} for its arguments")
        if isinstance(called, Made):
            self.push(called.make(args))
        elif isinstance(called, type) and issubclass(called, Record):
            self.push(called(args))
        else:
            raise Damaged(f"a call of {type(called).__name__}, which is no name")

    def named(self) -> Any:
        module, name = self.line().decode(), self.line().decode()
        return self._name(module, name)

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise Damaged("a name that is no text")
        self.push(self._name(module, name))

    def reduce(self) -> None:
        args = self.pop()
        self.call(self.pop(), args)

    def new_with_names(self) -> None:
        named, args = self.pop(), self.pop()
        if not (isinstance(named, dict) and isinstance(args, tuple)):
            raise Damaged("a call without arguments")
        self.call(self.pop(), args)
        if named and isinstance(self.stack[-1], Record):
            self.stack[-1].add([named])

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, Table):
            raise Damaged(f"{type(target).__name__} is given the state of an object")

    # ---- containers

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Record):
            target.add(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise Damaged(f"items for {type(target).__name__}")

    def add(self) -> None:
        items = self.since_mark()
        if isinstance(self.stack[-1], set):
            self.stack[-1].update(self.keys(items))
        else:
            self.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise Damaged("a key without a value")
        keys, values = items[::2], items[1::2]
        if isinstance(target, Record):
            target.add(list(zip(keys, values, strict=True)))
        elif isinstance(target, dict):
            target.update(zip(self.keys(keys), values, strict=True))
        else:
            raise Damaged(f"items for {type(target).__name__}")

    def keys(self, keys: list[Any]) -> list[Any]:
        """Keys whose hash takes no time."""
        for key in keys:
            if not (
                _is_plain(key) or (type(key) is tuple and len(key) <= _KEY_PARTS and all(map(_is_plain, key)))
            ):
                raise Damaged(f"{type(key).__name__} as a key, of other than plain values")
        return keys

    def dict(self) -> None:
        items = self.since_mark()
        self.push({})
        self.set_items(items)

    def tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise Damaged(f"{count} values are asked for, {len(self.stack)} are there")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def pop_mark(self) -> None:
        self.since_mark()

    def pop_one(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()


def _is_plain(key: Any) -> bool:
    if isinstance(key, int):
        return -(2**64) < key < 2**64
    return key is None or isinstance(key, (str, float, bytes, Record))


def _text(data: bytes, start: int, end: int) -> str:
    if end > len(data):
        raise Damaged(f"{end - start} bytes of text are announced, {len(data) - start} are there")
    return data[start:end].decode("utf-8", "surrogatepass")
