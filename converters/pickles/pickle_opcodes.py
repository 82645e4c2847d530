"""What each opcode of a pickle does to the machine that runs it; the most frequent ones are in the machine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from converters.pickles.records import Damaged

if TYPE_CHECKING:
    from converters.pickles.pickle_machine import Machine


def _int_text(machine: Machine) -> None:
    line = machine.data[machine.at : machine.at + 3]
    if line in (b"00\n", b"01\n"):  # protocol 0 writes bool so
        machine.at += 3
        machine.push(line == b"01\n")
    else:
        machine.push(machine.digits())


def _string_text(machine: Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise Damaged("a text without its quotes")
    machine.push(line[1:-1].decode("latin-1"))


def _memo_text(machine: Machine) -> None:
    machine.remember(machine.digits())


def _protocol(machine: Machine) -> None:
    version = machine.number(1)
    if version > 5:
        raise Damaged(f"protocol {version} is unknown")


def _frame(machine: Machine) -> None:
    length = machine.number(8)
    left = len(machine.data) - machine.at
    if length > left:
        raise Damaged(f"a frame of {length} bytes is announced, {left} are there")


# Opcode -> what it does. Absent: EXT1 to EXT4 (a registry of names), NEXT_BUFFER and READONLY_BUFFER.
HANDLERS: dict[int, Callable[[Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("0"): lambda m: m.pop_one(),
    ord("1"): lambda m: m.pop_mark(),
    ord("2"): lambda m: m.push(m.stack[-1]),
    # numbers
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("J"): lambda m: m.push(m.number(4, signed=True)),
    ord("I"): _int_text,
    ord("L"): lambda m: m.push(m.digits()),
    0x8A: lambda m: m.push(m.number(m.number(1), signed=True)),
    0x8B: lambda m: m.push(m.number(m.number(4), signed=True)),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    # text and bytes
    ord("V"): lambda m: m.push(m.line().decode("raw-unicode-escape")),
    0x8D: lambda m: m.push(m.take(m.number(8)).decode("utf-8", "surrogatepass")),
    ord("S"): _string_text,
    ord("T"): lambda m: m.push(m.take(m.number(4)).decode("latin-1")),
    ord("U"): lambda m: m.push(m.take(m.number(1)).decode("latin-1")),
    ord("B"): lambda m: m.push(m.take(m.number(4))),
    ord("C"): lambda m: m.push(m.take(m.number(1))),
    0x8E: lambda m: m.push(m.take(m.number(8))),
    0x96: lambda m: m.push(bytearray(m.take(m.number(8)))),
    # containers
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("a"): lambda m: m.extend([m.pop()]),
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord("d"): lambda m: m.dict(),
    ord("s"): lambda m: m.set_items([m.stack.pop(-2), m.pop()]),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x86: lambda m: m.tuple(2),
    0x87: lambda m: m.tuple(3),
    0x8F: lambda m: m.push(set()),
    0x90: lambda m: m.add(),
    0x91: lambda m: m.push(frozenset(m.keys(m.since_mark()))),
    # the memo in text form
    ord("p"): _memo_text,
    ord("g"): lambda m: m.push(m.recall(m.digits())),
    # names and calls
    ord("c"): lambda m: m.push(m.named()),
    0x93: lambda m: m.stack_global(),
    ord("i"): lambda m: m.call(m.named(), tuple(m.since_mark())),
    ord("o"): lambda m: m.call((items := m.since_mark())[0], tuple(items[1:])),
    ord("R"): lambda m: m.reduce(),
    0x81: lambda m: m.reduce(),  # NEWOBJ
    0x92: lambda m: m.new_with_names(),
    ord("b"): lambda m: m.build(),
    ord("P"): lambda m: m.push(m.persistent(m.line().decode())),
    ord("Q"): lambda m: m.push(m.persistent(m.pop())),
}
