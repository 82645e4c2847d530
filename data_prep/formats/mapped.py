"""Any other row: ``--map TARGET=PATH`` says where the prompt, the ground truth and the rest are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from data_prep.errors import DataError, FieldError
from data_prep.formats.chat import prompt_of
from data_prep.formats.example import Example, Format
from data_prep.formats.prompt_response import response_of
from data_prep.formats.text import check_text, shown, shown_fields, truth_text
from data_prep.reading.block import RawRow

TARGETS = ("prompt", "ground_truth", "answer", "data_source", "ability")
_STEP = re.compile(r'\.?"((?:[^"\\]|\\.)*)"|\[(\d{1,9})\]|\.?([^.\[\]"]+)')
_QUOTED = re.compile(r"\\(.)", re.DOTALL)

Path = tuple["str | int", ...]


def parse_path(path: str) -> Path:
    """``a.b[0].c``, ``"with.dot".c`` or a JSON pointer ``/a/b/0/c`` as keys and positions.

    A number in a JSON pointer is a string here; :func:`value_at` takes it as a position where it meets a list.

    Raises:
        DataError: no path.
    """
    if path.startswith("/"):
        return tuple(key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/"))
    steps: list[str | int] = []
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None or (place == 0 and path.startswith(".")):
            raise DataError(
                f"--map: cannot read the path {shown(path)} at character {place}: "
                'expected a.b[0].c, "a key".b or /a/b/0/c.'
            )
        quoted, position, key = step.groups()
        if quoted is not None:
            steps.append(_QUOTED.sub(r"\1", quoted))
        else:
            steps.append(int(position) if position is not None else key)
        place = step.end()
    if not steps:
        raise DataError('--map: the path is empty: expected a.b[0].c, "a key".b or /a/b/0/c.')
    return tuple(steps)


def value_at(row: RawRow, steps: Sequence[str | int], shown_path: str) -> Any:
    """What stands at ``steps`` in ``row``.

    Raises:
        FieldError: a step leads nowhere; it tells what is there at the last good one.
    """
    value: Any = row
    for place, step in enumerate(steps):
        if isinstance(value, dict) and isinstance(step, str) and step in value:
            value = value[step]
            continue
        if isinstance(value, list | tuple) and (isinstance(step, int) or step.isdecimal()):
            position = int(step)
            if position < len(value):
                value = value[position]
                continue
        raise FieldError(
            shown_path, f"nothing at {_written(steps[: place + 1])}; {_what_is(value, steps[:place])}"
        )
    return value


def _what_is(value: object, steps: Sequence[str | int]) -> str:
    where = _written(steps) if steps else "the row"
    if isinstance(value, dict):
        return f"{where} has {shown_fields(value)}"
    if isinstance(value, list | tuple):
        return f"{where} is a list of {len(value)}"
    return f"{where} is {shown(value)}"


def _written(steps: Sequence[str | int]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return ascii(text)


def mapped(mapping: dict[str, str]) -> Format:
    """The format of rows whose fields are found by ``mapping`` (target -> path).

    Targets other than TARGETS are keys of the metadata, and so is every field of the row that no path begins with.

    Raises:
        DataError: a path cannot be read, or none is for ``prompt``.
    """
    if "prompt" not in mapping:
        targets = ", ".join(mapping) or "none"
        raise DataError(f"--map prompt=PATH is missing (given: {shown(targets)}): rows need a prompt.")
    paths = {target: parse_path(path) for target, path in mapping.items()}
    used = frozenset(steps[0] for steps in paths.values() if len(steps) == 1)

    def to_example(row: RawRow) -> Example:
        found = {target: value_at(row, steps, mapping[target]) for target, steps in paths.items()}
        return _example(row, found, mapping, used)

    return Format(
        name="map",
        fields=", ".join(f"{target} from {path!r}" for target, path in mapping.items()),
        matches=lambda row: all(_leads(row, steps) for steps in paths.values()),
        to_example=to_example,
    )


def _leads(row: RawRow, steps: Path) -> bool:
    try:
        value_at(row, steps, "")
    except FieldError:
        return False
    return True


def _example(row: RawRow, found: dict[str, Any], mapping: dict[str, str], used: frozenset[str | int]) -> Example:
    prompt = prompt_of(found["prompt"], mapping["prompt"])
    answer = found.get("answer")
    text = None if answer is None else response_of(answer, mapping["answer"])
    truth = found.get("ground_truth")
    metadata = {name: value for name, value in row.items() if name not in used}
    metadata.update((target, value) for target, value in found.items() if target not in TARGETS)
    return Example(
        prompt,
        text if "ground_truth" not in found else _truth(truth, mapping["ground_truth"]),
        text,
        None,
        metadata,
        _name(found, mapping, "data_source"),
        _name(found, mapping, "ability"),
    )


def _truth(value: Any, path: str) -> str | None:
    return None if value is None else truth_text(value, path)


def _name(found: dict[str, Any], mapping: dict[str, str], target: str) -> str | None:
    value = found.get(target)
    return None if value is None else check_text(value, mapping[target])
