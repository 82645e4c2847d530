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

from converters.records import Damaged, Made, Record, Table

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
        self._data = data
        self._name = name
        self._persistent = persistent
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

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
        data, memo = self._data, self._memo
        size = len(data)
        at = 0
        while at < size:
            op = data[at]
            at += 1
            stack = self._stack
            if op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif op == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif op == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif op == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif op == 0x72:  # LONG_BINPUT
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif op == 0x28:  # MARK
                self._marks.append(stack)
                self._stack = []
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
                self._at = at
                value = stack.pop()
                if stack or self._marks:
                    raise Damaged(f"{len(stack)} values are left over")
                return value
            else:
                self._at = at
                handler = _HANDLERS.get(op)
                if handler is None:
                    raise Damaged(f"opcode {bytes([op])!r} is unknown or not allowed")
                handler(self)
                at = self._at
        self._at = size
        raise Damaged("the data ends before the program does")

    # ---- arguments in the data

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise Damaged(f"{count} bytes are announced, {len(self._data) - self._at} are there")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(width), "little", signed=signed)

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise Damaged("a line without an end")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def _digits(self) -> int:
        line = self._line().removesuffix(b"L")
        if len(line) > _DIGITS:
            raise Damaged(f"a number of {len(line)} digits")
        return int(line)

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    # ---- names and calls

    def _call(self, called: Any, args: Any) -> None:
        if not isinstance(args, tuple):
            raise Damaged(f"a call with {type(args).__name__} for its arguments")
        if isinstance(called, Made):
            self._push(called.make(args))
        elif isinstance(called, type) and issubclass(called, Record):
            self._push(called(args))
        else:
            raise Damaged(f"a call of {type(called).__name__}, which is no name")

    def _named(self) -> Any:
        module, name = self._line().decode(), self._line().decode()
        return self._name(module, name)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise Damaged("a name that is no text")
        self._push(self._name(module, name))

    def _reduce(self) -> None:
        args = self._pop()
        self._call(self._pop(), args)

    def _new_with_names(self) -> None:
        named, args = self._pop(), self._pop()
        if not (isinstance(named, dict) and isinstance(args, tuple)):
            raise Damaged("a call without arguments")
        self._call(self._pop(), args)
        if named and isinstance(self._stack[-1], Record):
            self._stack[-1].add([named])

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1]
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, Table):
            raise Damaged(f"{type(target).__name__} is given the state of an object")

    # ---- containers

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Record):
            target.add(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise Damaged(f"items for {type(target).__name__}")

    def _add(self) -> None:
        items = self._since_mark()
        if isinstance(self._stack[-1], set):
            self._stack[-1].update(self._keys(items))
        else:
            self._extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if len(items) % 2:
            raise Damaged("a key without a value")
        keys, values = items[::2], items[1::2]
        if isinstance(target, Record):
            target.add(list(zip(keys, values, strict=True)))
        elif isinstance(target, dict):
            target.update(zip(self._keys(keys), values, strict=True))
        else:
            raise Damaged(f"items for {type(target).__name__}")

    def _keys(self, keys: list[Any]) -> list[Any]:
        """Keys whose hash takes no time."""
        for key in keys:
            if not (
                _is_plain(key) or (type(key) is tuple and len(key) <= _KEY_PARTS and all(map(_is_plain, key)))
            ):
                raise Damaged(f"{type(key).__name__} as a key, of other than plain values")
        return keys

    def _dict(self) -> None:
        items = self._since_mark()
        self._push({})
        self._set_items(items)

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise Damaged(f"{count} values are asked for, {len(self._stack)} are there")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _pop_mark(self) -> None:
        self._since_mark()

    def _pop_one(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()


def _is_plain(key: Any) -> bool:
    if isinstance(key, int):
        return -(2**64) < key < 2**64
    return key is None or isinstance(key, (str, float, bytes, Record))


def _text(data: bytes, start: int, end: int) -> str:
    if end > len(data):
        raise Damaged(f"{end - start} bytes of text are announced, {len(data) - start} are there")
    return data[start:end].decode("utf-8", "surrogatepass")


def _int_text(machine: Machine) -> None:
    line = machine._data[machine._at : machine._at + 3]
    if line in (b"00\n", b"01\n"):  # protocol 0 writes bool so
        machine._at += 3
        machine._push(line == b"01\n")
    else:
        machine._push(machine._digits())


def _string_text(machine: Machine) -> None:
    line = machine._line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise Damaged("a text without its quotes")
    machine._push(line[1:-1].decode("latin-1"))


def _memo_text(machine: Machine) -> None:
    machine._memo[machine._digits()] = machine._stack[-1]


def _protocol(machine: Machine) -> None:
    version = machine._number(1)
    if version > 5:
        raise Damaged(f"protocol {version} is unknown")


def _frame(machine: Machine) -> None:
    length = machine._number(8)
    left = len(machine._data) - machine._at
    if length > left:
        raise Damaged(f"a frame of {length} bytes is announced, {left} are there")


# Opcode -> what it does. Absent: EXT1 to EXT4 (a registry of names), NEXT_BUFFER and READONLY_BUFFER.
_HANDLERS: dict[int, Callable[[Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("0"): Machine._pop_one,
    ord("1"): Machine._pop_mark,
    ord("2"): lambda m: m._push(m._stack[-1]),
    # numbers
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("M"): lambda m: m._push(m._number(2)),
    ord("J"): lambda m: m._push(m._number(4, signed=True)),
    ord("I"): _int_text,
    ord("L"): lambda m: m._push(m._digits()),
    0x8A: lambda m: m._push(m._number(m._number(1), signed=True)),
    0x8B: lambda m: m._push(m._number(m._number(4), signed=True)),
    ord("F"): lambda m: m._push(float(m._line())),
    ord("G"): lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    # text and bytes
    ord("V"): lambda m: m._push(m._line().decode("raw-unicode-escape")),
    0x8D: lambda m: m._push(m._take(m._number(8)).decode("utf-8", "surrogatepass")),
    ord("S"): _string_text,
    ord("T"): lambda m: m._push(m._take(m._number(4)).decode("latin-1")),
    ord("U"): lambda m: m._push(m._take(m._number(1)).decode("latin-1")),
    ord("B"): lambda m: m._push(m._take(m._number(4))),
    ord("C"): lambda m: m._push(m._take(m._number(1))),
    0x8E: lambda m: m._push(m._take(m._number(8))),
    0x96: lambda m: m._push(bytearray(m._take(m._number(8)))),
    # containers
    ord("]"): lambda m: m._push([]),
    ord("l"): lambda m: m._push(m._since_mark()),
    ord("a"): lambda m: m._extend([m._pop()]),
    ord("e"): lambda m: m._extend(m._since_mark()),
    ord("d"): Machine._dict,
    ord("s"): lambda m: m._set_items([m._stack.pop(-2), m._pop()]),
    ord("u"): lambda m: m._set_items(m._since_mark()),
    ord("t"): lambda m: m._push(tuple(m._since_mark())),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    0x8F: lambda m: m._push(set()),
    0x90: Machine._add,
    0x91: lambda m: m._push(frozenset(m._keys(m._since_mark()))),
    # the memo in text form
    ord("p"): _memo_text,
    ord("g"): lambda m: m._push(m._memo[m._digits()]),
    # names and calls
    ord("c"): lambda m: m._push(m._named()),
    0x93: Machine._stack_global,
    ord("i"): lambda m: m._call(m._named(), tuple(m._since_mark())),
    ord("o"): lambda m: m._call((items := m._since_mark())[0], tuple(items[1:])),
    ord("R"): Machine._reduce,
    0x81: Machine._reduce,  # NEWOBJ
    0x92: Machine._new_with_names,
    ord("b"): Machine._build,
    ord("P"): lambda m: m._push(m._persistent(m._line().decode())),
    ord("Q"): lambda m: m._push(m._persistent(m._pop())),
}
