"""Reward logs, line by line: this project's, and those of scripts that log into one file."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

STDIN = "-"
# A line is a prompt and a response, each of reward_log's REWARD_LOG_MAX_CHARS: far below this.
_LONGEST_LINE = 64 * 2**20
_LONGEST_NAME, _LONGEST_REASON = 120, 300
STATUSES = ("ok", "penalty", "outage_penalty", "outage", "error", "cancelled")


class LogError(Exception):
    """There is nothing to read; the message names the place and the remedy."""


@dataclass(frozen=True)
class BadLine:
    """A line that is no record of a score."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}"


class Row(NamedTuple):
    """The numbers of one line, without its texts.

    Attributes:
        score: what the trainer got; None where it got nothing, or no finite number (``non_finite``).
        response_len: characters of the response, thinking included.
        time: seconds since the epoch when the call began; it ended ``latency_s`` later.
        error: why there is no score, cut short; empty where the line does not say.
        attempts: requests to the server; 1 where it is not told.
    """

    data_source: str
    status: str
    score: float | None
    non_finite: bool
    response_len: float | None
    time: float | None
    latency_s: float | None
    clamped: bool
    truncated: bool
    attempts: int
    error: str = ""


def find_logs(places: Sequence[str]) -> list[str]:
    """Files, each once: a folder stands for its ``*.jsonl``, a run folder for those in its ``reward_log*``.

    Raises:
        LogError: a place does not exist, or holds no log.
    """
    files: dict[str, None] = {}
    for place in places:
        try:
            files.update(dict.fromkeys([place] if place == STDIN else _logs_at(place)))
        except OSError as error:  # no right to look there, or no name that a file can have
            raise LogError(f"{place}: {error.strerror or error}") from error
    return list(files)


def _logs_at(place: str) -> list[str]:
    path = Path(place)
    if path.is_dir():
        os.scandir(path).close()  # glob says of a folder that one may not read that it is empty
        logs = sorted(path.glob("reward_log*/*.jsonl")) or sorted(path.glob("*.jsonl"))
        if not logs:
            raise LogError(f"{place}: no *.jsonl in this folder, nor in a reward_log* in it; name the reward log")
        return [str(file) for file in logs]
    if not path.exists():
        raise LogError(f"{place}: no such file or folder; name a reward log, its folder, or a run folder")
    return [place]  # a pipe too, as the shell's <(zcat ...)


def read_rows(file: str) -> Iterator[Row | BadLine]:
    """The lines of one file; those that are empty are left out. A line at a time is in memory.

    Raises:
        LogError: the file cannot be read.
    """
    try:
        if file == STDIN:
            yield from _rows(sys.stdin.buffer, "(stdin)")
        else:
            with Path(file).open("rb") as stream:
                yield from _rows(stream, file)
    except OSError as error:
        raise LogError(f"{file}: {error.strerror or error}") from error


def _rows(stream: BinaryIO, name: str) -> Iterator[Row | BadLine]:
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        whole = line.endswith(b"\n")
        if not whole and len(line) == _LONGEST_LINE:
            while (rest := stream.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            yield BadLine(name, number, f"longer than {_LONGEST_LINE} bytes")
        elif line.strip():
            yield _row(line, whole, name, number)


def _row(line: bytes, whole: bool, name: str, number: int) -> Row | BadLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return BadLine(name, number, "not JSON" if whole else "half a line at the end: cut off, or being written")
    if not isinstance(record, dict):
        return BadLine(name, number, f"a JSON {type(record).__name__}; expected an object")
    # Scripts that log into one file give a status to penalties only.
    status = record.get("status", "ok")
    if status not in STATUSES:
        return BadLine(name, number, f"status {str(status)[:40]!r}; expected one of {', '.join(STATUSES)}")
    score = record.get("score")
    if status in ("ok", "penalty", "outage_penalty") and not _is_number(score):
        return BadLine(name, number, f"status {status!r} without a number as score")
    value, raw = _number(score), _number(record.get("raw_score"))
    finite = value is not None and math.isfinite(value) and (raw is None or math.isfinite(raw))
    return Row(
        data_source=str(record.get("data_source", "(none)"))[:_LONGEST_NAME],
        status=status,
        score=value if finite else None,
        non_finite=value is not None and not finite,
        response_len=_finite(record.get("response_len")),
        time=_first_finite(record.get("timestamp_epoch"), record.get("timestamp")),
        latency_s=_finite(record.get("latency_s")),
        clamped=_clamped(record.get("clamped"), value, raw),
        truncated=_number(record.get("truncated")) == 1,
        attempts=_attempts(record.get("attempts")),
        error=str(record.get("error") or "")[:_LONGEST_REASON],
    )


def _clamped(told: Any, score: float | None, raw: float | None) -> bool:
    """As told, else (in logs that do not tell) where the score differs from the raw one."""
    if told is not None:
        return _number(told) == 1
    return score is not None and raw is not None and math.isfinite(raw) and score != raw


def _attempts(told: Any) -> int:
    value = _finite(told)
    return 1 if value is None else max(0, int(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    """A JSON number (or true and false) as a float, an integer beyond floats as infinity; None: something else."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _first_finite(*values: Any) -> float | None:
    return next((number for number in map(_finite, values) if number is not None), None)
