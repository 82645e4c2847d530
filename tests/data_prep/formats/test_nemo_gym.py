"""Rows of six NeMo Gym environments.

The files in nemo_gym/ are rows of the example data of nemo-gym 0.7.0 (Apache-2.0), unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.formats.registry import FORMATS, detect
from data_prep.formats.text import json_text
from data_prep.reading.lines import parse_object, record

FILES = sorted((Path(__file__).parent / "nemo_gym").glob("*.jsonl"))


def test_there_are_six_environments() -> None:
    assert len(FILES) == 6


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_of_a_row_is_lost(file: Path) -> None:
    lines = file.read_bytes().splitlines()
    assert lines
    assert detect([record(number, line) for number, line in enumerate(lines)], file.name) is FORMATS["nemo_gym"]
    for line in lines:
        made = FORMATS["nemo_gym"].to_example(parse_object(line))
        row = json.loads(line)
        given = row["responses_create_params"].pop("input")
        assert made.prompt == [{"role": item["role"], "content": item["content"]} for item in given]
        assert json.loads(json_text(made.metadata)) == row
        verifier = {name: value for name, value in row.items() if name != "responses_create_params"}
        assert made.ground_truth is not None
        if "expected_answer" in row:
            assert made.ground_truth == row["expected_answer"]
        else:
            assert json.loads(made.ground_truth) == row.get("ground_truth", verifier)
