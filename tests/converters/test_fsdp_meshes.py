"""FSDP shards of every mesh, and of adapters, that verl's own manager wrote on four ranks."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from merge_helpers import load
from torchrun import once, torchrun

from converters.checkpoint import dtensor, fsdp, torch_zip
from converters.errors import ConvertError
from converters.lora import adapters
from converters.merge import merge
from converters.planning.steps import whole
from converters.storage.row_reader import Reader
from converters.storage.stored import Storage, StoredTensor
from converters.writing import stream

pytestmark = pytest.mark.engine

MESHES = ("fsdp2", "hsdp", "tensor_parallel", "fsdp1", "fsdp1_hsdp", "fsdp1_no_mesh", "critic", "lora")


@pytest.fixture(scope="session")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders NAME/actor and NAME/truth.pt of write_fsdp.py, by four ranks."""
    return once(tmp_path_factory, "meshes", lambda root: torchrun(4, "write_fsdp.py", root))


def _same(folder: Path, names: set[str] | None = None) -> None:
    """The shards hold what was sharded, bit for bit."""
    import torch

    truth, found = torch.load(folder / "truth.pt"), fsdp.read_index(folder / "actor")
    assert set(found) == (names or set(truth))
    for name, tensor in found.items():
        assert tensor.shape == tuple(truth[name].shape), name
        assert np.array_equal(Reader().whole(tensor), truth[name].numpy().view(np.uint32)), name


@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_is_read_bit_for_bit(name: str, meshes: Path) -> None:
    _same(meshes / name)


def test_merge_of_replicas(meshes: Path, tmp_path: Path) -> None:
    import torch

    merge(meshes / "hsdp" / "actor", tmp_path / "out")
    truth, found = torch.load(meshes / "hsdp" / "truth.pt"), load(tmp_path / "out")
    assert set(truth) == set(found)
    assert all(torch.equal(found[name], tensor) for name, tensor in truth.items())


def test_replica_with_other_values_is_refused(meshes: Path, tmp_path: Path) -> None:
    """Rank 2 holds what rank 0 holds; the shard of another training has other values and a right checksum."""
    shutil.copytree(meshes / "hsdp" / "actor", tmp_path / "actor")
    shard = tmp_path / "actor" / "model_world_size_4_rank_2.pt"
    _rewrite(shard, lambda name, data: data[:-1] + bytes([data[-1] ^ 1]) if name.endswith("data/0") else data)
    with pytest.raises(ConvertError, match=r"rank_2\.pt: .* is the same part as in model_world_size_4_rank_0\.pt"):
        fsdp.read_index(tmp_path / "actor")


def test_replicated_halves_of_two_checkpoints_are_refused(meshes: Path, tmp_path: Path) -> None:
    shutil.copytree(meshes / "hsdp" / "actor", tmp_path / "actor")
    shutil.copy(meshes / "fsdp2" / "actor" / "model_world_size_4_rank_3.pt", tmp_path / "actor")
    with pytest.raises(
        ConvertError, match=r"rank_3\.pt: .* on 4 ranks, on rank 0 .* on 2x2 ranks: not of one save"
    ):
        fsdp.read_index(tmp_path / "actor")


@pytest.mark.parametrize("form", ["mesh_tensor", "layout_of_shapes"])
@pytest.mark.parametrize("name", ["fsdp2", "hsdp", "tensor_parallel"])
def test_meshes_as_earlier_torch_pickled_them(name: str, form: str, meshes: Path) -> None:
    """torch 2.4 to 2.9 pickled the ranks as a tensor, 2.10 and 2.11 a layout that is flat; neither the rank."""
    for rank in range(4):
        path = meshes / name / "actor" / f"model_world_size_4_rank_{rank}.pt"
        state, earlier = torch_zip.load(path), torch_zip.load(path)
        for key, value in earlier.items():
            mesh = value.args[3][1]["_spec"].state["mesh"]
            if "_rank" in mesh.state:  # tensors of one mesh share it
                axes = [axis.state["shape"] for axis in mesh.state.pop("_layout").state["axes"]]
                sizes = tuple(size for axis in axes for size in axis)
                del mesh.state["_rank"]
                if form == "mesh_tensor":
                    storage = Storage(path, 0, 0, None, "I64")
                    mesh.state["mesh"] = StoredTensor(sizes, "I64", sizes, 0, storage)
                else:
                    layout = type(mesh)()
                    layout.state = {"shape": sizes, "stride": sizes}
                    mesh.state["_layout"] = layout
            assert dtensor.part(value, key, path, rank) == dtensor.part(state[key], key, path, rank)


def _merged(base: dict[str, Any], adapter: adapters.Adapter | None) -> dict[str, Any]:
    assert adapter is not None
    steps = adapters.added(adapter, [whole(tensor) for tensor in base.values()], tied=False)
    found: dict[str, list[Any]] = {}
    for step in steps:
        for block in stream.blocks(step):
            found.setdefault(block.output.name, []).append(block.words.copy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


@pytest.mark.parametrize("name", ["lora", "lora_only"])
def test_adapter_that_verl_saved_is_merged_as_peft_merges_it(name: str, meshes: Path) -> None:
    actor = meshes / name / "actor"
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    if name == "lora_only":
        assert not base
        base = adapters.with_base(adapter, meshes / "lora" / "base")
    found, expected = _merged(base, adapter), load(meshes / "lora" / "merged")
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        # Torch may sum the products of so small matrices in another order.
        np.testing.assert_allclose(found[key].view(np.float32), tensor, rtol=1e-6, atol=1e-6, err_msg=key)


def _rewrite(shard: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write every member again with a checksum that is right."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(shard) as old, zipfile.ZipFile(buffer, "w") as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))
    shard.write_bytes(buffer.getvalue())
