"""Tables of torch_dist checkpoints as other versions of torch and megatron-core write them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

from converters.checkpoint import torch_dist
from converters.errors import ConvertError
from converters.storage.row_reader import Reader

WEIGHT = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
STATE: dict[str, Any] = {
    "lm_head.weight": WEIGHT,
    "optimizer.state.exp_avg.lm_head.weight": torch.zeros(6),
    "chained_0.optimizer.distributed.dp_group_idx_0.gbuf_idx_0": torch.zeros(6),
    "decoder.layers.mlp.linear_fc1._extra_state/shard_0_1": [1],
    "decoder.layers.0.mlp.linear_fc1._extra_state0": [1],
    "rng_state/shard_0.0_1.1": [1],
    "opt_param_scheduler/shard_0_1": {"lr": 1.0},
    "rerun_state_machine_state/shard_0_1": {"mode": 1},
}


@pytest.fixture(scope="module")
def dcp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group
        checkpoint.save(STATE, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture
def dist(dcp: Path, tmp_path: Path) -> Path:
    """A folder that megatron-core would call its own."""
    for file in dcp.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({"iteration": 1}, tmp_path / "common.pt")
    return tmp_path


def change(dist: Path, how: Callable[[Any], None], protocol: int = 4) -> None:
    path = dist / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    how(metadata)
    path.unlink()
    path.write_bytes(pickle.dumps(metadata, protocol=protocol))


def _without_storage_fields(metadata: Any) -> None:
    """torch 2.4 to 2.6: no transform_descriptors; 2.2: no storage_meta."""
    for info in metadata.storage_data.values():
        info.__dict__.pop("transform_descriptors", None)
    metadata.__dict__.pop("storage_meta", None)


def _without_version(metadata: Any) -> None:
    for name in ("version", "planner_data"):
        metadata.__dict__.pop(name, None)


def _empty_transforms(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.__dict__["transform_descriptors"] = []


def _plans(metadata: Any) -> None:
    """megatron-core 0.13 to 0.16 keeps all plans and a table of its own for reshaped tensors."""
    from torch.distributed.checkpoint.planner import SavePlan

    metadata.all_local_plans = [SavePlan([]), SavePlan([])]
    metadata.mcore_data = {"lm_head.weight": {"nd_reformulated_orig_global_shape": (2, 3)}}
    metadata.planner_data = None


def _empty_chunks(metadata: Any) -> None:
    """Ranks without rows, which are all at one place."""
    entry = metadata.state_dict_metadata["lm_head.weight"]
    chunk = entry.chunks[0]
    entry.chunks = [
        type(chunk)(chunk.offsets, torch.Size((0, 3))),
        chunk,
        type(chunk)(chunk.offsets, torch.Size((0, 3))),
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "how", [lambda _: None, _without_storage_fields, _without_version, _empty_transforms, _plans, _empty_chunks],
    ids=["as-is", "no-storage-fields", "no-version", "empty-transforms", "plans", "empty-chunks"],
)  # fmt: skip
def test_tables_of_other_versions(dist: Path, how: Callable[[Any], None], protocol: int) -> None:
    change(dist, how, protocol)
    (found,) = torch_dist.read_index(dist).values()
    assert (found.name, found.shape, found.dtype) == ("lm_head.weight", (2, 3), "BF16")
    stored = found.chunks[0].open()
    assert (stored.shape, stored.dtype) == ((2, 3), "BF16")
    assert torch_dist.holds_model(dist)


def _transformed(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.__dict__["transform_descriptors"] = ["zstd"]


def _name_elsewhere(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = "../x.distcp"


def _nested_offset(metadata: Any) -> None:
    """A key whose hash would take for ever."""
    offset: Any = ()
    for _ in range(200):
        offset = (offset, offset)
    object.__setattr__(next(iter(metadata.storage_data)), "offset", offset)


def _stored_nowhere(metadata: Any) -> None:
    metadata.storage_data = {}


def _object(metadata: Any) -> None:
    metadata.state_dict_metadata["odd"] = metadata.state_dict_metadata["rng_state/shard_0.0_1.1"]


def _adapter(metadata: Any) -> None:
    weight = metadata.state_dict_metadata["lm_head.weight"]
    name = "decoder.layers.self_attention.linear_qkv.adapter.linear_in.weight"
    metadata.state_dict_metadata = {name: weight}
    for index in list(metadata.storage_data):
        if index.fqn == "lm_head.weight":
            object.__setattr__(index, "fqn", name)


def _weight(metadata: Any, **fields: Any) -> None:
    """Other numbers for the weight: of its `size`, or of its chunk (`sizes`, `offsets`)."""
    entry = metadata.state_dict_metadata["lm_head.weight"]
    for field, numbers in fields.items():
        target = entry if field == "size" else entry.chunks[0]
        setattr(target, field, torch.Size(numbers))
        if field == "offsets":
            (index,) = (key for key in metadata.storage_data if key.fqn == "lm_head.weight")
            object.__setattr__(index, "offset", torch.Size(numbers))


def _one_chunk_many_times(metadata: Any) -> None:
    """Whose elements add up: a chunk of two rows that stands there for both."""
    entry = metadata.state_dict_metadata["lm_head.weight"]
    chunk = entry.chunks[0]
    entry.size = torch.Size((4, 3))
    entry.chunks = [chunk, chunk]


def _without(kind: str, field: str) -> Callable[[Any], None]:
    def remove(metadata: Any) -> None:
        entry = metadata.state_dict_metadata["lm_head.weight"]
        (info,) = (i for key, i in metadata.storage_data.items() if key.fqn == "lm_head.weight")
        target = {"entry": entry, "chunk": entry.chunks[0], "info": info}[kind]
        del target.__dict__[field]

    return remove


def _negative_byte(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).offset = -1


@pytest.mark.parametrize(
    ("how", "match"),
    [
        (partial(_weight, sizes=(10**9, 3)), r"a chunk \[1000000000, 3\] at \[0, 0\]"),
        (partial(_weight, sizes=(10**9, 3), size=(10**9, 3)), "whose bytes hold"),
        (partial(_weight, sizes=(0, 10**9), size=(0, 10**18)), "has the size or offset"),
        (partial(_weight, offsets=(1, 0)), r"a chunk \[2, 3\] at \[1, 0\]"),
        (partial(_weight, size=(10**9, 3)), "hold 6 elements, its shape .* has 3000000000"),
        (partial(_weight, size=(2, 3, *(1,) * 20)), "has the size or offset"),
        (_negative_byte, "damaged: storage of"),
        (_one_chunk_many_times, r"two chunks at \[0, 0\]"),
    ],
    ids=["chunk", "chunk-and-shape", "empty", "place", "shape", "axes", "byte", "twice"],
)
def test_wrong_numbers_cost_nothing(dist: Path, how: Callable[[Any], None], match: str) -> None:
    """Told from the tables alone: what they would need is not allocated, what they count is not walked."""
    change(dist, how)
    with pytest.raises(ConvertError, match=match):
        torch_dist.read_index(dist)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        (_transformed, "is stored compressed"),
        (_name_elsewhere, r"refused: .* not a file of this folder"),
        (_nested_offset, "has the size or offset"),
        (_stored_nowhere, "is stored nowhere"),
        (_object, "'odd' is an object, not a tensor"),
        (_adapter, "holds shards of a LoRA adapter .*exports the adapter"),
    ],
    ids=["compressed", "elsewhere", "nested", "nowhere", "object", "adapter"],
)
def test_tables_that_are_refused(dist: Path, how: Callable[[Any], None], match: str) -> None:
    change(dist, how)
    with pytest.raises(ConvertError, match=match):
        torch_dist.read_index(dist)


@pytest.mark.parametrize("of", ["entry.size", "entry.chunks", "chunk.sizes", "info.offset"])
def test_a_field_that_is_not_there_is_told_with_the_file(dist: Path, of: str) -> None:
    kind, field = of.split(".")
    change(dist, _without(kind, field))
    with pytest.raises(ConvertError, match=rf"/\.metadata: .* has no field '{field}'"):
        torch_dist.read_index(dist)


def test_a_shard_that_holds_another_tensor_is_named(dist: Path) -> None:
    change(dist, partial(_weight, size=(3, 2), sizes=(3, 2)))
    (found,) = torch_dist.read_index(dist).values()
    with pytest.raises(
        ConvertError, match=r"\.distcp: lm_head\.weight: the shard at \(0, 0\) holds BF16 \[2, 3\]"
    ):
        Reader().whole(found)


def test_a_shard_that_is_cut_is_seen_although_its_table_was_read(dist: Path) -> None:
    torch_dist.read_index(dist)
    shard = next(dist.glob("*.distcp"))
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:-1])
    with pytest.raises(ConvertError, match="truncated"):
        torch_dist.read_index(dist)
