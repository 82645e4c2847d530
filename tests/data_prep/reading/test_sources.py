from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.errors import DataError
from data_prep.reading.sources import resolve


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def test_sample_and_standard_input() -> None:
    sample = resolve("sample:gsm8k")
    assert (names(sample.train), names(sample.test), sample.name) == (["train.jsonl"], ["test.jsonl"], "gsm8k")
    assert resolve("-").train == ("-",)
    with pytest.raises(DataError, match="Shipped: sample:gsm8k"):
        resolve("sample:none")


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        (["train.jsonl"], ["train.jsonl"], []),
        (["train.jsonl.gz", "test.jsonl.gz", "validation.jsonl"], ["train.jsonl.gz"], ["test.jsonl.gz"]),
        (
            [
                "train-00001-of-00002.parquet",
                "train-00000-of-00002.parquet",
                "test-00000-of-00001.parquet",
                "x.md",
            ],
            ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
            ["test-00000-of-00001.parquet"],
        ),
        (["data/train.csv", "data/test.csv", "README.md"], ["train.csv"], ["test.csv"]),
        (["train.parquet", "training.jsonl"], ["train.parquet"], []),
    ],
)
def test_folders(tmp_path: Path, files: list[str], train: list[str], test: list[str]) -> None:
    folder = tmp_path / "math"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    found = resolve(str(folder))
    assert (names(found.train), names(found.test), found.name) == (train, test, "math")


def test_folders_that_are_not_clear(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train\.jsonl"):
        resolve(str(tmp_path))
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "train.parquet").touch()
    with pytest.raises(DataError, match=r"train is there as \.jsonl, \.parquet"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x/mcqa.jsonl", "mcqa"),
        ("x/mcqa.jsonl.gz", "mcqa"),
        ("x/train.jsonl", "x"),
        ("x/test-00000-of-00002.parquet", "x"),
        ("x/Data.json.zst", "x"),
        ("x/v1.5.csv", "v1.5"),
        pytest.param("x/a\udcff.jsonl", "a\\udcff", id="not UTF-8"),
    ],
)
def test_names(path: str, name: str) -> None:
    assert resolve(path).name == name
