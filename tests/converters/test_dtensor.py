"""How placements cut a tensor, compared with torch's own placements, for every small size."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from converters.checkpoint import dtensor, torch_zip
from converters.checkpoint.dtensor import Ranges, chunk, strided_chunk
from converters.errors import ConvertError
from converters.pickles.pickle_machine import Record
from converters.storage.row_reader import Reader
from converters.storage.tensors import Chunk, GlobalTensor


def rows(ranges: Ranges) -> list[int]:
    return [row for start, stop in ranges for row in range(start, stop)]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_shards_are_those_of_torch(parts: int) -> None:
    for size in range(20):
        theirs, _ = Shard(0)._split_tensor(torch.arange(size), parts, with_padding=False)
        assert [rows(chunk([(0, size)], parts, i)) for i in range(parts)] == [t.tolist() for t in theirs], size


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_strided_shards_are_those_of_torch(factor: int) -> None:
    for parts in (1, 2, 3, 4):
        for size in range(20):
            placement = _StridedShard(0, split_factor=factor)
            theirs, _ = placement._split_tensor(torch.arange(size), parts, with_padding=False)
            ours = [rows(strided_chunk([(0, size)], parts, i, factor)) for i in range(parts)]
            assert ours == [t.tolist() for t in theirs], (parts, size)


def test_tensor_parallel_below_fsdp_is_right_wherever_the_lengths_agree() -> None:
    """FSDP2 cuts what tensor parallelism left; an uneven split that placements cannot tell has other lengths."""
    refused = 0
    for tensor_parallel in (2, 3, 4):
        for fsdp in (2, 3, 4):
            for size in range(40):
                ranks = [(i, j) for i in range(fsdp) for j in range(tensor_parallel)]
                told = [
                    chunk(strided_chunk([(0, size)], fsdp, i, tensor_parallel), tensor_parallel, j)
                    for i, j in ranks
                ]
                held = [chunk(chunk([(0, size)], tensor_parallel, j), fsdp, i) for i, j in ranks]
                if [len(rows(part)) for part in told] == [len(rows(part)) for part in held]:
                    assert [rows(part) for part in told] == [rows(part) for part in held]
                else:
                    refused += 1
    assert refused < 40


def record(name: str, args: tuple[Any, ...] = (), state: Any = None) -> Record:
    made = type("Record", (Record,), {"name": name, "__slots__": ()})(args)
    made.state = state
    return made


def saved(
    local: torch.Tensor, shape: tuple[int, ...], placements: list[Record], place: list[int], folder: Path
) -> Any:
    """A DTensor on a mesh of two ranks an axis, as torch before 2.10 pickled it."""
    torch.save({"local": local, "mesh": torch.arange(2 ** len(place)).reshape([2] * len(place))}, folder / "x.pt")
    stored = torch_zip.load(folder / "x.pt")
    mesh = record(
        "torch.distributed.device_mesh.DeviceMesh", (), {"mesh": stored["mesh"], "_coordinate_on_dim": place}
    )
    meta = record("torch.distributed.tensor._dtensor_spec.TensorMeta", (shape, (), "F32"))
    spec = record("DTensorSpec", (), {"mesh": mesh, "placements": tuple(placements), "tensor_meta": meta})
    kind = record("torch.distributed.tensor.DTensor")
    return record("rebuild", (None, kind, (), (None, {"_local_tensor": stored["local"], "_spec": spec})))


def placement(kind: str, **fields: int) -> Record:
    return record(f"torch.distributed.tensor.placement_types.{kind}", (), fields)


def test_part_in_pieces_is_put_where_it_belongs(tmp_path: Path) -> None:
    """A lone _StridedShard: the rank holds rows that lie apart, and columns of them."""
    whole = torch.arange(48, dtype=torch.float32).reshape(8, 6)
    local = whole[[2, 3, 6, 7]][:, 3:].contiguous()
    placements = [placement("_StridedShard", dim=0, split_factor=2), placement("Shard", dim=1)]
    part = dtensor.part(saved(local, (8, 6), placements, [1, 1], tmp_path), "w", tmp_path, 0)
    assert [piece.place for piece in part.pieces] == [((2, 3), (2, 3)), ((6, 3), (2, 3))]
    for piece in part.pieces:
        chunk_ = Chunk((0, 0), piece.stored.shape, partial(lambda stored: stored, piece.stored))
        found = Reader().whole(GlobalTensor("w", piece.stored.shape, "F32", (chunk_,)))
        row = piece.offsets[0]
        assert np.array_equal(found.view(np.float32), whole[row : row + 2, 3:].numpy())


@pytest.mark.parametrize(
    ("placements", "match"),
    [
        ([placement("Partial", reduce_op=0)], "placement Partial"),
        ([placement("Shard", dim=2)], "placement Shard on 2"),
        ([placement("_StridedShard", dim=0, split_factor=0)], "split_factor 0"),
        ([placement("Shard", dim=0), placement("Replicate")], "2 placements on a mesh"),
        ([placement("Shard", dim=1)], r"shape \[2, 6\], rank 0 has \[4, 3\] of \[4, 6\]"),
    ],
    ids=["partial", "axis", "factor", "placements", "shape"],
)
def test_what_is_not_read_is_refused(placements: list[Record], match: str, tmp_path: Path) -> None:
    value = saved(torch.zeros(2, 6), (4, 6), placements, [0], tmp_path)
    with pytest.raises(ConvertError, match=match):
        dtensor.part(value, "w", tmp_path, 0)


@pytest.mark.parametrize(
    "value", [None, 3, record("torch.nn.Parameter"), {"a": 1}], ids=["none", "int", "record", "dict"]
)
def test_what_is_no_tensor_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="_extra_state is no tensor that this reader knows"):
        dtensor.part(value, "_extra_state", tmp_path, 0)


def _doubled(depth: int) -> Any:
    axis: Any = (1, 1)
    for _ in range(depth):
        axis = (axis, axis)
    return axis


def _nested(depth: int) -> Any:
    axis: Any = 1
    for _ in range(depth):
        axis = (axis,)
    return axis


@pytest.mark.parametrize(
    "axis",
    [_doubled(40), _nested(5000), 2**40, 0, "2", (1,) * 1000],
    ids=["doubled", "deep", "many", "none", "text", "long"],
)
def test_a_mesh_that_no_job_has_is_refused(axis: Any, tmp_path: Path) -> None:
    value = saved(torch.zeros(2, 6), (4, 6), [placement("Shard", dim=0)], [0], tmp_path)
    spec = value.args[3][1]["_spec"]
    layout = record("torch.distributed._mesh_layout._MeshLayout", (), {"shape": (axis,)})
    spec.state["mesh"] = record("DeviceMesh", (), {"_layout": layout, "_coordinate_on_dim": [0]})
    with pytest.raises(ConvertError, match="as an axis of a mesh"):
        dtensor.part(value, "w", tmp_path, 0)


@pytest.mark.parametrize(
    "dtype", ["torch.complex64", [], None, ("F32",)], ids=["complex", "list", "none", "tuple"]
)
def test_a_sharded_tensor_without_rows_of_a_type_that_is_none_is_refused(dtype: Any, tmp_path: Path) -> None:
    properties = record("TensorProperties", (), (dtype,))
    metadata = record("ShardedTensorMetadata", (), {"size": (0, 3), "tensor_properties": properties})
    group = record("ProcessGroupState", (), {"global_rank": 0})
    kind = record("torch.distributed._shard.sharded_tensor.api.ShardedTensor")
    value = record("rebuild", (None, kind, (), ([], metadata, group)))
    with pytest.raises(ConvertError, match="w is no tensor that this reader knows"):
        dtensor.part(value, "w", tmp_path, 0)
