"""What one rank saved of a tensor -> the blocks of the whole tensor that it holds.

A pickled DTensor says the shape of the whole, the placements on its device mesh and the saving rank's place in
it; a ShardedTensor (FSDP1 without a device mesh) says its offsets; a plain tensor is whole on every rank. Nothing
of torch is imported: pickles are `Record`s. Sources: torch 2.4 to 2.13, `distributed/tensor/placement_types.py`
(how placements split), `distributed/device_mesh.py` and `distributed/_mesh_layout.py` (how a mesh is pickled),
`distributed/_shard/sharded_tensor/api.py`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from converters.checkpoint import torch_zip
from converters.errors import ConvertError
from converters.pickles.records import Record
from converters.storage.stored import StoredTensor
from converters.storage.tensors import DTYPE_BYTES

PLAIN, SHARDED_TENSOR = "plain", "ShardedTensor"
# Rows [start, stop) of the whole tensor, in the order in which a rank holds them.
Ranges = list[tuple[int, int]]
_MOST_PIECES = 1 << 16
_MOST_AXES, _MOST_RANKS = 16, 1 << 24  # of a mesh
_REMEDY = "Save it again with fsdp_size=-1, or with hf_model in checkpoint.save_contents."


@dataclass(frozen=True)
class Piece:
    """A block of the whole tensor, and where it is stored."""

    offsets: tuple[int, ...]
    stored: StoredTensor

    @property
    def place(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.offsets, self.stored.shape


@dataclass(frozen=True)
class Part:
    """What one rank holds of a tensor.

    Attributes:
        shape: of the whole tensor.
        sharding: how it is split, for messages; all ranks must say the same.
        pieces: disjoint; none for a rank without rows.
    """

    shape: tuple[int, ...]
    dtype: str
    sharding: str
    pieces: tuple[Piece, ...]


def part(value: Any, name: str, path: Path, rank: int) -> Part:
    """The part of tensor `name` in the state dict that rank `rank` saved to `path`.

    Raises:
        ConvertError: not a tensor that is known, saved by another rank, a placement that is not read, or a local
            part that has not the shape that its placements give it.
    """
    if isinstance(value, StoredTensor):
        zeros = (0,) * len(value.shape)
        return Part(value.shape, value.dtype, PLAIN, (Piece(zeros, value),))
    kind = ""
    try:
        # torch._tensor._rebuild_from_type_v2(function, class, arguments, state)
        _, type_, _, state = value.args
        kind = type_.name
        if kind.endswith(".DTensor"):
            return _dtensor(state[1], name, path, rank)
        if kind.endswith(".ShardedTensor"):
            return _sharded_tensor(state, name, path, rank)
        raise ValueError(kind)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        of = kind or getattr(value, "name", type(value).__name__)
        raise ConvertError(f"{path}: {name} is no tensor that this reader knows ({of}: {error})") from error


def _dtensor(state: dict[str, Any], name: str, path: Path, rank: int) -> Part:
    local = torch_zip.rebuild(state["_local_tensor"])
    spec = state["_spec"]
    shape = _sizes(_state(spec)["tensor_meta"].args[0])
    placements: list[Record] = list(_state(spec)["placements"])
    sizes, place = _mesh(_state(_state(spec)["mesh"]), name, path, rank)
    if not isinstance(local, StoredTensor) or len(placements) != len(sizes):
        raise ValueError(f"{type(local).__name__}, {len(placements)} placements on a mesh {list(sizes)}")
    ranges: list[Ranges] = [[(0, size)] for size in shape]
    split = []
    for placement, size, index in zip(placements, sizes, place, strict=True):
        kind = placement.name.rsplit(".", 1)[-1]
        if kind == "Replicate":
            split.append("Replicate")
            continue
        dim = _field(placement, "dim", 0)
        if kind not in ("Shard", "_StridedShard") or not 0 <= dim < len(shape):
            raise ConvertError(f"{path}: {name} has the placement {kind} on {dim!r}, which is not read. {_REMEDY}")
        if kind == "Shard":
            ranges[dim] = chunk(ranges[dim], size, index)
            split.append(f"Shard({dim})")
        else:
            factor = _field(placement, "split_factor", 1)
            if not 0 < factor <= _MOST_PIECES:
                raise ValueError(f"split_factor {factor}")
            ranges[dim] = strided_chunk(ranges[dim], size, index, factor)
            split.append(f"_StridedShard({dim}, {factor})")
    expected = tuple(sum(stop - start for start, stop in of_dim) for of_dim in ranges)
    # A rank without rows may hold a tensor of another shape, if it is empty.
    if local.shape != expected and (prod(expected) > 0 or prod(local.shape) > 0):
        raise ConvertError(
            f"{path}: the part of {name} has shape {list(local.shape)}, rank {rank} has {list(expected)} of "
            f"{list(shape)} with [{', '.join(split)}] on a mesh {list(sizes)}: the shards do not belong together, "
            f"or this uneven split is not read. {_REMEDY}"
        )
    sharding = f"[{', '.join(split)}] on {'x'.join(map(str, sizes))} ranks"
    return Part(shape, local.dtype, sharding, _pieces(ranges, local) if prod(expected) else ())


def _sharded_tensor(state: Sequence[Any], name: str, path: Path, rank: int) -> Part:
    shards, metadata, saved_by = state[0], state[1], _state(state[2])["global_rank"]
    _check_rank(saved_by, rank, path)
    shape, dtype = _sizes(_state(metadata)["size"]), _state(metadata)["tensor_properties"].state[0]
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"the type {reprlib.repr(dtype)}")
    pieces = []
    for shard in shards:
        slots = shard.state[1]
        stored = torch_zip.rebuild(slots["tensor"])
        where = slots["metadata"].state[1]
        offsets, sizes = _sizes(where["shard_offsets"]), _sizes(where["shard_sizes"])
        fits = len(offsets) == len(sizes) == len(shape) and all(
            o + s <= whole for o, s, whole in zip(offsets, sizes, shape, strict=True)
        )
        if not isinstance(stored, StoredTensor) or stored.shape != sizes or not fits:
            raise ConvertError(
                f"{path}: the part of {name} at {list(offsets)} has shape {list(getattr(stored, 'shape', ()))}, "
                f"{list(sizes)} of {list(shape)} is said: damaged. Copy the checkpoint again."
            )
        if prod(sizes):
            pieces.append(Piece(offsets, stored))
    return Part(shape, dtype, SHARDED_TENSOR, tuple(pieces))


def chunk(ranges: Ranges, parts: int, index: int) -> Ranges:
    """Part `index` of `parts` as `torch.chunk` cuts them: all of one size, the last ones smaller or empty."""
    total = sum(stop - start for start, stop in ranges)
    size = -(-total // parts)
    return _between(ranges, min(index * size, total), min((index + 1) * size, total))


def strided_chunk(ranges: Ranges, parts: int, index: int, factor: int) -> Ranges:
    """Part `index` of `parts` of each of `factor` chunks: `_StridedShard`, tensor parallel cut before FSDP."""
    found: Ranges = []
    for outer in range(factor):
        for start, stop in chunk(chunk(ranges, factor, outer), parts, index):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
    return found


def _between(ranges: Ranges, low: int, high: int) -> Ranges:
    """Rows `low` to `high` of the rows that `ranges` name."""
    found, at = [], 0
    for start, stop in ranges:
        first, last = max(low, at), min(high, at + stop - start)
        if first < last:
            found.append((start + first - at, start + last - at))
        at += stop - start
    return found


def _pieces(ranges: list[Ranges], local: StoredTensor) -> tuple[Piece, ...]:
    """The local tensor as blocks that lie together in the whole."""
    if prod(len(of_dim) for of_dim in ranges) > _MOST_PIECES:
        raise ValueError(f"more than {_MOST_PIECES} pieces")
    placed: list[
        list[tuple[int, int, int]]
    ] = []  # of each dimension: row in the whole, row in the local part, rows
    for of_dim in ranges:
        at, spans = 0, []
        for start, stop in of_dim:
            spans.append((start, at, stop - start))
            at += stop - start
        placed.append(spans)
    pieces = []
    for block in product(*placed):
        offset = local.offset + sum(at * step for (_, at, _), step in zip(block, local.stride, strict=True))
        sizes = tuple(rows for _, _, rows in block)
        stored = local if sizes == local.shape else _view(local, sizes, offset)
        pieces.append(Piece(tuple(start for start, _, _ in block), stored))
    return tuple(pieces)


def _view(local: StoredTensor, shape: tuple[int, ...], offset: int) -> StoredTensor:
    return StoredTensor(shape, local.dtype, local.stride, offset, local.storage)


def _mesh(state: dict[str, Any], name: str, path: Path, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes of the mesh, place of the saving rank in it) of a pickled DeviceMesh."""
    if "_rank" in state:  # torch 2.13 saves it, earlier ones do not all
        _check_rank(state["_rank"], rank, path)
    place = state["_coordinate_on_dim"]
    if "mesh" in state:  # torch before 2.10
        sizes = torch_zip.rebuild(state["mesh"]).shape
    else:
        layout = state["_layout"].state
        axes = [axis.state["shape"] for axis in layout["axes"]] if "axes" in layout else layout["shape"]
        sizes = tuple(_product(axis) for axis in ((axes,) if isinstance(axes, int) else axes))
    if place is None:
        raise ConvertError(f"{path}: {name} lies on a mesh that rank {rank} is not part of, which is not read")
    place = _sizes(place)
    if len(place) != len(sizes) or not all(p < size for p, size in zip(place, sizes, strict=True)):
        raise ValueError(f"place {list(place)} on a mesh {list(sizes)}")
    return sizes, place


def _state(record: Record) -> dict[str, Any]:
    if not isinstance(record.state, dict):
        raise ValueError(f"{record.name} without fields")
    return record.state


def _product(axis: Any, depth: int = 0) -> int:
    """Ranks along an axis of a mesh, which may be made of several."""
    if isinstance(axis, (tuple, list)) and depth < _MOST_AXES and len(axis) <= _MOST_AXES:
        return prod(_product(inner, depth + 1) for inner in axis)
    if not isinstance(axis, int) or not 0 < axis <= _MOST_RANKS:
        raise ValueError(f"{reprlib.repr(axis)} as an axis of a mesh")
    return axis


def _check_rank(saved_by: Any, rank: int, path: Path) -> None:
    if saved_by != rank:
        raise ConvertError(f"{path}: holds the shard of rank {reprlib.repr(saved_by)}. Copy the checkpoint again.")


def _field(placement: Record, name: str, default: int) -> int:
    state = placement.state if isinstance(placement.state, dict) else {}
    value = state.get(name, placement.args[0] if placement.args and name == "dim" else default)
    if not isinstance(value, int):
        raise ValueError(f"{name} is {reprlib.repr(value)}")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    numbers = tuple(value)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"sizes {reprlib.repr(numbers)}")
    return numbers
