"""Elements of a tensor in a safetensors file, range by range: what compares two sides holds one block of each."""

from __future__ import annotations

import os
from math import prod
from types import TracebackType

import numpy as np

from converters.errors import ConvertError
from converters.hf import hf_model
from converters.storage.tensors import GlobalTensor, Words, as_bytes, words


class OpenTensor:
    """A tensor that `hf_model.read_index` found, its file open for as long as the block of `with` lasts."""

    def __init__(self, tensor: GlobalTensor) -> None:
        self.tensor = tensor
        self.path, self._start = hf_model.place(tensor)
        self.elements = prod(tensor.shape)
        self._type = words(tensor.dtype)
        self._file = -1

    def __enter__(self) -> OpenTensor:
        self._file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def read(self, first: int, count: int) -> Words:
        """Elements `first` to `first + count` (of the tensor seen as one row), as words [count].

        Raises:
            ConvertError: the file has become shorter.
        """
        out: Words = np.empty(count, dtype=self._type)
        view = as_bytes(out)
        at = self._start + first * self._type.itemsize
        while view:
            got = os.preadv(self._file, [view], at)
            if not got:
                raise ConvertError(f"{self.path}: truncated at byte {at}. Copy the file again.")
            view, at = view[got:], at + got
        return out


def place_in(tensor: GlobalTensor, element: int) -> list[int]:
    """Number of an element in the tensor seen as one row -> its index."""
    return [int(n) for n in np.unravel_index(element, tensor.shape)] if tensor.shape else []
