from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.planning import order
from data_prep.planning.order import drawn, emit, nowhere, shuffled, splitmix64, unranked
from data_prep.spool import Spool

SCHEMA = pa.schema([("id", pa.int64()), ("items", pa.list_(pa.struct([("text", pa.string())])))])

# Recorded: a seed gives the same order with the next version, too.
RECORDED = [12035550249420947055, 12935080325729570654, 7141179953334974231]


def _spool(folder: Path, sizes: list[int], text: int = 1) -> Spool:
    spool = Spool(folder, SCHEMA)
    spool.next_part()
    for number, size in enumerate(sizes):
        ids = list(range(spool.rows, spool.rows + size))
        items = [[{"text": f"{row}" * text}] * (row % 3) for row in ids]
        spool.append(pa.record_batch([ids, pa.array(items, SCHEMA.field(1).type)], schema=SCHEMA))
        if number % 3 == 2:
            spool.next_part()
    return spool


def _ids(spool: Spool, keep: np.ndarray, ranks: np.ndarray | None) -> list[int]:
    found = []
    for batch, ids in emit(spool, keep, ranks):
        assert batch.schema == SCHEMA
        assert batch["id"].to_pylist() == ids.tolist()
        assert [len(items) for items in batch["items"].to_pylist()] == [row % 3 for row in ids]
        found += ids.tolist()
    return found


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
@settings(max_examples=40)
def test_any_order_comes_out_as_sorting_by_rank_gives_it(sizes: list[int], data: st.DataObject) -> None:
    rows = sum(sizes)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), bool)
    step = data.draw(st.integers(1, 5))
    ranks = np.array(data.draw(st.permutations(range(rows))), np.uint32) * np.uint32(step)
    wanted = sorted(np.flatnonzero(keep).tolist(), key=lambda row: ranks[row])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Small enough for buckets in buckets.
        patch.setattr(order, "_BUCKET_BYTES", data.draw(st.sampled_from([60, 400, 10**6])))
        patch.setattr(order, "_MOST_BUCKETS", 3)
        patch.setattr(order, "_BATCH_ROWS", 7)
        spool = _spool(Path(folder) / "spool", sizes)
        assert _ids(spool, keep, ranks) == wanted
        assert _ids(spool, keep, None) == np.flatnonzero(keep).tolist()
        assert {path.suffix for path in spool.folder.iterdir()} == {".arrows"}, "buckets are left behind"


def test_rows_of_very_different_size_are_split_until_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_BUCKET_BYTES", 1 << 16)
    spool = _spool(tmp_path / "spool", [200])
    big = pa.array([[{"text": "x" * 30_000}]] * 20, SCHEMA.field(1).type)
    spool.append(pa.record_batch([list(range(200, 220)), big], schema=SCHEMA))
    ranks = np.arange(220, dtype=np.uint32)[::-1].copy()
    sizes, found = [], []
    for batch, ids in emit(spool, np.ones(220, bool), ranks):
        sizes.append(batch.nbytes)
        found += ids.tolist()
    assert found == list(range(219, -1, -1))
    assert max(sizes) < 3 << 16, "the big rows, next to each other, came in one batch"


@given(st.lists(st.booleans(), max_size=300), st.integers(-5, 5))
def test_a_shuffle_is_sorting_by_the_hash_of_the_id(kept: list[bool], seed: int) -> None:
    keep = np.array(kept, bool)
    ids = np.flatnonzero(keep)
    hashes = splitmix64(seed, ids.astype(np.uint64)).tolist()
    wanted = [row for _, row in sorted(zip(hashes, ids.tolist(), strict=True))]
    with pytest.MonkeyPatch.context() as patch:
        for at_once in (1 << 20, 7):
            patch.setattr(order, "_SORTED_AT_ONCE", at_once)
            ranks = shuffled(keep, seed)
            assert (ranks[~keep] == nowhere(ranks)).all()
            assert sorted(ids.tolist(), key=lambda row: ranks[row]) == wanted
            assert sorted(ranks[keep].tolist()) == list(range(len(ids)))


def test_the_hash_is_the_same_everywhere_and_seeds_have_nothing_in_common() -> None:
    ids = np.arange(3, dtype=np.uint64)
    assert splitmix64(0, ids).tolist() == RECORDED
    orders = [np.argsort(shuffled(np.ones(1000, bool), seed)) for seed in range(4)]
    for one in range(4):
        for other in range(one):
            assert np.mean(orders[one] == orders[other]) < 0.02
            assert np.mean(np.roll(orders[one], 1) == orders[other]) < 0.02


def test_a_sample_has_its_size_and_covers_all() -> None:
    chosen = drawn(10_000, 1000, 5)
    assert chosen.sum() == 1000
    assert all(60 < part.sum() < 140 for part in np.split(chosen, 10))


def test_ranks_take_four_bytes() -> None:
    assert unranked(1000).nbytes == 4000
    assert unranked(0).tolist() == []
