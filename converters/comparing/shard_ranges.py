"""Elements of a tensor in a safetensors file, range by range: what compares two sides holds one block of each."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from types import TracebackType

import numpy as np

from converters.hf import hf_model
from converters.storage.stored import opened, read
from converters.storage.tensors import GlobalTensor, Words, as_bytes, words


class OpenTensor:
    """A tensor that `hf_model.read_index` found, its file open for as long as the block of `with` lasts."""

    def __init__(self, tensor: GlobalTensor) -> None:
        self.tensor = tensor
        self.path, self._start = hf_model.place(tensor)
        self.elements = prod(tensor.shape)
        self._type = words(tensor.dtype)
        self._file = -1
        self._closing = ExitStack()

    def __enter__(self) -> OpenTensor:
        self._file = self._closing.enter_context(opened(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def read(self, first: int, count: int) -> Words:
        """Elements `first` to `first + count` (of the tensor seen as one row), as words [count].

        Raises:
            ConvertError: the file has become shorter.
        """
        out: Words = np.empty(count, dtype=self._type)
        read(self._file, as_bytes(out), self._start + first * self._type.itemsize, self.path)
        return out


def place_in(tensor: GlobalTensor, element: int) -> list[int]:
    """Number of an element in the tensor seen as one row -> its index."""
    return [int(n) for n in np.unravel_index(element, tensor.shape)] if tensor.shape else []
