"""MATH rows ({"problem", "solution"}), as verl's examples/data_preprocess/math_dataset.py (0.9.1) reads them."""

from __future__ import annotations

import re

from data_prep.errors import FieldError
from data_prep.formats.example import Example, Format
from data_prep.formats.text import answer_text, require_text, rest, shown
from data_prep.reading.block import RawRow

_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
_BOXED = re.compile(r"\\boxed(?![A-Za-z])\s*")
_FBOX = re.compile(r"\\fbox(?![A-Za-z])\s*")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def boxed_answer(solution: str) -> str:
    r"""What stands in the last ``\boxed{}``, braces nested as they are; ``\boxed 5`` is 5.

    Without any, the last ``\fbox{}`` counts, as in verl/utils/reward_score/math_reward.py (0.9.1).

    Raises:
        FieldError: there is none, it is empty, or its brace is never closed.
    """
    boxes = list(_BOXED.finditer(solution)) or list(_FBOX.finditer(solution))
    if not boxes:
        raise FieldError("solution", f"expected a \\boxed{{}} answer, got {shown(solution[-40:])}")
    inner = solution[boxes[-1].end() :]
    answer = _braced(inner) if inner.startswith("{") else _unbraced(inner)
    if not answer:
        raise FieldError(
            "solution", f"nothing in the last \\boxed, got {shown(solution[boxes[-1].start() :][:40])}"
        )
    return answer


def _braced(inner: str) -> str:
    depth = 0
    for brace in _BRACES.finditer(inner):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if not depth:
            return inner[1 : brace.start()].strip()
    raise FieldError("solution", f"the brace of the last \\boxed is never closed: {shown(inner[:40])}")


def _unbraced(inner: str) -> str:
    line, dollar, _ = inner.partition("\n")[0].partition("$")
    if dollar:
        return line.strip()
    word = line.split(maxsplit=1)
    return word[0].rstrip(".,;") if word else ""


def _to_example(row: RawRow) -> Example:
    problem = require_text(row, "problem")
    solution = require_text(row, "solution")
    own = row.get("answer")
    answer = boxed_answer(solution) if own is None else answer_text(own, "answer")
    metadata = rest(row, "problem", "solution", "answer")
    return Example([{"role": "user", "content": problem}], answer, solution, None, metadata)


MATH = Format(
    name="math",
    fields="'problem', 'solution' with \\boxed{ANSWER} (or 'answer')",
    matches=lambda row: "problem" in row and "solution" in row,
    to_example=_to_example,
    data_source="DigitalLearningGmbH/MATH-lighteval",
    ability="math",
    template="{prompt} " + _INSTRUCTION,
)
