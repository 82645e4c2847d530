from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.options import Options
from data_prep.planning.duplicates import DuplicateIndex
from data_prep.planning.keys import keys_from, prompt_key
from data_prep.planning.order import nowhere
from data_prep.planning.plan import Plan, make_plan
from data_prep.spool import Spool

SCHEMA = pa.schema([("prompt", pa.string())])


def _made(
    folder: Path,
    parts: list[list[str]],
    options: Options,
    *,
    sources: int | None = None,
    weights: list[Fraction | None] | None = None,
    dropped: np.ndarray | None = None,
) -> tuple[Plan, list[str], list[str]]:
    spool, index = Spool(folder / "spool", SCHEMA), DuplicateIndex(folder / "index")
    for part in parts:
        spool.next_part()
        for start in range(0, len(part), 3):
            texts = part[start : start + 3]
            first = spool.append(pa.record_batch([texts], schema=SCHEMA))
            index.add(first, keys_from(prompt_key([{"role": "user", "content": text}], "1") for text in texts))
    train_parts = len(parts) if sources is None else sources
    plan = make_plan(spool.part_rows, train_parts, weights or [None] * train_parts, options, dropped, index)
    train: list[str] = []
    test: list[str] = []
    for for_train, for_test in plan.emit(spool):
        train += for_train["prompt"].to_pylist() if for_train is not None else []
        test += for_test["prompt"].to_pylist() if for_test is not None else []
    if plan.ranks is not None:
        places = plan.ranks[plan.train | plan.test].tolist()
        assert len(set(places)) == len(places), "rows share a place"
        assert nowhere(plan.ranks) not in places
    for figures in plan.parts:
        ends = (
            figures.dropped + figures.duplicates + figures.leaked + figures.unused + figures.train + figures.test
        )
        assert figures.rows == ends, "a row is lost or counted twice"
    assert sum(figures.train for figures in plan.parts) == len(train)
    assert sum(figures.test for figures in plan.parts) == len(test)
    return plan, train, test


