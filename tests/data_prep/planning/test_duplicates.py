from __future__ import annotations

import tempfile
import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.options import Duplicates
from data_prep.planning import duplicates
from data_prep.planning.duplicates import DuplicateIndex, Repeats
from data_prep.planning.keys import KEY, keys_from, prompt_key

Row = tuple[str, str, str]  # prompt, ground truth, where it goes
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "A", " a", "b", "b b", "B  b", "c"]),
        st.sampled_from("123"),
        st.sampled_from(["train", "test", "-"]),
    ),
    max_size=60,
)


def _index(folder: Path, rows: list[Row], block: int = 7) -> DuplicateIndex:
    index = DuplicateIndex(folder / "index")
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        index.add(
            first, keys_from(prompt_key([{"role": "user", "content": text}], truth) for text, truth, _ in part)
        )
    return index


def _masks(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([row[2] == split for row in rows], bool) for split in ("train", "test"))


def _same(text: str, kind: Duplicates) -> str:
    return text if kind == "exact" else " ".join(text.split()).casefold()


def _naive(rows: list[Row], kind: Duplicates) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids: repeats in train, repeats in test, train rows in test, test rows in train."""
    repeats: dict[str, list[int]] = {"train": [], "test": [], "-": []}
    seen: dict[str, set[str]] = defaultdict(set)
    for row, (text, _, split) in enumerate(rows):
        if _same(text, kind) in seen[split]:
            repeats[split].append(row)
        seen[split].add(_same(text, kind))
    shared = [
        [row for row, (text, _, split) in enumerate(rows) if split == ours and _same(text, kind) in seen[others]]
        for ours, others in (("train", "test"), ("test", "train"))
    ]
    return repeats["train"], repeats["test"], shared[0], shared[1]


# One partition is read whole, and in pieces.
@pytest.mark.parametrize("at_once", [1 << 18, 5])
@given(rows=ROWS)
@settings(max_examples=40)
def test_what_a_dictionary_of_all_rows_finds(at_once: int, rows: list[Row]) -> None:
    train, test = _masks(rows)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_ROWS_AT_ONCE", at_once)
        patch.setattr(duplicates, "_PARTITIONS", 2)
        patch.setattr(duplicates, "_BUFFER_BYTES", 1000)
        index = _index(Path(folder), rows)
        figures = index.figures(train, test)
        for kind in ("exact", "normalized"):
            in_train, in_test, leaked, leaked_test = _naive(rows, kind)
            assert np.flatnonzero(index.repeats(kind, train)).tolist() == in_train
            assert np.flatnonzero(index.repeats(kind, test)).tolist() == in_test
            assert np.flatnonzero(index.leaked(kind, train, test)).tolist() == leaked
            counted = Repeats(len(in_train), len(in_test), len(leaked), len(leaked_test))
            assert getattr(figures, kind) == counted
    truths = defaultdict(set)
    for text, truth, split in rows:
        if split != "-":
            truths[text].add(truth)
    conflicting = [row for row, (text, _, split) in enumerate(rows) if split != "-" and len(truths[text]) > 1]
    assert figures.conflicting == len(conflicting)
    assert figures.examples == conflicting[:5]


def test_removing_what_is_found_leaves_nothing_to_find(tmp_path: Path) -> None:
    rows = [
        (f"{row % 37} {'X' if row % 5 else 'x'}", "1", "test" if row % 10 == 0 else "train") for row in range(500)
    ]
    train, test = _masks(rows)
    index = _index(tmp_path, rows, 100)
    train &= ~index.repeats("normalized", train)
    train &= ~index.leaked("normalized", train, test)
    figures = index.figures(train, test)
    assert figures.normalized.train == figures.normalized.leaked == figures.normalized.leaked_test == 0
    assert figures.exact.leaked == 0
    assert figures.normalized.test > 0


def test_memory_is_that_of_a_partition_even_where_all_rows_are_the_same(tmp_path: Path) -> None:
    count, block = 300_000, 10_000
    keys = np.zeros(block, KEY)
    keys["normal"] = 3
    index = DuplicateIndex(tmp_path / "index")
    mask = np.ones(count, bool)
    tracemalloc.start()
    try:
        for first in range(0, count, block):
            index.add(first, keys)
        assert index.repeats("exact", mask).sum() == count - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 14 MB of keys in one partition, cut to 262,144 rows.
    assert peak < 60e6
