"""verl's own data set class and reward manager read what convert writes, from every input format."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_tokenizer import CHATML

from data_prep import convert

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GSM8K = 'Let\'s think step by step and output the final answer after "####".'
MATH = "Let's think step by step and output the final answer within \\boxed{}."


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of user and assistant in turns."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


@dataclass(frozen=True)
class Case:
    """Rows of an input format, and what must reach the model and the reward function.

    Attributes:
        file: the name says how it is written.
        truths: of each row; where it is no text, the text that arrives is its JSON.
    """

    format: str
    file: str
    rows: list[dict[str, Any]]
    prompts: list[list[dict[str, str]]]
    truths: list[Any]
    options: list[str] = field(default_factory=list)
    data_source: str | None = None


CASES = {
    "gsm8k": Case(
        "gsm8k",
        "gsm8k.jsonl",
        [
            {"question": "1 + 1?", "answer": "It is 2.\n#### 2"},
            {"question": "漢字 \u2028?", "answer": "#### 1,200"},
        ],
        [user(f"1 + 1? {GSM8K}"), user(f"漢字 \u2028? {GSM8K}")],
        ["2", "1200"],
        data_source="openai/gsm8k",
    ),
    "model": Case(
        "gsm8k",
        "pairs.jsonl.gz",
        [{"question": "1 + 1?", "answer": "#### 2"}, {"question": " two\n\nlines ", "answer": "#### 3"}],
        [user(f"1 + 1? {GSM8K}"), user(f" two\n\nlines  {GSM8K}")],
        ["1 + 1?", " two\n\nlines "],
        ["--style", "model"],
    ),
    "math": Case(
        "math",
        "math.json",
        [
            {"problem": "Half?", "solution": "So \\boxed{\\frac{1}{2}}.", "level": "Level 1"},
            {"problem": "x?", "solution": "First \\boxed{3}, then \\boxed{x^{2^{3}}}.", "level": "Level 5"},
        ],
        [user(f"Half? {MATH}"), user(f"x? {MATH}")],
        ["\\frac{1}{2}", "x^{2^{3}}"],
    ),
    "messages": Case(
        "messages",
        "chat.jsonl",
        [
            {"messages": said("a", "b", "c", "d"), "id": 7},
            {"messages": [{"role": "system", "content": "s"}, *said("a", "b")], "tools": [{"name": "t"}]},
        ],
        [said("a", "b", "c"), [{"role": "system", "content": "s"}, *user("a")]],
        ["d", "b"],
    ),
    "prompt_response": Case(
        "prompt_response",
        "pairs.csv",
        [{"prompt": 'a, "b"\nc', "response": "007"}, {"prompt": "é", "response": "1.50"}],
        [user('a, "b"\nc'), user("é")],
        ["007", "1.50"],
        ["--data-source", "mine"],
        data_source="mine",
    ),
    "alpaca": Case(
        "alpaca",
        "alpaca.json",
        [{"instruction": "Do", "input": "", "output": "x"}, {"instruction": "Do", "input": "this", "output": "y"}],
        [user("Do"), user("Do\n\nthis")],
        ["x", "y"],
    ),
    "sharegpt": Case(
        "sharegpt",
        "share.jsonl",
        [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}], "system": "s"}] * 2,
        [[{"role": "system", "content": "s"}, *user("q")]] * 2,
        ["r", "r"],
    ),
    "preference": Case(
        "preference",
        "pairs.parquet",
        [
            {"prompt": "q", "chosen": "good", "rejected": "bad"},
            {"prompt": "r", "chosen": "better", "rejected": "worse"},
        ],
        [user("q"), user("r")],
        ["good", "better"],
    ),
    "nemo_gym": Case(
        "nemo_gym",
        "gym.jsonl",
        [
            {"responses_create_params": {"input": user("q"), "tools": [{"name": "t"}]}, "expected_answer": "42"},
            {"responses_create_params": {"input": "text"}, "unit_tests": {"a": [1, None]}, "limit": 1.50},
        ],
        [user("q"), user("text")],
        ["42", {"unit_tests": {"a": [1, None]}, "limit": 1.5}],
    ),
    "verl": Case(
        "verl",
        "verl.parquet",
        [
            {
                "data_source": "own",
                "prompt": user(text),
                "reward_model": {"style": "rule", "ground_truth": truths},
                "extra_info": {"split": "train", "index": 5, "level": 3},
            }
            for text, truths in (("q", ["1", "2"]), ("r", []))
        ],
        [user("q"), user("r")],
        [["1", "2"], []],
        data_source="own",
    ),
    "map": Case(
        "map",
        "mine.jsonl",
        [
            {"ask": {"text": "q"}, "truths": [{"value": 12345678901234567890}]},
            {"ask": {"text": "r"}, "truths": [{"value": "0"}]},
        ],
        [user("q"), user("r")],
        ["12345678901234567890", "0"],
        ["--map", "prompt=ask.text", "--map", "ground_truth=truths[0].value"],
    ),
}


def write(folder: Path, case: Case) -> Path:
    """The input file of a case."""
    path = folder / case.file
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in case.rows)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(case.rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(case.rows, indent=1), encoding="utf-8")
    elif path.suffix == ".csv":
        cells = [[*case.rows[0]], *([*row.values()] for row in case.rows)]
        quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
        path.write_text("\r\n".join(quoted), encoding="utf-8")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The train.parquet of each case."""
    folder = tmp_path_factory.mktemp("converted")
    files = {}
    for name, case in CASES.items():
        out = folder / name
        argv = [str(write(folder, case)), "--out", str(out), "--format", case.format, "--quiet", *case.options]
        assert convert.main(argv) == 0, name
        files[name] = out / "train.parquet"
    return files