def _rows(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def test_without_options_rows_keep_their_order(tmp_path: Path) -> None:
    plan, train, test = _made(tmp_path, [_rows("a", 5), [], _rows("b", 4)], Options())
    assert train == _rows("a", 5) + _rows("b", 4)
    assert test == []
    assert plan.ranks is None


def test_a_curriculum_keeps_its_order_in_both_splits(tmp_path: Path) -> None:
    _, train, test = _made(tmp_path, [_rows("a", 100)], Options(test_size=Fraction(1, 10)))
    assert test == [f"a{number}" for number in range(9, 100, 10)]
    assert train == [text for text in _rows("a", 100) if text not in test]


def test_the_last_rows_of_all_sources(tmp_path: Path) -> None:
    _, train, test = _made(tmp_path, [_rows("a", 5), _rows("b", 2)], Options(test_last=3))
    assert (train, test) == (_rows("a", 4), ["a4", "b0", "b1"])


def test_a_shuffle_depends_on_the_seed_alone(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate([1, 1, 2]):
        (tmp_path / str(number)).mkdir()
        _, train, test = _made(tmp_path / str(number), [_rows("a", 60)], Options(shuffle=seed, test_size=6))
        assert sorted(train + test) == sorted(_rows("a", 60))
        assert len(test) == 6
        found.append((train, test))
    assert found[0] == found[1] != found[2]
    assert found[0][0] != sorted(found[0][0], key=lambda text: int(text[1:]))


def test_test_files_keep_their_order_and_come_whole(tmp_path: Path) -> None:
    _, train, test = _made(tmp_path, [_rows("a", 40), _rows("t", 9), _rows("u", 2)], Options(shuffle=3), sources=1)
    assert sorted(train) == sorted(_rows("a", 40))
    assert test == _rows("t", 9) + _rows("u", 2)


def test_a_blend_takes_the_first_rows_of_each_source_in_turn(tmp_path: Path) -> None:
    plan, train, _ = _made(
        tmp_path, [_rows("a", 30), _rows("b", 30)], Options(), weights=[Fraction(1, 4), Fraction(3, 4)]
    )
    assert [text for text in train if text[0] == "b"] == _rows("b", 30)
    assert [text for text in train if text[0] == "a"] == _rows("a", 10)
    assert plan.parts[0].unused == 20
    for start in range(0, 40, 4):
        assert sum(text[0] == "a" for text in train[start : start + 4]) == 1


def test_a_shuffled_blend_draws_from_all_rows_of_a_source(tmp_path: Path) -> None:
    parts = [_rows("a", 1000), _rows("b", 100)]
    _, train, _ = _made(tmp_path, parts, Options(shuffle=1), weights=[Fraction(1), Fraction(1)])
    chosen = [int(text[1:]) for text in train if text[0] == "a"]
    # It ends where the small source has no row for its next turn.
    assert len(chosen) == len(set(chosen)) == 101
    assert 25 < sum(number >= 500 for number in chosen) < 75
    # Drawn and ordered by different numbers: the small source is spread over the whole.
    assert 25 < sum(text[0] == "a" for text in train[:100]) < 75


def test_duplicates_go_before_the_blend_and_leakage_stays_out_of_it(tmp_path: Path) -> None:
    parts = [["x", "x", "t", *_rows("a", 10)], _rows("b", 11), ["t", "t", "T "]]
    options = Options(remove_duplicates="exact", remove_leakage="normalized")
    plan, train, test = _made(tmp_path, parts, options, sources=2, weights=[Fraction(1), Fraction(1)])
    assert test == ["t", "T "]
    assert sorted(train) == sorted(["x", *_rows("a", 10), *_rows("b", 11)])
    assert [part.duplicates for part in plan.parts] == [1, 0, 1]
    assert [part.leaked for part in plan.parts] == [1, 0, 0]
    assert plan.repeats.normalized.leaked == 0
    assert plan.repeats.normalized.test == 1


def test_leakage_by_a_split_of_the_rows_is_told_and_removed(tmp_path: Path) -> None:
    rows = [*_rows("a", 9), "a0"]
    (tmp_path / "kept").mkdir()
    kept, train, _ = _made(tmp_path / "kept", [rows], Options(test_last=1))
    assert (len(train), kept.repeats.exact.leaked, kept.repeats.exact.leaked_test) == (9, 1, 1)
    removed, train, test = _made(tmp_path, [rows], Options(test_last=1, remove_leakage="exact"))
    assert (train, test) == (_rows("a", 9)[1:], ["a0"])
    assert (removed.parts[0].leaked, removed.repeats.exact.leaked) == (1, 0)


def test_dropped_rows_count_for_nothing(tmp_path: Path) -> None:
    dropped = np.zeros(10, bool)
    dropped[:5] = True
    plan, train, test = _made(tmp_path, [_rows("a", 10)], Options(test_size=1), dropped=dropped)
    assert train + test == _rows("a", 10)[5:]
    assert plan.parts[0].dropped == 5


@pytest.mark.parametrize(
    ("parts", "sources", "weights", "options", "message"),
    [
        ([[]], 1, None, {}, "no row is left for training: 0 rows"),
        ([["a", "a"]], 1, None, {"test_size": 1, "remove_duplicates": "exact"}, "1 removed by --remove-dup"),
        ([["a", "b"]], 1, None, {"test_last": 2}, "--test-last 2 takes 2 of 2 rows"),
        ([["a"], []], 1, None, {}, "no row is left for the test split"),
        ([["a"], ["A"]], 1, None, {"remove_leakage": "normalized"}, "1 removed by --remove-leakage"),
        ([["a"], []], 2, [Fraction(1), Fraction(2)], {}, "--weight 2 for source 2 of 2, of which no row is left"),
        ([["a"], ["b"]], 2, [Fraction(1), None], {}, "some sources have a weight"),
    ],
)
def test_a_split_without_rows_is_refused_with_the_numbers(
    tmp_path: Path,
    parts: list[list[str]],
    sources: int,
    weights: list[Fraction | None],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(DataError) as caught:
        _made(tmp_path, parts, Options(**options), sources=sources, weights=weights)
    assert message in str(caught.value)


PARTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "B", "c", "d e", "d  e"]), min_size=1, max_size=20), min_size=1, max_size=3
)


@given(parts=PARTS, data=st.data())
@settings(max_examples=60)
def test_every_row_ends_somewhere_whatever_is_asked_for(parts: list[list[str]], data: st.DataObject) -> None:
    kinds = st.sampled_from([None, "exact", "normalized"])
    options = Options(
        shuffle=data.draw(st.none() | st.integers(0, 9)),
        remove_duplicates=data.draw(kinds),
        remove_leakage=data.draw(kinds),
        test_size=data.draw(st.none() | st.just(1) | st.just(Fraction(1, 3))),
    )
    weights = data.draw(
        st.none() | st.lists(st.integers(1, 5).map(Fraction), min_size=len(parts), max_size=len(parts))
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan, train, test = _made(Path(folder), parts, options, weights=weights)
        except DataError as error:
            if "no row is left" in str(error):
                return
            raise
    given_rows = [text for part in parts for text in part]
    assert all((train + test).count(text) <= given_rows.count(text) for text in given_rows)
    if options.remove_leakage == "normalized":
        assert not {text.lower() for text in train} & {text.lower() for text in test}
    if options.remove_duplicates == "exact":
        assert len(set(train)) == len(train)
    assert (plan.ranks is None) == (options.shuffle is None and (weights is None or len(parts) == 1))
