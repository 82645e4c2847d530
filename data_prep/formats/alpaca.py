"""Alpaca rows: ``{"instruction", "input", "output"}``; an input stands below its instruction."""

from __future__ import annotations

from data_prep.formats.example import Example, Format, Message
from data_prep.formats.text import answer_text, check_text, own_truth, require, require_text, rest
from data_prep.reading.block import RawRow


def _to_example(row: RawRow) -> Example:
    asked = require_text(row, "instruction")
    given = row.get("input")
    if given is not None and check_text(given, "input", blank=True).strip():
        asked = f"{asked}\n\n{given}"
    prompt: list[Message] = [{"role": "user", "content": asked}]
    used = ["instruction", "input", "output"]
    system = row.get("system")
    if system is not None:
        used.append("system")
        if check_text(system, "system", blank=True).strip():
            prompt.insert(0, {"role": "system", "content": system})
    answer = answer_text(require(row, "output"), "output")
    truth, field = own_truth(row, "ground_truth", "answer")
    return Example(prompt, truth if field else answer, answer, None, rest(row, *used, field))


ALPACA = Format(
    name="alpaca",
    fields="'instruction', 'output' ('input')",
    matches=lambda row: "instruction" in row and "output" in row,
    to_example=_to_example,
)
