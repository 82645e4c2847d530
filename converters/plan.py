"""Match a checkpoint's tensors with the model that config.json describes: steps, or a list of what is wrong.

Nothing is written before the plan is whole: a tensor that is unknown, left over, missing or of another shape
is an error that lists every such tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from converters import families
from converters.errors import ConvertError, listing
from converters.families import Family, Rule, Run
from converters.hf_config import ModelConfig
from converters.tensors import DTYPE_BYTES, GlobalTensor

_BLOCK_BYTES = 16 << 20
_HEAD, _EMBED = "lm_head.weight", "model.embed_tokens.weight"
_REMEDY = (
    "config.json and the checkpoint must be of one model: give --base_model the model that the training "
    "started from, or take another checkpoint."
)


@dataclass(frozen=True)
class Output:
    """A tensor of the Hugging Face model."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class LowRank:
    """A product of two small matrices that is added to a weight: `scale * (b @ a)`, a [r, in], b [out, r]."""

    a: GlobalTensor
    b: GlobalTensor
    scale: float


@dataclass(frozen=True)
class Step:
    """One read: a tensor, or one place on the leading axes of a stacked one, and what its rows become.

    A row is what one number on the first axis after `index` names.

    Attributes:
        index: place on the leading axes of `source` (layer, or layer and expert); empty: all of it.
        runs: by rising `source_row`; within one output by rising `output_row`, without a gap.
        added: LoRA matrices to add, in this order.
    """

    source: GlobalTensor
    index: tuple[int, ...]
    outputs: tuple[Output, ...]
    runs: tuple[Run, ...]
    added: tuple[LowRank, ...] = ()


def from_mcore(tensors: dict[str, GlobalTensor], family: Family, config: ModelConfig) -> list[Step]:
    """Steps for tensors with Megatron's names.

    Raises:
        ConvertError: the checkpoint and config.json do not describe the same model.
    """
    _check_flags(family, config)
    _check_head(tensors, config, "output_layer.weight")
    left = dict.fromkeys(tensors)
    problems: list[str] = []
    steps = []
    for rule, layer in families.in_order(family.rules, config):
        found = _find(rule, layer, tensors, config, problems)
        if found is None:
            continue
        source, index = found
        left.pop(source.name, None)
        shape = source.shape if index is None else source.shape[1:]
        expected = rule.mcore_shape(config)
        padded = rule.split == families.VOCAB and shape[:1] > expected[:1] and shape[1:] == expected[1:]
        if shape != expected and not padded:
            of = f"{source.name} of layer {layer}" if layer is not None else source.name
            problems.append(f"{of} is {list(shape)}, config.json makes it {list(expected)}")
        outputs = tuple(Output(n, s, source.dtype) for n, s in rule.hf_shapes(config, layer).items())
        place = () if index is None else (index,)
        steps.append(Step(source, place, outputs, families.runs(rule, config)))
    problems += [f"{name} {list(tensors[name].shape)} has no place in {config.architecture}" for name in left]
    if problems:
        raise listing(f"{config.path} does not fit the checkpoint", problems, _REMEDY)
    return steps


def from_hf_names(tensors: dict[str, GlobalTensor], family: Family, config: ModelConfig) -> list[Step]:
    """Steps for tensors that have Hugging Face's names already (FSDP).

    A tied model's state dict may hold `lm_head.weight` too: it is left out if it is the embedding, bit for
    bit.

    Raises:
        ConvertError: the checkpoint and config.json do not describe the same model.
    """
    _check_flags(family, config)
    tensors = dict(tensors)
    if config.tied and _HEAD in tensors and _EMBED in tensors:
        if not same_bits(tensors[_HEAD], tensors[_EMBED]):
            raise ConvertError(
                f"{config.path} says tie_word_embeddings=true, and {_HEAD} differs from {_EMBED}: the model was "
                "trained untied. Correct config.json, or give the right --base_model."
            )
        del tensors[_HEAD]
    _check_head(tensors, config, _HEAD)
    shapes = families.hf_shapes(family.rules, config)
    problems = compare({name: tensor.shape for name, tensor in tensors.items()}, shapes, config)
    if problems:
        raise listing(f"{config.path} does not fit the checkpoint", problems, _REMEDY)
    return [whole(tensors[name]) for name in shapes]


