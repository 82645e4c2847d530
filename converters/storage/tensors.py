"""Tensors of a checkpoint as words on disk: types, and global tensors made of chunks in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from converters.errors import ConvertError

Words = npt.NDArray[Any]

# safetensors' names of types -> bytes of one element
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
TORCH_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
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
    """One tensor in a file, not read yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    def read_into(self, out: Words) -> None:
        """Fill `out` (C-contiguous, same shape) and check the bytes' checksum where there is one."""


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

    def read(self, start: Sequence[int] | None = None, stop: Sequence[int] | None = None) -> Words:
        """The block from `start` to `stop` (exclusive; default: all), read from the chunks that it touches.

        Memory: the block, and for a chunk that is not a contiguous part of it, that chunk.

        Raises:
            ConvertError: a chunk is damaged, is not what the metadata says, or the chunks leave a hole or
            overlap.
        """
        begin = tuple(start) if start is not None else (0,) * len(self.shape)
        end = tuple(stop) if stop is not None else self.shape
        out: Words = np.empty([e - b for b, e in zip(begin, end, strict=True)], dtype=words(self.dtype))
        filled = 0
        for chunk in self._touching(begin, end):
            low = tuple(max(b, o) for b, o in zip(begin, chunk.offsets, strict=True))
            high = tuple(min(e, o + s) for e, o, s in zip(end, chunk.offsets, chunk.sizes, strict=True))
            stored = chunk.open()
            if stored.shape != chunk.sizes or stored.dtype != self.dtype:
                raise ConvertError(
                    f"{self.name}: the shard at {chunk.offsets} holds {stored.dtype} {list(stored.shape)}, "
                    f"the metadata {self.dtype} {list(chunk.sizes)}: damaged. Copy the checkpoint again."
                )
            target = out[tuple(slice(a - b, z - b) for a, z, b in zip(low, high, begin, strict=True))]
            sizes = tuple(z - a for a, z in zip(low, high, strict=True))
            if sizes == chunk.sizes and target.flags.c_contiguous:
                stored.read_into(target)
            else:
                whole: Words = np.empty(chunk.sizes, dtype=words(self.dtype))
                stored.read_into(whole)
                inside = tuple(slice(a - o, z - o) for a, z, o in zip(low, high, chunk.offsets, strict=True))
                target[...] = whole[inside]
            filled += prod(sizes)
        if filled != out.size:
            raise ConvertError(
                f"{self.name}: the shards hold {filled} of {out.size} elements of the block {list(begin)} to "
                f"{list(end)}: a shard is missing from the checkpoint. Copy it again, or take another step."
            )
        return out

    def _touching(self, begin: tuple[int, ...], end: tuple[int, ...]) -> list[Chunk]:
        found = [c for c in self.chunks if _overlap(begin, end, c.offsets, _ends(c))]
        for i, one in enumerate(found):
            for other in found[i + 1 :]:
                if _overlap(one.offsets, _ends(one), other.offsets, _ends(other)):
                    raise ConvertError(
                        f"{self.name}: shards at {one.offsets} and {other.offsets} overlap: the metadata "
                        "is damaged. Copy the checkpoint again."
                    )
        return found


def _ends(chunk: Chunk) -> tuple[int, ...]:
    return tuple(o + s for o, s in zip(chunk.offsets, chunk.sizes, strict=True))


def _overlap(a: tuple[int, ...], a_end: tuple[int, ...], b: tuple[int, ...], b_end: tuple[int, ...]) -> bool:
    return all(
        max(low, other) < min(high, other_high)
        for low, high, other, other_high in zip(a, a_end, b, b_end, strict=True)
    )
