"""Read what `torch.save` wrote, without torch: the tree of values, with tensors left on disk.

The format (torch 1.6 and later) is a zip file with uncompressed members `*/data.pkl` (a pickle whose
persistent ids name storages), `*/data/N` (the bytes of storage N) and `*/byteorder`. It may stand alone
(`model_..._rank_0.pt`) or in the middle of a larger file (one entry of a `torch.distributed.checkpoint`
shard).
"""

from __future__ import annotations

import io
import os
import reprlib
import struct
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

from converters.errors import ConvertError
from converters.pickles.records import Record
from converters.pickles.safe_unpickle import unpickle
from converters.storage.stored import Storage, StoredTensor, truncated
from converters.storage.tensors import DTYPE_BYTES, UNTYPED

_LOCAL_HEADER = 30
_DEEPEST = 200
# What zipfile raises for bytes that are no zip file, or not any more.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, OSError, RuntimeError, ValueError,
)  # fmt: skip


def load(path: Path, offset: int = 0, length: int | None = None) -> Any:
    """The object saved in `path` (from byte `offset`, `length` bytes; default: to the end).

    Tensors come as `StoredTensor`, other known objects as `Record`.

    Raises:
        ConvertError: not a torch zip file, truncated, or refused by the restricted unpickler.
    """
    size = path.stat().st_size
    length = size - offset if length is None else length
    if length <= 0 or offset < 0 or offset + length > size:
        raise truncated(path)
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(_Window(file, offset, length))
        except _ZIP_ERRORS as error:
            raise ConvertError(
                f"{path}: not a whole torch.save file at byte {offset} ({error}): truncated, or written by "
                "torch < 1.6. Copy the file again."
            ) from error
        with archive:
            members = {m.filename.split("/", 1)[-1]: m for m in archive.infolist()}
            if "data.pkl" not in members:
                raise ConvertError(f"{path}: no data.pkl at byte {offset}: not written by torch.save")
            storages = _Storages(path, file, offset, members)
            for name in ("data.pkl", "byteorder"):
                if name in members:
                    _check_stored(members[name], length, path)
            try:
                pickled = archive.read(members["data.pkl"])
                order = archive.read(members["byteorder"]) if "byteorder" in members else b"little"
            except _ZIP_ERRORS as error:
                raise ConvertError(f"{path}: damaged at byte {offset} ({error}). Copy the file again.") from error
            if order != b"little":
                raise ConvertError(f"{path}: byte order {order!r} is not supported, only little")
            value = unpickle(pickled, f"{path}:data.pkl", storages)
    try:
        return rebuild(value)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ConvertError(f"{path}: damaged: no tensor as torch.save writes it ({error})") from error


def _check_stored(member: zipfile.ZipInfo, most: int, path: Path) -> None:
    """torch.save compresses nothing: a few bytes that stand for gigabytes are another's."""
    if member.compress_type != zipfile.ZIP_STORED or not member.file_size == member.compress_size <= most:
        raise ConvertError(
            f"{path}: refused: {member.filename} is compressed, or {member.file_size} bytes in a file of {most}; "
            "torch.save does not write so. Get the checkpoint from its source again."
        )


class _Storages:
    """Persistent id -> storage: ("storage", type, key, location, number of elements)."""

    def __init__(
        self, path: Path, file: io.BufferedReader, base: int, members: dict[str, zipfile.ZipInfo]
    ) -> None:
        self._path, self._file, self._base, self._members = path, file, base, members

    def __call__(self, pid: Any) -> Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[1], str)):
            raise ConvertError(f"{self._path}: refused: persistent id {reprlib.repr(pid)} is not a storage")
        dtype, key, count = pid[1], str(pid[2]), pid[4]
        if isinstance(dtype, str) and dtype.startswith("torch."):
            raise _not_read(dtype, self._path)
        if not (isinstance(count, int) and count >= 0 and (dtype == UNTYPED or dtype in DTYPE_BYTES)):
            raise ConvertError(f"{self._path}: damaged: a storage of {reprlib.repr(count)} {reprlib.repr(dtype)}")
        member = self._members.get(f"data/{key}")
        nbytes = count * (1 if dtype == UNTYPED else DTYPE_BYTES[dtype])
        if member is None or member.compress_type != zipfile.ZIP_STORED or member.file_size != nbytes:
            found = "is absent" if member is None else f"holds {member.file_size}"
            raise ConvertError(
                f"{self._path}: storage {key} should hold {nbytes} bytes and {found}: the file is damaged. "
                "Copy it again."
            )
        self._file.seek(self._base + member.header_offset)
        header = self._file.read(_LOCAL_HEADER)
        if len(header) != _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
            raise ConvertError(
                f"{self._path}: storage {key} has no zip header: the file is damaged. Copy it again."
            )
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        start = self._base + member.header_offset + _LOCAL_HEADER + names
        return Storage(self._path, start, nbytes, member.CRC, dtype)


def _not_read(dtype: str, path: Path) -> ConvertError:
    return ConvertError(
        f"{path}: holds a tensor of type {dtype}, which is not read; read are {', '.join(DTYPE_BYTES)}. Save the "
        "checkpoint with tensors of another type."
    )


def rebuild(value: Any, depth: int = 0) -> Any:
    """Turn the records of torch's tensor rebuilders into `StoredTensor`, through dicts, lists and tuples.

    Raises:
        ConvertError: a tensor that is not inside its storage.
        ValueError: a value that holds itself.
    """
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} containers in each other")
    if isinstance(value, dict):
        return {k: rebuild(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(rebuild(v, depth + 1) for v in value)
    if not isinstance(value, Record):
        return value
    args = value.args
    if value.name == "torch._utils._rebuild_tensor_v2":
        storage, offset, shape, stride = args[:4]
        return _stored(storage, storage.dtype, offset, shape, stride)
    if value.name == "torch._utils._rebuild_tensor_v3":
        storage, offset, shape, stride, dtype = *args[:4], args[6]
        return _stored(storage, dtype, offset, shape, stride)
    if value.name == "torch._utils._rebuild_parameter":
        return rebuild(args[0], depth + 1)
    return value


def _stored(storage: Any, dtype: Any, offset: Any, shape: Any, stride: Any) -> StoredTensor:
    if not isinstance(storage, Storage) or not isinstance(dtype, str):
        raise ValueError(f"a tensor of type {reprlib.repr(dtype)} over {type(storage).__name__}")
    if dtype not in DTYPE_BYTES:
        raise _not_read(dtype, storage.path)
    shape, stride = tuple(shape), tuple(stride)
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ConvertError(
            f"{storage.path}: damaged: {reprlib.repr((shape, stride, offset))} as a shape, stride and offset"
        )
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if prod(shape) else -1
    if (last + 1) * DTYPE_BYTES[dtype] > storage.nbytes:
        raise ConvertError(f"{storage.path}: damaged: a tensor {shape} reaches past its {storage.nbytes} bytes")
    return StoredTensor(shape, dtype, stride, offset, storage)


class _Window(io.RawIOBase):
    """Bytes [offset, offset + length) of an open file, as a file of its own."""

    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._length - self._at)
        self._file.seek(self._offset + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data
