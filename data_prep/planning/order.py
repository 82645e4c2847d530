"""Rows of the spool in the order in which they are written, in bounded memory whatever that order is.

An order is a rank by row id: the row's place in the output, or ``NOWHERE``. Rows are sorted as a deck of cards is:
into buckets of neighbouring ranks on disk, then each bucket in memory; a bucket that is too big, once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.spool import Spool, append_to, batches_in, encoded

Ranks = NDArray[np.unsignedinteger[Any]]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
Identified = tuple[pa.RecordBatch, Ids]

_BUCKET_BYTES = 16 << 20
_MOST_BUCKETS = 256
# A batch for the writer: as many rows as it puts into a row group.
_BATCH_ROWS = 8192
_SORTED_AT_ONCE = 1 << 20
_MOST_PASSES = 32
_ID = "row id"


def unranked(rows: int) -> Ranks:
    """Ranks of rows that are left out, all of them."""
    # The largest thing that is kept of each row, so as small as it can be.
    kind = np.dtype(np.uint32 if rows < 1 << 32 else np.uint64)
    return np.full(rows, np.iinfo(kind).max, kind)


def nowhere(ranks: Ranks) -> int:
    """The rank of rows that are left out."""
    return int(np.iinfo(ranks.dtype).max)


def splitmix64(seed: int, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random-looking number for each id, the same on any machine and with any NumPy (Steele et al., 2014)."""
    mask = (1 << 64) - 1
    with np.errstate(over="ignore"):
        mixed = (ids + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(_mixed(seed & mask))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
        return hashes


def _mixed(seed: int) -> int:
    """Neighbouring seeds far apart: with a seed that is merely added, seed 2 is seed 1 shifted by a row."""
    mask = (1 << 64) - 1
    mixed = (seed + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


def shuffled(keep: Mask, seed: int) -> Ranks:
    """Ranks of the rows of ``keep`` in an order that depends on ``seed`` and the ids alone."""
    rows = len(keep)
    ranks = unranked(rows)
    passes = min(_MOST_PASSES, rows // _SORTED_AT_ONCE + 1)
    place = 0
    for wanted in range(passes):
        # Sorting all rows at once would take four times the memory of the ranks.
        ids, hashes = _of_pass(keep, seed, wanted, passes)
        order = np.argsort(hashes, kind="stable")
        ranks[ids[order]] = np.arange(place, place + len(ids), dtype=ranks.dtype)
        place += len(ids)
    return ranks


def _of_pass(keep: Mask, seed: int, wanted: int, passes: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Ids and hashes of the rows whose hash lies in part ``wanted`` of ``passes``."""
    all_ids, all_hashes = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for first in range(0, len(keep), _SORTED_AT_ONCE):
        ids = np.flatnonzero(keep[first : first + _SORTED_AT_ONCE]).astype(np.uint64) + np.uint64(first)
        hashes = splitmix64(seed, ids)
        if passes > 1:
            chosen = (hashes >> np.uint64(32)) * np.uint64(passes) >> np.uint64(32) == np.uint64(wanted)
            ids, hashes = ids[chosen], hashes[chosen]
        all_ids.append(ids)
        all_hashes.append(hashes)
    return np.concatenate(all_ids), np.concatenate(all_hashes)


def drawn(rows: int, count: int, seed: int) -> Mask:
    """Which ``count`` of ``rows`` rows a sample without repetition holds."""
    chosen = shuffled(np.ones(rows, np.bool_), seed)
    return chosen < count


def emit(spool: Spool, keep: Mask, ranks: Ranks | None = None) -> Iterator[Identified]:
    """The rows of ``keep``, with their ids: as they were appended, or by their ``ranks``.

    Memory is a few times 16 MiB, or the largest batch of the spool; with ``ranks``, the spool's folder holds every
    row once more while this runs.

    Args:
        keep: by row id.
        ranks: by row id, different for each row of ``keep``.
    """
    if ranks is None:
        yield from _filtered(_identified(spool), keep)
        return
    with TemporaryDirectory(prefix="order-", dir=spool.folder) as folder:
        rows = _filtered(_identified(spool), keep)
        taken = ranks[keep]
        if len(taken):
            span = (int(taken.min()), int(taken.max()) + 1)
            del taken
            yield from _in_order(rows, ranks, span, spool.nbytes, Path(folder))


def _identified(batches: Iterable[pa.RecordBatch]) -> Iterator[Identified]:
    first = 0
    for batch in batches:
        yield batch, np.arange(first, first + len(batch))
        first += len(batch)


def _filtered(rows: Iterable[Identified], keep: Mask) -> Iterator[Identified]:
    for batch, ids in rows:
        kept = keep[ids]
        if kept.all():
            yield batch, ids
        elif kept.any():
            yield batch.filter(pa.array(kept)), ids[kept]


def _in_order(
    rows: Iterable[Identified], ranks: Ranks, span: tuple[int, int], nbytes: int, folder: Path
) -> Iterator[Identified]:
    """``rows``, of about ``nbytes`` and with ranks in ``span``, sorted by rank."""
    first, end = span
    if nbytes <= _BUCKET_BYTES or end - first == 1:
        yield from _sorted_in_memory(list(rows), ranks)
        return
    count = min(_MOST_BUCKETS, -(-nbytes // _BUCKET_BYTES), end - first)
    width = -(-(end - first) // count)
    buckets = [_Bucket(folder / f"{number:03d}.arrows") for number in range(-(-(end - first) // width))]
    for group in _grouped(rows):
        _distribute(group, ranks, first, width, buckets)
    for number, bucket in enumerate(buckets):
        if bucket.nbytes:
            start = first + number * width
            inner = bucket.path.with_suffix("")
            inner.mkdir()
            yield from _in_order(bucket.rows(), ranks, (start, min(start + width, end)), bucket.nbytes, inner)
            inner.rmdir()
            bucket.path.unlink()


@dataclass
class _Bucket:
    path: Path
    nbytes: int = field(default=0)

    def add(self, batch: pa.RecordBatch, ids: Ids) -> None:
        schema = batch.schema.append(pa.field(_ID, pa.int64()))
        whole = pa.RecordBatch.from_arrays([*batch.columns, pa.array(ids)], schema=schema)
        append_to(self.path, encoded(whole, compressed=False))
        self.nbytes += whole.nbytes

    def rows(self) -> Iterator[Identified]:
        for batch in batches_in(self.path):
            last = batch.num_columns - 1
            schema = batch.schema.remove(last)
            own = pa.RecordBatch.from_arrays(batch.columns[:last], schema=schema)
            yield own, batch.column(last).to_numpy()


def _grouped(rows: Iterable[Identified]) -> Iterator[list[Identified]]:
    """Batches together until they are worth a bucket: pieces of small ones would be smaller than their header."""
    group: list[Identified] = []
    size = 0
    for batch, ids in rows:
        group.append((batch, ids))
        size += batch.nbytes
        if size >= _BUCKET_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _distribute(group: list[Identified], ranks: Ranks, first: int, width: int, buckets: list[_Bucket]) -> None:
    batch, ids = _joined(group)
    places = (ranks[ids].astype(np.int64) - first) // width
    order = np.argsort(places, kind="stable")
    batch, ids, places = batch.take(pa.array(order)), ids[order], places[order]
    starts = np.flatnonzero(np.diff(places, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        buckets[int(places[start])].add(batch.slice(start, end - start), ids[start:end])


def _sorted_in_memory(group: list[Identified], ranks: Ranks) -> Iterator[Identified]:
    batch, ids = _joined(group)
    group.clear()
    order = np.argsort(ranks[ids], kind="stable")
    for start in range(0, len(order), _BATCH_ROWS):
        part = order[start : start + _BATCH_ROWS]
        yield batch.take(pa.array(part)), ids[part]


def _joined(group: list[Identified]) -> Identified:
    if len(group) == 1:
        return group[0]
    # One chunk, unless a column had over 2 GiB of text; pyarrow.concat_batches came with version 19.
    (batch,) = pa.Table.from_batches([batch for batch, _ in group]).combine_chunks().to_batches()
    return batch, np.concatenate([ids for _, ids in group])
