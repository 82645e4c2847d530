"""Rules on the data files: FIELD_CASES C18, C19 and the exchanged files of the first script."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from model_folders import PATHS, project
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from launch.checks.data import check_data
from launch.config import load_job
from launch.finding import Finding


def row(text: str = "q", split: str | None = "train", index: Any = 0) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": text}],
        "data_source": "d",
        "reward_model": {"style": "model", "ground_truth": text},
        "extra_info": {"split": split, "index": index},
    }


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with 600 rows to train on and 20 to validate."""
    write(tmp_path / "data/train.parquet", [row(index=number) for number in range(600)])
    write(tmp_path / "data/test.parquet", [row(split="test", index=number) for number in range(20)])
    return tmp_path


def findings(root: Path, *assignments: str) -> list[Finding]:
    return [*check_data(load_job("grpo", None, assignments), root)]


def ids(root: Path, *assignments: str) -> set[str]:
    return {f"{finding.severity}:{finding.id}" for finding in findings(root, *assignments)}


def test_good_data_passes(root: Path):
    assert findings(root) == []


def test_what_the_toolkit_writes_passes(tmp_path: Path):
    from data_prep.convert import main

    convert = ["sample:gsm8k", "--out", str(tmp_path / "data")]
    assert main([*convert, "--ground-truth", "question"]) == 0
    assert findings(tmp_path) == []
    (tmp_path / "mine.py").touch()
    of_a_function = "reward={kind: function, function: mine.py}"
    told = findings(tmp_path, of_a_function)
    assert {(finding.id, finding.severity) for finding in told} == {("data-style", "warning")}
    assert [finding.message.partition(":")[0] for finding in told] == ["data.train", "data.val"]
    assert "--ground-truth answer" in told[0].remedy

    assert main(convert) == 0
    assert findings(tmp_path, of_a_function) == []
    told = findings(tmp_path)
    assert {(finding.id, finding.severity) for finding in told} == {("data-style", "warning")}
    assert "400 of 400 sampled rows" in told[0].message
    assert "--ground-truth question" in told[0].remedy


def test_a_question_as_ground_truth_is_one_whatever_its_style(root: Path):
    """Parquet files of verl's examples say style=rule, and so may those that are written for a reward model."""
    question = "what is seven times six?"
    good = {**row(question), "reward_model": {"style": "rule", "ground_truth": question}}
    answer = {**row(question), "reward_model": {"style": "rule", "ground_truth": "six"}}
    write(root / "data/train.parquet", [good] * 300)
    assert ids(root) == set()
    write(root / "data/train.parquet", [*[good] * 200, *[answer] * 200])
    assert ids(root) == set()
    write(root / "data/train.parquet", [*[good] * 100, *[answer] * 200])
    assert ids(root) == {"warning:data-style"}


def test_missing_files_are_left_to_check_files(tmp_path: Path):
    (tmp_path / "data/test.parquet").mkdir(parents=True)
    assert findings(tmp_path) == []


def test_too_few_rows_for_a_step(root: Path):
    (found,) = findings(root, "data.train_batch_size=1024")
    assert found.severity == "error"
    assert found.message == (
        "data.train has 600 rows, less than data.train_batch_size=1024: no batch is full and nothing trains"
    )
    assert ids(root, "data.train_batch_size=600") == set()


def test_steps_that_are_never_reached(root: Path):
    assert ids(root, "algorithm.total_steps=4", "algorithm.epochs=2") == set()
    (found,) = findings(root, "algorithm.total_steps=5", "algorithm.epochs=2")
    assert "600 rows // data.train_batch_size=256 * algorithm.epochs=2 = 4 steps" in found.message
    assert found.remedy == "set algorithm.epochs=3, or algorithm.total_steps=4"
    assert found.severity == "warning"


def test_rows_of_all_files_count(root: Path):
    write(root / "data/more.parquet", [row(index=number) for number in range(500)])
    files = "data.train=[data/train.parquet,data/more.parquet]"
    assert ids(root, files, "data.train_batch_size=1024") == set()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
        (b'{"prompt": "q"}\n', "is no parquet file"),
        (b"PAR1" + bytes(99), "is a parquet file that is cut off"),
        (b"PAR1", "is a parquet file that is cut off"),
        (b"PAR1" + bytes(99) + b"\7\0\0\0PAR1", "not readable as parquet"),
    ],
)
def test_files_that_are_no_parquet(root: Path, content: bytes, told: str):
    (root / "data/train.parquet").write_bytes(content)
    (found,) = findings(root)
    assert (found.id, found.severity) == ("data-format", "error")
    assert told in found.message
    assert f"data.train: {root}/data/train.parquet" in found.message


@pytest.mark.parametrize(
    ("version", "name", "told"),
    [
        ("0.9.1", "x.jsonl", {"warning:data-format"}),
        ("0.9.1", "x.json", {"warning:data-format"}),
        ("0.6.1", "x.jsonl", {"error:data-format"}),
        ("0.9.1", "x.pq", {"error:data-format"}),
        ("0.6.1", "x.pq", set()),
    ],
)
def test_versions_take_files_by_their_names(root: Path, version: str, name: str, told: set[str]):
    (root / "data/train.parquet").rename(root / "data" / name)
    found = ids(root, f"data.train=[data/{name}]", f"engine.verl={version}", "engine.mode=sync")
    assert found == told