def python_of(verl: str) -> str:
    """The Python of the environment with this version."""
    if verl == "0.9.1":
        return sys.executable
    python = Path(os.environ.get("VERL061_PYTHON") or ROOT / ".envs/verl-0.6.1/bin/python")
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make env-061`, or set VERL061_PYTHON to such a Python")
    return str(python)


def templated(prompt: list[dict[str, str]]) -> str:
    """What the model is given: CHATML, written out."""
    parts = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in prompt]
    return "".join(parts) + "<|im_start|>assistant\n"


def arrives(truth: Any, expected: Any) -> bool:
    """Text arrives as it was, and so does what a verl file holds; other values as their JSON text."""
    return bool(
        truth == expected or (isinstance(truth, str) and truth == json.dumps(expected, separators=(",", ":")))
    )


@pytest.mark.parametrize("verl", ["0.9.1", "0.6.1"])
def test_verl_reads_every_format(converted: dict[str, Path], tmp_path: Path, verl: str) -> None:
    assert "add_generation_prompt" in CHATML
    command = [python_of(verl), str(HERE / "verl_reads.py"), str(tmp_path)]
    command += [f"{name}={path}" for name, path in converted.items()]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found.keys() == converted.keys()
    for name, case in CASES.items():
        got = found[name]
        assert got["prompts"] == case.prompts, name
        assert got["written"] == [templated(prompt) for prompt in case.prompts], name
        assert got["index"] == [*range(len(case.rows))], name
        assert all(map(arrives, got["ground_truths"], case.truths)), (name, got["ground_truths"])
        assert set(got["responses"]) == {"an answer"}, name
        assert got["kept"] == got["fits"] != [], name
        if case.data_source is not None:
            assert set(got["data_sources"]) == {case.data_source}, name
    assert json.loads(found["math"]["metadata"][1])["level"] == "Level 5"
    assert json.loads(found["messages"]["metadata"][1])["tools"] == [{"name": "t"}]
    assert json.loads(found["preference"]["metadata"][0])["rejected"] == "bad"
    gym = json.loads(found["nemo_gym"]["metadata"][0])
    assert gym["responses_create_params"]["tools"] == [{"name": "t"}]
    assert gym["expected_answer"] == "42"


def test_files_of_every_format_are_joined(converted: dict[str, Path]) -> None:
    """verl joins the files of data.train_files; only a verl file may bring columns and types of its own."""
    schemas = {name: pq.read_schema(path) for name, path in converted.items() if name != "verl"}
    assert len(set(schemas.values())) == 1
