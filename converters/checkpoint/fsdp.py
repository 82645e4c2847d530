"""FSDP checkpoints of verl: `model_world_size_W_rank_R.pt`, each the state dict of one rank.

verl 0.6.1 to 0.9.1, `utils/checkpoint/fsdp_checkpoint_manager.py`, FSDP1 and FSDP2. Names are Hugging Face's, or
those of PEFT (`lora`) or of a critic (`value_head`). The files are read without torch (`torch_zip`, `dtensor`): no
process group, no device mesh, and nothing in them is executed.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from converters.checkpoint import dtensor, torch_zip
from converters.checkpoint.dtensor import Part, Piece
from converters.errors import ConvertError, listing
from converters.json_file import read_json
from converters.storage.row_reader import Reader
from converters.storage.stored import StoredTensor
from converters.storage.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored

_SHARD = re.compile(r"model_world_size_(\d{1,7})_rank_(\d{1,7})\.pt$")
CONFIG = "fsdp_config.json"
_MOST_RANKS = 1_000_000
# What wrappers of a module put in its parameters' names: FSDP1, torch.compile, activation checkpointing.
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")


def shard_files(directory: Path) -> list[Path]:
    """The shards of all ranks, by rank.

    Raises:
        ConvertError: there are none, one is missing, or two world sizes lie in one folder and `fsdp_config.json`
            does not say which one counts.
    """
    found: dict[int, dict[int, Path]] = {}
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    config = directory / CONFIG
    if config.is_file():
        world = world_size(config)
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


def world_size(config: Path) -> int:
    """Number of ranks that fsdp_config.json tells.

    Raises:
        ConvertError: the file is damaged, or tells none.
    """
    world = read_json(config).get("world_size")
    if type(world) is not int or not 0 < world <= _MOST_RANKS:
        raise ConvertError(
            f"{config}: world_size is {reprlib.repr(world)}, a number of ranks is expected. Copy the checkpoint "
            "again."
        )
    return world


def read_index(directory: Path) -> dict[str, GlobalTensor]:
    """Every tensor in the shards of `directory`, by name; only the pickles are read.

    Any mesh is read: FSDP on one dimension, HSDP (replicas must agree), tensor parallel with FSDP, uneven shards.

    Raises:
        ConvertError: a shard is missing, damaged or refused, the ranks disagree, or a placement is not read.
    """
    files = shard_files(directory)
    states = [_state(path) for path in files]
    problems = [
        f"{path.name}: {sorted(set(state) ^ set(states[0]))[:5]}"
        for path, state in zip(files, states, strict=True)
        if set(state) != set(states[0])
    ]
    if problems:
        raise listing(f"{directory}: shards do not hold the same tensors", problems, "Copy the checkpoint again.")
    reader = Reader()
    return {
        name: _tensor(
            name,
            [
                (path, dtensor.part(state[name], name, path, rank))
                for rank, (path, state) in enumerate(zip(files, states, strict=True))
            ],
            reader,
        )
        for name in states[0]
    }


def _state(path: Path) -> dict[str, Any]:
    """The state dict of one rank, without what wrappers put in its names."""
    state = torch_zip.load(path)
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise ConvertError(f"{path}: damaged: {type(state).__name__} where a state dict is expected")
    if not state:
        raise ConvertError(f"{path}: holds no tensor. Take another step with --step N.")
    found: dict[str, Any] = {}
    for key, value in state.items():
        name = key
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        if name in found:
            raise ConvertError(f"{path}: two tensors are called {name} when the wrappers of {key} are taken away")
        found[name] = value
    return found


def _tensor(name: str, parts: list[tuple[Path, Part]], reader: Reader) -> GlobalTensor:
    """One tensor of the parts that all ranks hold, by rank."""
    first = parts[0][1]
    held: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Path, Piece]] = {}
    for path, part in parts:
        said = (part.shape, part.dtype, part.sharding)
        if said != (first.shape, first.dtype, first.sharding):
            raise ConvertError(
                f"{path}: {name} is {part.dtype} {list(part.shape)} {part.sharding}, on rank 0 {first.dtype} "
                f"{list(first.shape)} {first.sharding}: not of one save. Copy the checkpoint again."
            )
        for piece in part.pieces:
            if piece.stored.dtype != part.dtype:
                raise ConvertError(f"{path}: {name} holds {piece.stored.dtype}, {part.dtype} is said: damaged")
            if prod(piece.stored.shape) * DTYPE_BYTES[part.dtype] > piece.stored.storage.nbytes:  # strides of zero
                raise ConvertError(
                    f"{path}: {name} {reprlib.repr(list(piece.stored.shape))} is more than its "
                    f"{piece.stored.storage.nbytes} bytes: damaged. Copy the checkpoint again."
                )
            other, same = held.setdefault(piece.place, (path, piece))
            if same is not piece and not _same(same.stored, piece.stored, reader):
                raise ConvertError(
                    f"{path}: {name} at {list(piece.offsets)} is the same part as in {other.name}, with other "
                    "values: the shards do not belong together, or the replicas of the training drifted apart. "
                    "Copy the checkpoint again, or take another step with --step N."
                )
    filled = sum(prod(piece.stored.shape) for _, piece in held.values())
    if filled != prod(first.shape):
        raise ConvertError(
            f"{parts[0][0].parent}: the parts of {name} hold {filled} of {prod(first.shape)} elements: the shards "
            "do not belong together. Copy the checkpoint again."
        )
    chunks = tuple(Chunk(p.offsets, p.stored.shape, _opener(p.stored)) for _, p in held.values())
    return GlobalTensor(name, first.shape, first.dtype, chunks)


def _same(one: StoredTensor, other: StoredTensor, reader: Reader) -> bool:
    """Whether two parts of one shape and type hold the same bits: by their storages' CRCs where these tell."""
    if (
        one.storage.crc is not None
        and one.storage.crc == other.storage.crc
        and (one.offset, one.stride) == (other.offset, other.stride)
    ):
        return True
    nbytes = prod(one.shape) * DTYPE_BYTES[one.dtype]
    if one.storage.nbytes == other.storage.nbytes == nbytes and one.stride == other.stride:
        return False
    return reader.same_bits(*(_alone(part) for part in (one, other)))


def _alone(stored: StoredTensor) -> GlobalTensor:
    zeros = (0,) * len(stored.shape)
    return GlobalTensor("a part", stored.shape, stored.dtype, (Chunk(zeros, stored.shape, _opener(stored)),))


def _opener(stored: StoredTensor) -> Callable[[], Stored]:
    return lambda: stored
