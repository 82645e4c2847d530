"""Tensors of a checkpoint as words on disk: types, and global tensors made of chunks in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]

# safetensors' names of types -> bytes of one element
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E8M0": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
TORCH_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
# torch.save writes a storage class; an untyped one comes with the type in `_rebuild_tensor_v3`.
UNTYPED = "untyped"
TORCH_STORAGES = {
    "torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16", "torch.LongStorage": "I64", "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16", "torch.CharStorage": "I8", "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
    "torch.storage.UntypedStorage": UNTYPED,
}  # fmt: skip


def as_bytes(tensor: Words) -> memoryview:
    """The memory of a C-contiguous tensor."""
    return memoryview(tensor.reshape(-1).view(np.uint8).data)


def words(dtype: str) -> np.dtype[Any]:
    """The unsigned little-endian word that holds one element of `dtype`."""
    return np.dtype(f"<u{DTYPE_BYTES[dtype]}")


class Stored(Protocol):
    """One tensor, not read yet: a `stored.StoredTensor`, or `Computed`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


@runtime_checkable
class Computed(Stored, Protocol):
    """One tensor that is in no file."""

    def read_into(self, out: Words) -> None:
        """Fill `out` (C-contiguous, same shape)."""


@dataclass(frozen=True)
class Chunk:
    """A block of a global tensor: where it lies in it, and how to open what is stored."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    open: Callable[[], Stored]


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor of the whole model, whatever the parallel sizes were that wrote it.

    Attributes:
        name: as the checkpoint calls it.
        shape: of the whole tensor, in elements.
        dtype: safetensors' name of the type.
        chunks: disjoint blocks that together make the tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]