def test_what_is_not_checked_of_json_is_said(root: Path):
    (root / "data/train.parquet").rename(root / "data/x.jsonl")
    (found,) = findings(root, "data.train=[data/x.jsonl]")
    assert "its schema, number of rows, prompt lengths and splits are not checked here" in found.message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": "a plain string"}, "column 'prompt' is string; expected a list of {role, content}"),  # C18
        ({"reward_model": {"style": "rule"}}, "expected a struct with ground_truth"),
        ({"data_source": 3}, "column 'data_source' is int64"),
    ],
)
def test_c18_c19_schema(root: Path, changes: dict[str, Any], told: str):
    write(root / "data/train.parquet", [{**row(), **changes} for _ in range(300)])
    (found,) = findings(root)
    assert (found.id, found.severity) == ("data-schema", "error")
    assert told in found.message


def test_c19_types_of_files_that_are_joined(root: Path):
    """datasets.concatenate_datasets refuses them, hours later."""
    write(root / "data/more.parquet", [row(index=str(number)) for number in range(300)])
    (found,) = findings(root, "data.train=[data/train.parquet,data/more.parquet]")
    assert (found.id, found.severity) == ("data-types", "error")
    assert "extra_info.index is int64 and string" in found.message
    assert ids(root, "data.train=[data/more.parquet]") == {"warning:data-types"}  # train and val are not joined


def test_c19_columns_that_one_file_lacks_are_filled(root: Path):
    write(root / "data/more.parquet", [{**row(), "level": 3, "extra_info": None} for _ in range(300)])
    assert ids(root, "data.train=[data/train.parquet,data/more.parquet]") == set()


def test_c18_rows_that_verl_would_drop_in_silence(root: Path):
    bad = {**row(), "prompt": [{"role": "user", "content": None}]}
    write(root / "data/train.parquet", [row(), bad, *[row() for _ in range(300)]])
    (found,) = findings(root)
    assert (found.id, found.severity) == ("data-bad-rows", "warning")
    assert "1 of 302 sampled rows" in found.message
    assert "row 1: prompt[0].content is empty" in found.message
    write(root / "data/train.parquet", [{**row(), "data_source": ""} for _ in range(300)])
    assert ids(root) == {"error:data-bad-rows"}


def test_c18_prompts_that_are_too_long_are_counted_apart(root: Path):
    """Tokens are counted only where bytes do not settle it."""
    write(root / "data/train.parquet", [*[row("a b c " * 10)] * 200, *[row("a b " * 100)] * 100])
    (found,) = findings(root, "data.max_prompt_length=64")
    assert (found.id, found.severity) == ("data-prompt-length", "warning")
    assert "100 of 300 sampled prompts" in found.message
    assert "assuming 4 characters for a token" in found.message
    assert ids(root, "data.max_prompt_length=400") == set()


def test_c18_a_data_set_without_a_prompt_that_fits(root: Path):
    project(root)
    words = Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.save(str(root / "models/policy/tokenizer.json"))
    write(root / "data/train.parquet", [row("a " * 65)] * 300)
    (found,) = findings(root, *PATHS, "data.max_prompt_length=64")
    assert (found.id, found.severity) == ("data-prompt-length", "error")
    assert "300 of 300 sampled prompts" in found.message
    assert "without the chat template's own tokens" in found.message
    assert ids(root, *PATHS, "data.max_prompt_length=65") == set()
    # 260 characters would be 65 tokens at four each: an assumption stops no job.
    (root / "models/policy/tokenizer.json").write_text("{")
    assert ids(root, *PATHS, "data.max_prompt_length=32") == {"warning:data-prompt-length"}


def test_files_that_were_exchanged(root: Path):
    """The first script trained on test_data.parquet and validated on train_data.parquet."""
    train, test = root / "data/train.parquet", root / "data/test.parquet"
    train.rename(root / "data/train_data.parquet")
    test.rename(root / "data/test_data.parquet")
    exchanged = ("data.train=[data/test_data.parquet]", "data.val=[data/train_data.parquet]")
    assert ids(root, *exchanged, "data.train_batch_size=16", "actor.mini_batch_size=16") == {
        "warning:data-exchanged",
        "warning:data-split",
    }
    by_split = [f for f in findings(root, *exchanged, "data.train_batch_size=16") if f.id == "data-split"]
    assert [finding.message.partition(":")[0] for finding in by_split] == ["data.train", "data.val"]


def test_the_same_file_twice(root: Path):
    assert ids(root, "data.val=[data/train.parquet]") == {"warning:data-same", "warning:data-split"}
    assert "warning:data-same" in ids(root, "data.train=[data/train.parquet,data/train.parquet]")
    (root / "data/link.parquet").symlink_to(root / "data/train.parquet")
    assert "warning:data-same" in ids(root, "data.val=[data/link.parquet]")


def test_without_pyarrow_one_line_says_what_is_not_checked(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (found,) = findings(root, "data.train_batch_size=100000")
    assert (found.id, found.severity) == ("data-unchecked", "warning")
    assert "there is no pyarrow in this Python" in found.message
    assert str(root / "data/test.parquet") in found.message


def test_a_file_of_any_size_is_sampled(root: Path):
    rows = pa.Table.from_pylist([row()] * 1000)
    with pq.ParquetWriter(root / "data/train.parquet", rows.schema) as writer:
        for _ in range(20):
            writer.write_table(rows)
        writer.write_table(pa.Table.from_pylist([{**row(), "data_source": ""}] * 1000, schema=rows.schema))
    (found,) = findings(root)
    # 64 rows of each of eight row groups, the last among them.
    assert found.message.startswith(f"data.train: 63 of 504 sampled rows of {root}/data/train.parquet")
    assert "row 20000: data_source is empty" in found.message
