"""FSDP2 checkpoints of verl: `model_world_size_W_rank_R.pt`, each the state dict of one rank's DTensors.

verl 0.6.1 to 0.9.1, `utils/checkpoint/fsdp_checkpoint_manager.py`. Names are Hugging Face's. The files are
read without torch (`torch_zip`): no process group, no device mesh, and nothing in them is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from converters import torch_zip
from converters.errors import ConvertError, listing
from converters.safe_unpickle import Record
from converters.tensors import Chunk, GlobalTensor, Stored
from converters.torch_zip import StoredTensor

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt$")


def shard_files(directory: Path) -> list[Path]:
    """The shards of all ranks, by rank.

    Raises:
        ConvertError: there are none, one is missing, or two world sizes lie in one folder and
        `fsdp_config.json`
            does not say which one counts.
    """
    found: dict[int, dict[int, Path]] = {}
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    config = directory / "fsdp_config.json"
    if config.is_file():
        try:
            world = int(json.loads(config.read_bytes())["world_size"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConvertError(
                f"{config}: damaged: no world_size ({error}). Copy the checkpoint again."
            ) from error
    elif len(found) == 1:
        world = next(iter(found))
    else:
        raise ConvertError(
            f"{directory}: shards of world sizes {sorted(found)} and no fsdp_config.json that says which "
            "one counts"
        )
    ranks = found.get(world, {})
    missing = [f"model_world_size_{world}_rank_{r}.pt" for r in range(world) if r not in ranks]
    if missing:
        raise listing(
            f"{directory}: shards are missing", missing, "Copy them here, or take another step with --step N."
        )
    return [ranks[r] for r in range(world)]


def read_index(directory: Path) -> dict[str, GlobalTensor]:
    """Every tensor in the shards of `directory`, by name; only the pickles are read.

    Raises:
        ConvertError: a shard is missing, damaged or refused, the ranks disagree, or the sharding is not one
            dimension of FSDP (HSDP and tensor parallel meshes are not read yet).
    """
    files = shard_files(directory)
    states = []
    for path in files:
        state = torch_zip.load(path)
        if not isinstance(state, dict) or not all(isinstance(k, str) for k in state):
            raise ConvertError(f"{path}: damaged: {type(state).__name__} where a state dict is expected")
        if state and all("lora_" in key for key in state):
            raise ConvertError(f"{path}: holds a LoRA adapter only; adapters are not merged yet")
        states.append(state)
    problems = [
        f"{path.name}: {sorted(set(state) ^ set(states[0]))[:5]}"
        for path, state in zip(files, states, strict=True)
        if set(state) != set(states[0])
    ]
    if problems:
        raise listing(f"{directory}: shards do not hold the same tensors", problems, "Copy the checkpoint again.")
    return {
        name: _tensor(name, [(path, state[name]) for path, state in zip(files, states, strict=True)])
        for name in states[0]
    }


def _tensor(name: str, parts: list[tuple[Path, Any]]) -> GlobalTensor:
    first = parts[0][1]
    if isinstance(first, StoredTensor):
        # A buffer or an unwrapped parameter: whole on every rank.
        for path, part in parts:
            if not isinstance(part, StoredTensor) or (part.shape, part.dtype) != (first.shape, first.dtype):
                raise ConvertError(
                    f"{path}: {name} is not the tensor that rank 0 holds: the shards do not belong together"
                )
            if part.storage.crc != first.storage.crc:
                raise ConvertError(f"{path}: {name} is not sharded, and its values differ from those of rank 0")
        zeros = (0,) * len(first.shape)
        return GlobalTensor(name, first.shape, first.dtype, (Chunk(zeros, first.shape, _opener(first)),))
    locals_ = []
    for rank, (path, part) in enumerate(parts):
        shape, dtype, dim, local = _dtensor(name, part, path, rank, len(parts))
        locals_.append((path, shape, dtype, dim, local))
    _, shape, dtype, dim, local = locals_[0]
    if dim is None:
        return GlobalTensor(name, shape, dtype, (Chunk((0,) * len(shape), shape, _opener(local)),))
    chunks, at = [], 0
    for path, other_shape, other_dtype, other_dim, local in locals_:
        expected = (*shape[:dim], local.shape[dim] if dim < len(local.shape) else -1, *shape[dim + 1 :])
        if (other_shape, other_dtype, other_dim) != (shape, dtype, dim):
            raise ConvertError(
                f"{path}: {name} is {other_shape} on dimension {other_dim}, on rank 0 {shape} on {dim}"
            )
        if local.shape != expected and 0 not in local.shape:
            raise ConvertError(f"{path}: the part of {name} has shape {local.shape}, {expected} fits {shape}")
        if 0 not in local.shape:
            offsets = tuple(at if i == dim else 0 for i in range(len(shape)))
            chunks.append(Chunk(offsets, local.shape, _opener(local)))
            at += local.shape[dim]
    if at != shape[dim] and 0 not in shape:
        raise ConvertError(
            f"{parts[0][0].parent}: the parts of {name} have {at} of {shape[dim]} rows of dimension "
            f"{dim}: the shards do not belong together. Copy the checkpoint again."
        )
    return GlobalTensor(name, shape, dtype, tuple(chunks))


def _dtensor(
    name: str, part: Any, path: Path, rank: int, world: int
) -> tuple[tuple[int, ...], str, int | None, StoredTensor]:
    """(global shape, type, sharded dimension or None, local part) of a pickled DTensor."""
    try:
        # torch._tensor._rebuild_from_type_v2(rebuild function, class, its arguments, state)
        _, kind, _, (_, state) = part.args
        local = torch_zip.rebuild(state["_local_tensor"])
        spec = state["_spec"]
        shape = tuple(spec.get("tensor_meta").args[0])
        placements = tuple(spec.get("placements"))
        mesh = spec.get("mesh").state
        saved_by = mesh.get("_rank", rank)  # torch 2.13 saves it, earlier ones do not all
        if not kind.name.endswith(".DTensor") or not isinstance(local, StoredTensor) or not _is_shape(shape):
            raise ValueError(f"{getattr(kind, 'name', kind)} of {type(local).__name__}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConvertError(f"{path}: {name} is no DTensor that this reader knows ({error})") from error
    if saved_by != rank:
        raise ConvertError(f"{path}: holds the shard of rank {saved_by}. Copy the checkpoint again.")
    if len(placements) != 1:
        raise ConvertError(
            f"{path}: {name} is sharded over a mesh of {len(placements)} dimensions (HSDP or tensor parallel), "
            "which is not read yet. Save with fsdp_size=-1, or with hf_model in checkpoint.save_contents."
        )
    placement: Record = placements[0]
    kind_name = placement.name.rsplit(".", 1)[-1]
    if kind_name == "Replicate" or (world == 1 and local.shape == shape):
        return shape, local.dtype, None, local
    dim = placement.state.get("dim") if isinstance(placement.state, dict) else (placement.args or (None,))[0]
    if kind_name != "Shard" or not isinstance(dim, int) or not 0 <= dim < len(shape):
        raise ConvertError(f"{path}: {name} has the placement {kind_name} on {dim!r}, which is not read")
    return shape, local.dtype, dim, local


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return all(isinstance(n, int) and n >= 0 for n in shape)


def _opener(stored: StoredTensor) -> Callable[[], Stored]:
    return lambda: stored
