"""Synthetic JSONL like GSM8K's, of any size: no two prompts are the same."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

_SAMPLE = Path(__file__).parents[3] / "data_prep" / "samples" / "gsm8k" / "train.jsonl"
_NUMBER = re.compile(r"\d+")


def make_jsonl(path: Path, size: int, *, seed: int = 0) -> int:
    """Write at least `size` bytes of rows to `path`, by way of a part file; returns how many rows."""
    rng = random.Random(seed)
    shipped = [json.loads(line) for line in _SAMPLE.read_text(encoding="utf-8").splitlines()]
    part = path.with_name(f"{path.name}.part")
    rows = written = 0
    with part.open("wb") as file:
        while written < size:
            row = shipped[rng.randrange(len(shipped))]
            # Other numbers in each, as a data set of that size would have.
            question = _NUMBER.sub(lambda found: f"{rng.random() * 10 ** len(found.group()):.0f}", row["question"])
            question = f"{question} ({rows})"
            line = json.dumps({"question": question, "answer": row["answer"]}, ensure_ascii=False)
            written += file.write(line.encode() + b"\n")
            rows += 1
    part.replace(path)
    return rows
