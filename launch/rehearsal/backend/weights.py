"""Load a weight set into a Hugging Face model, exactly, and write it down for the exactness tests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DUMP_VARIABLE = "REHEARSAL_DUMP_WEIGHTS"


class WeightMismatchError(ValueError):
    """The trainer's weights are not those of the rollout's model."""


def collect(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The weight set by name.

    Raises:
        WeightMismatchError: A name comes twice.
    """
    received: dict[str, Any] = {}
    for name, tensor in weights:
        if name in received:
            raise WeightMismatchError(f"weight update: tensor {name} was sent twice")
        received[name] = tensor
    return received


def load_exactly(model: Any, received: Mapping[str, Any]) -> float:
    """Copy `received` into the model.

    Tensors that the model ties to another one (lm_head to the embedding) may be left out.

    Returns:
        The largest absolute change of any weight.

    Raises:
        WeightMismatchError: A tensor is missing, extra, or of another shape; nothing is copied then.
    """
    own = model.state_dict()
    tied = {name for name in own if _is_tied(own, name)}
    missing = sorted(set(own) - set(received) - tied)
    extra = sorted(set(received) - set(own))
    shapes = sorted(
        f"{name} {tuple(received[name].shape)} instead of {tuple(own[name].shape)}"
        for name in set(own) & set(received)
        if received[name].shape != own[name].shape
    )
    faults = [("missing", missing), ("not in the model", extra), ("wrong shape", shapes)]
    if any(found for _, found in faults):
        listed = "; ".join(f"{kind}: {', '.join(found)}" for kind, found in faults if found)
        raise WeightMismatchError(
            f"weight update of {len(received)} tensors for a model of {len(own)}: {listed}. "
            "Actor and rollout must load the same model directory, and each parameter its Hugging Face name."
        )
    change = 0.0
    with torch.no_grad():
        for name, tensor in received.items():
            change = max(change, (own[name].float() - tensor.float()).abs().max().item())
            own[name].copy_(tensor)
    return change


def _is_tied(state: Mapping[str, Any], name: str) -> bool:
    """Whether an earlier tensor of the state shares this one's memory."""
    for other, tensor in state.items():
        if other == name:
            return False
        if tensor.data_ptr() == state[name].data_ptr():
            return True
    return False


def dump(received: Mapping[str, Any], *, replica: int, update: int, global_steps: int | None) -> Path | None:
    """Write a received weight set to $REHEARSAL_DUMP_WEIGHTS, if that is set.

    Returns:
        The file, `replica<R>_update<NNNN>.safetensors`, complete once it exists; None when not asked for.
    """
    folder = os.environ.get(DUMP_VARIABLE)
    if not folder:
        return None
    target = Path(folder) / f"replica{replica}_update{update:04d}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".part{os.getpid()}")
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in received.items()}
    save_file(tensors, part, metadata={"global_steps": str(global_steps)})
    part.rename(target)
    return target
