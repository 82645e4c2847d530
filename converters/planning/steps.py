"""What a plan is made of: one step reads a tensor, or a part of it, and gives rows of outputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from converters.families import Run
from converters.storage.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored, Words


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


def whole(tensor: GlobalTensor) -> Step:
    """The step that takes a tensor over as it is."""
    rows = tensor.shape[0] if tensor.shape else 1
    return Step(tensor, (), (Output(tensor.name, tensor.shape, tensor.dtype),), (Run(0, rows, 0, 0),))


def zeros(name: str, shape: tuple[int, ...], dtype: str) -> Step:
    """The step that makes a tensor of zeros, which no checkpoint holds."""
    stored: Stored = _Zeros(shape, dtype)
    return whole(GlobalTensor(name, shape, dtype, (Chunk((0,) * len(shape), shape, lambda: stored),)))


@dataclass(frozen=True)
class _Zeros:
    shape: tuple[int, ...]
    dtype: str

    def read_into(self, out: Words) -> None:
        out[...] = 0
