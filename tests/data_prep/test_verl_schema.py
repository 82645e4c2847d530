"""Which files verl can join, held against what ``datasets`` does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.verl_schema import unlike

S = pa.string()
PAIRS: list[tuple[tuple[pa.DataType, Any], tuple[pa.DataType, Any]]] = [
    ((S, "a"), (S, "b")),
    ((S, "a"), (pa.large_string(), "a")),
    ((pa.int64(), 1), (S, "a")),
    ((pa.int64(), 1), (pa.int32(), 1)),
    ((pa.int64(), 1), (pa.null(), None)),
    ((pa.null(), None), (pa.int64(), 1)),
    ((pa.null(), None), (pa.struct({"a": S}), {"a": "b"})),
    ((pa.struct({"a": S}), {"a": "b"}), (pa.null(), None)),
    ((pa.struct({"a": S}), {"a": "b"}), (pa.struct({"a": S, "b": S}), {"a": "b", "b": "c"})),
    ((pa.struct({"a": S, "b": S}), {"a": "b"}), (pa.struct({"b": S, "a": S}), {"a": "b"})),
    ((pa.struct({"a": pa.int64()}), {"a": 1}), (pa.struct({"a": pa.null()}), {"a": None})),
    ((pa.struct({"a": pa.int64()}), {"a": 1}), (pa.struct({"a": S}), {"a": "1"})),
    ((pa.struct({"a": pa.struct({"b": S})}), None), (pa.struct({"a": pa.struct({"b": pa.int8()})}), None)),
    ((pa.list_(pa.struct({"r": S, "c": S})), []), (pa.list_(pa.struct({"c": S, "r": S})), [])),
    ((pa.list_(pa.struct({"r": S, "c": S})), []), (pa.list_(pa.struct({"r": S, "c": S, "n": S})), [])),
    ((pa.list_(pa.int64()), [1]), (pa.list_(pa.null()), [None])),
    ((pa.list_(pa.null()), [None]), (pa.list_(pa.int64()), [1])),
    ((pa.list_(S), ["a"]), (pa.large_list(S), ["a"])),
    ((pa.large_list(S), ["a"]), (pa.large_list(S), ["a"])),
    ((pa.list_(S), ["a"]), (pa.list_(pa.large_string()), ["a"])),
    ((pa.dictionary(pa.int32(), S), "a"), (S, "a")),
    ((pa.float64(), 1.0), (pa.float32(), 1.0)),
    ((pa.timestamp("us"), None), (pa.timestamp("ns"), None)),
]


@pytest.mark.engine
def test_what_datasets_joins(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    for number, pair in enumerate(PAIRS):
        parts, schemas = [], []
        for place, (kind, value) in enumerate(pair):
            path = tmp_path / f"{number}-{place}.parquet"
            pq.write_table(pa.table({"x": pa.array([value], kind)}), path)
            schemas.append(pq.read_schema(path))
            parts.append(datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache")))
        told = unlike(*schemas)
        try:
            joined = datasets.concatenate_datasets(parts)
        except (ValueError, AttributeError):
            assert told is not None, pair
        else:
            assert len(joined) == 2
            assert told is None, pair


def test_the_first_difference_is_named() -> None:
    first = pa.schema([("a", S), ("b", pa.struct({"x": S, "y": pa.int64()}))])
    other = pa.schema([("b", pa.struct({"z": S, "y": S})), ("a", S), ("c", S)])
    assert unlike(first, other) == "b.y is int64 and string"
    assert unlike(first, first) is None
