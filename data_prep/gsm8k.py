"""GSM8K rows ({"question", "answer"}) to verl rows, as verl's examples/data_preprocess/gsm8k.py does."""

from __future__ import annotations

import re
from typing import Any, Literal

from data_prep.errors import FieldError
from data_prep.jsonl import require_text, shown
from data_prep.schema import VerlRow

DATA_SOURCE = "openai/gsm8k"
ABILITY = "math"
# verl/utils/reward_score/gsm8k.py (0.9.1) looks for "#### NUMBER" in the response, so the prompt asks for it.
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'

GroundTruth = Literal["answer", "question"]

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


def to_verl(
    row: dict[str, Any],
    *,
    data_source: str = DATA_SOURCE,
    split: str,
    index: int,
    ground_truth: GroundTruth = "answer",
) -> VerlRow:
    """One verl row.

    Args:
        row: the raw row; fields other than ``question`` and ``answer`` are not carried over.
        split: ``train`` or ``test``.
        index: position within the split, from 0.
        ground_truth: what the reward function gets. ``answer`` is the final number, for a rule (style
            ``rule``); ``question`` is the question itself, for a reward model that scores the pair
            (question, response) (style ``model``).

    Raises:
        FieldError: a field is missing, is not text, or holds no final answer.
    """
    question = require_text(row, "question")
    answer = require_text(row, "answer")
    number = final_answer(answer)
    rule = ground_truth == "answer"
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": ABILITY,
        "reward_model": {"style": "rule" if rule else "model", "ground_truth": number if rule else question},
        "extra_info": {"split": split, "index": index, "question": question, "answer": answer},
    }
