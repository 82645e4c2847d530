"""GSM8K rows ({"question", "answer"}), as verl's examples/data_preprocess/gsm8k.py (0.9.1) reads them."""

from __future__ import annotations

import re

from data_prep.errors import FieldError
from data_prep.formats.example import Example, Format
from data_prep.formats.text import require_text, rest, shown
from data_prep.reading.block import RawRow

MARK = "#### "
# verl/utils/reward_score/gsm8k.py (0.9.1) looks for "#### NUMBER" in the response, so the prompt asks for it.
_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(answer: str) -> str:
    """The number after the first ``#### ``, commas removed (``"#### 1,200"`` -> ``"1200"``).

    Raises:
        FieldError: no such mark, or no digit after it.
    """
    match = _FINAL_ANSWER.search(answer)
    if match is None:
        raise FieldError("answer", f"expected '#### NUMBER' in the solution, got {shown(answer[-40:])}")
    number = match.group(1).replace(",", "")
    if not any(character.isdigit() for character in number):
        raise FieldError("answer", f"expected a number after '####', got {shown(match.group(1))}")
    return number


def _to_example(row: RawRow) -> Example:
    question = require_text(row, "question")
    answer = require_text(row, "answer")
    metadata = rest(row, "question", "answer") if len(row) > 2 else {}
    return Example([{"role": "user", "content": question}], final_answer(answer), answer, None, metadata)


GSM8K = Format(
    name="gsm8k",
    fields="'question', 'answer' with '#### NUMBER'",
    matches=lambda row: "question" in row and "answer" in row,
    to_example=_to_example,
    data_source="openai/gsm8k",
    ability="math",
    template="{prompt} " + _INSTRUCTION,
)
