"""Read pickles of checkpoints without running anything that they name.

A pickle is a program: it names callables and calls them. Here no name is ever imported. The names that
checkpoint writers use become inert records of what was called with what; every other name is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from converters.errors import ConvertError
from converters.tensors import TORCH_DTYPES, TORCH_STORAGES

# Data classes of the checkpoint writers. They move between torch and megatron-core versions and none is
# imported, so the package is what is allowed:   torch.distributed.checkpoint   Metadata,
# TensorStorageMetadata, _StorageInfo, SavePlan (torch 2.4 to 2.13)   megatron...strategies.torch
# MCoreSavePlan (megatron-core 0.13 and 0.14)   torch.distributed.*            DTensor, its spec, placements
# and mesh (FSDP2 shards)
_RECORD_PACKAGES = (
    "torch.distributed.checkpoint.",
    "megatron.core.dist_checkpointing.",
    "torch.distributed.tensor",
    "torch.distributed._tensor",
    "torch.distributed.device_mesh",
    "torch.distributed._mesh_layout",
)
_RECORD_NAMES = frozenset(
    {
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_wrapper_subclass",
        "torch._tensor._rebuild_from_type_v2",
        "torch.device",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib._local.PosixPath",
    }
)


class Record:
    """What a pickle said about one object: the name that it called, with which arguments, and its state."""

    name = ""

    def __new__(cls, *args: Any) -> Record:
        record = super().__new__(cls)
        record.args = args
        record.state = None
        return record

    args: tuple[Any, ...]
    state: Any

    # Also keeps pickle's BUILD from setting attributes on the class itself.
    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, field: str) -> Any:
        """The value of `field` in the state.

        Raises:
            ConvertError: the state has no such field (a layout that this reader does not know).
        """
        if not isinstance(self.state, dict) or field not in self.state:
            raise ConvertError(f"{self.name} in the checkpoint has no field {field!r}: an unknown layout")
        return self.state[field]


class _Dict(dict[Any, Any]):
    """A `collections.OrderedDict` of a state dict, without the attributes that come with it."""

    def __setstate__(self, state: Any) -> None:
        del state


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, stream: io.BufferedIOBase, where: str, persistent: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(stream)
        self._where = where
        self._persistent = persistent
        self._records: dict[str, type[Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if module == "torch" and name in TORCH_DTYPES:
            return TORCH_DTYPES[name]
        if full in TORCH_STORAGES:
            return TORCH_STORAGES[full]
        if full == "builtins.getattr":
            return self._enum_member
        if full == "torch.Size":
            return tuple
        if full == "collections.OrderedDict":
            return _Dict
        if "." not in name and (full in _RECORD_NAMES or full.startswith(_RECORD_PACKAGES)):
            if full not in self._records:
                self._records[full] = type("Record", (Record,), {"name": full})
            return self._records[full]
        raise ConvertError(
            f"{self._where}: refused: the pickle names {full!r}, which no checkpoint writer needs. "
            "Nothing was executed. Do not load this file with another tool; get the checkpoint from its "
            "source again."
        )

    def _enum_member(self, owner: Any, name: Any) -> Record:
        """What `getattr(owner, name)` stands for: Python 3.11.0 to 3.11.3 (Debian 12) pickles enum members so."""
        if not (isinstance(owner, type) and issubclass(owner, Record) and isinstance(name, str)):
            raise ConvertError(
                f"{self._where}: refused: the pickle calls getattr on something that is no enum of a checkpoint "
                "writer. Nothing was executed. Get the checkpoint from its source again."
            )
        return owner(name)

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise ConvertError(f"{self._where}: refused: a persistent id in a pickle that has none")
        return self._persistent(pid)


def unpickle(data: bytes, where: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The object in `data`, made of plain values and `Record`s only.

    Args:
        data: one pickle, of any protocol.
        where: file (and member) that the bytes come from, for messages.
        persistent: what a persistent id stands for; refused if not given.

    Raises:
        ConvertError: the pickle names something that is not allowed, or is damaged.
    """
    try:
        return _Unpickler(io.BytesIO(data), where, persistent).load()
    except ConvertError:
        raise
    except (
        pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError,
        MemoryError, OverflowError, RecursionError, ImportError,
    ) as error:  # fmt: skip
        raise ConvertError(
            f"{where}: damaged: not a readable pickle ({type(error).__name__}: {error}). Copy the file again."
        ) from error


def unpickle_file(path: Path) -> Any:
    """`unpickle` of a whole file."""
    return unpickle(path.read_bytes(), str(path))
