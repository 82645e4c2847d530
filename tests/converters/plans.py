"""The plan of a Megatron checkpoint, made of the parts that merge makes it of."""

from __future__ import annotations

from pathlib import Path

from converters import families
from converters.checkpoint import torch_dist
from converters.checkpoint.locate import Checkpoint, locate
from converters.hf import hf_config
from converters.planning import plan
from converters.planning.steps import Step


def planned(path: Path) -> tuple[Checkpoint, list[Step]]:
    """What is at `path` (with a config.json of its own), and the steps of its conversion."""
    found = locate(path)
    assert found.huggingface is not None
    where = found.huggingface / "config.json"
    family = families.family(hf_config.architecture(where), where)
    tensors = torch_dist.read_index(found.weights)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    config = families.fitted(shapes, hf_config.read(where, family.config))
    return found, plan.from_mcore(tensors, family, config)
