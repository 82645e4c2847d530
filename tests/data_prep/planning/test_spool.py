from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from data_prep.errors import DataError
from data_prep.spool import Spool, append_to, batches_in, encoded

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
    ]
)


def _batch(texts: list[str]) -> pa.RecordBatch:
    prompts = [[{"role": "user", "content": text}] for text in texts]
    kinds = pa.array(texts).dictionary_encode()
    kinds = pa.DictionaryArray.from_arrays(kinds.indices.cast(pa.int8()), kinds.dictionary)
    return pa.RecordBatch.from_arrays([pa.array(prompts, SCHEMA.field(0).type), kinds], schema=SCHEMA)


def test_parts_give_back_what_was_appended(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", SCHEMA)
    given = [[_batch(["a", "b"]), _batch(["c"])], [], [_batch(["é", "", "a"])]]
    ids = []
    for part in given:
        spool.next_part()
        ids += [spool.append(batch) for batch in part]
        spool.append(_batch([]))
    assert ids == [0, 2, 3]
    assert spool.part_rows == [3, 0, 3]
    # Each batch brings a dictionary of its own.
    assert [list(spool.batches(part)) for part in range(3)] == given
    assert list(spool) == [*given[0], *given[2]]
    assert spool.nbytes == sum(batch.nbytes for part in given for batch in part)


def test_a_batch_of_other_columns_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", SCHEMA)
    spool.next_part()
    with pytest.raises(ValueError, match="schema"):
        spool.append(pa.record_batch([["x"]], names=["other"]))


def test_plain_and_compressed_pieces_are_read_alike(tmp_path: Path) -> None:
    batch = _batch(["text " * 1000] * 3)
    for compressed in (True, False, True):
        append_to(tmp_path / "file", encoded(batch, compressed=compressed))
    assert list(batches_in(tmp_path / "file")) == [batch] * 3
    assert len(encoded(batch)) < len(encoded(batch, compressed=False)) / 4


def test_a_full_disk_is_told_with_the_remedy() -> None:
    with pytest.raises(DataError, match=re.escape("/dev/full: No space left on device. Rows wait there")):
        append_to(Path("/dev/full"), encoded(_batch(["a"])))