def whole(tensor: GlobalTensor) -> Step:
    """The step that takes a tensor over as it is."""
    rows = tensor.shape[0] if tensor.shape else 1
    return Step(tensor, (), (Output(tensor.name, tensor.shape, tensor.dtype),), (Run(0, rows, 0, 0),))


def compare(
    found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], config: ModelConfig
) -> list[str]:
    """What differs between tensors by name and shape, a line each."""
    problems = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in found]
    for name, shape in found.items():
        if name not in expected:
            problems.append(f"{name} {list(shape)} has no place in {config.architecture}")
        elif shape != expected[name]:
            problems.append(f"{name} is {list(shape)}, config.json makes it {list(expected[name])}")
    return problems


def same_bits(one: GlobalTensor, other: GlobalTensor) -> bool:
    """Compare two tensors block by block."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    rows = max(1, _BLOCK_BYTES * one.shape[0] // max(1, one.nbytes))
    rest = one.shape[1:]
    for begin in range(0, one.shape[0], rows):
        start, stop = (begin, *(0 for _ in rest)), (min(begin + rows, one.shape[0]), *rest)
        if not np.array_equal(one.read(start, stop), other.read(start, stop)):
            return False
    return True


def _check_flags(family: Family, config: ModelConfig) -> None:
    for flag, why in (family.refused or {}).items():
        if config.flag(flag):
            raise ConvertError(f"{config.path}: {flag} is true: {why}")


def _check_head(tensors: dict[str, GlobalTensor], config: ModelConfig, head: str) -> None:
    """Tied or not is a fact of the weights; config.json must say the same."""
    if config.tied and head in tensors:
        raise ConvertError(
            f"{config.path} says tie_word_embeddings=true, and the checkpoint has a {head} of its own: "
            "the model was trained untied. Correct config.json, or give the right --base_model."
        )
    if not config.tied and head not in tensors:
        raise ConvertError(
            f"{config.path} says tie_word_embeddings=false, and the checkpoint has no {head}: the model was "
            "trained tied, or the checkpoint is not whole. Correct config.json, or give the right --base_model."
        )
    rows = tensors[head].shape[0] if head in tensors and tensors[head].shape else config.V
    if rows == 1 and config.V > 1:
        raise ConvertError(f"{head} has one row: a critic's value head. Value models are not converted yet.")


def _find(
    rule: Rule, layer: int | None, tensors: dict[str, GlobalTensor], config: ModelConfig, problems: list[str]
) -> tuple[GlobalTensor, int | None] | None:
    """The tensor of a rule and the layer's place on its first axis, or a line in `problems`."""
    for name in rule.mcore:
        if layer is None:
            if name in tensors:
                return tensors[name], None
            continue
        if name in tensors:
            stacked = tensors[name]
            if stacked.shape[:1] != (config.layers,):
                if layer == 0:
                    problems.append(
                        f"{name} is {list(stacked.shape)}: {stacked.shape[0] if stacked.shape else 0} "
                        f"layers, config.json says num_hidden_layers {config.layers}"
                    )
                if not stacked.shape or stacked.shape[0] <= layer:
                    return None
            return stacked, layer
        numbered = name.replace("decoder.layers.", f"decoder.layers.{layer}.", 1)
        if numbered in tensors:
            return tensors[numbered], None
    of = f" (layer {layer})" if layer is not None else ""
    problems.append(f"{' or '.join(rule.mcore)}{of} is missing from the checkpoint")
    return None
