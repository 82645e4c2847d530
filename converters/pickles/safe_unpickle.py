"""Read pickles of checkpoints without running anything that they name.

A pickle is a program: it names callables and calls them. Here no name is ever imported. The names that
checkpoint writers use become inert records of what was called with what; every other name is refused, as a file
that has one was made to do harm to whoever opens it with another tool.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from converters.errors import ConvertError
from converters.pickles.pickle_machine import Machine
from converters.pickles.records import Damaged, Made, Record, Table
from converters.storage.tensors import TORCH_DTYPES, TORCH_STORAGES

# Packages of the writers of checkpoints. Their classes move between versions and none is imported, so the package
# and the form of a class name is what is allowed:
#   torch.distributed.checkpoint      Metadata, TensorStorageMetadata, _StorageInfo, SavePlan (torch 2.4 to 2.13)
#   torch.distributed.*, torch.nn     DTensor, its spec, placements and mesh (FSDP2 shards), Parameter
#   megatron                          MCoreSavePlan (0.13, 0.14); enums and arguments in common.pt
#   the others                        settings and optimizer states in common.pt
_PACKAGES = (
    "torch.distributed.", "torch.nn.", "torch.optim.", "megatron.", "transformer_engine.", "numpy.", "omegaconf.",
    "verl.", "mbridge.", "nemo.", "apex.optimizers.", "transformers.",
)  # fmt: skip
_CLASS = re.compile(r"_*[A-Z]\w*")
_NAMES = frozenset(
    {
        # tensors
        "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_wrapper_subclass",
        "torch._utils._rebuild_qtensor", "torch._tensor._rebuild_from_type_v2", "torch.Tensor", "torch.device",
        "torch.serialization._get_layout", "torch.Generator", "torch.torch_version.TorchVersion",
        # values of argument parsers, settings and schedulers
        "argparse.Namespace", "types.SimpleNamespace", "datetime.timedelta", "datetime.datetime", "uuid.UUID",
        "collections.defaultdict", "collections.Counter", "collections.deque", "decimal.Decimal",
        "fractions.Fraction", "random.Random", "copyreg._reconstructor", "copy_reg._reconstructor",
        "pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib._local.PosixPath", "pathlib._local.PurePosixPath",
        "typing.Any", "typing.Union", "typing.Optional", "typing.List", "typing.Dict", "signal.Signals",
        "torch.distributed.remote_device._remote_device",
        # bytes in protocol 2; arrays and scalars of numpy 1 and 2
        "_codecs.encode", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct", "numpy._core.multiarray.scalar",
        "numpy._core.multiarray._reconstruct", "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer",
        "numpy.random._pickle.__randomstate_ctor", "numpy.random._pickle.__generator_ctor",
        "numpy.random._pickle.__bit_generator_ctor",
        "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
        # activation functions in a TransformerConfig
        "torch._C._nn.gelu", "torch.nn.functional.gelu", "torch.nn.functional.silu", "torch.nn.functional.relu",
        "torch.sigmoid", "torch.tanh", "megatron.core.activations.squared_relu",
        "megatron.core.activations.quick_gelu", "megatron.core.activations.fast_gelu",
    }
)  # fmt: skip
# Types that only hold a value, also what a defaultdict makes; the last three are what protocol 2 calls them.
_BUILTINS = frozenset(
    {
        "int", "float", "complex", "bool", "str", "bytes", "bytearray", "list", "tuple", "dict", "set",
        "frozenset", "slice", "range", "object", "NoneType", "long", "unicode", "xrange",
    }
)  # fmt: skip
_SCALARS = re.compile(r"numpy\.(bool_?|u?int\d+|float\d+|complex\d+|str_|bytes_|void|u?longlong)")
# Types of elements that are not read: their names, for who asks for a tensor of them.
_OTHER_TYPES = re.compile(
    r"torch\.(complex\d+|q?u?int\d+(x\d)?|bits\d+(x\d)?|float\d+(_\w+)?"
    r"|(Complex(Float|Double)|Q(U?Int\d+(x\d)?))Storage)"
)
# Part of every ShardedTensor (FSDP1 without a device mesh).
_CLASS_IN_CLASS = "torch.distributed._shard.sharded_tensor.api.ShardedTensor.ProcessGroupState"
# A module or name of these is none of a writer, wherever it stands: `torch.distributed.checkpoint.os`.
_HARMFUL = frozenset(
    {
        "os", "posix", "posixpath", "nt", "subprocess", "sys", "importlib", "runpy", "pickle", "_pickle", "shutil",
        "socket", "operator", "_operator", "functools", "ctypes", "code", "codeop", "marshal", "multiprocessing",
        "webbrowser", "pty", "asyncio", "eval", "exec", "compile", "open", "Popen", "__builtin__", "builtins",
        "ProcessPoolExecutor", "Process", "Pool", "System", "CDLL",
    }
)  # fmt: skip

_DEEPEST = 100
_HOLDERS = (dict, list, tuple, Record)
_FEW = 1_000_000
_PARTS_A_BYTE = 20


class _Names:
    """What the names in one pickle stand for."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._records: dict[str, type[Record]] = {}

    def __call__(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if module == "torch" and name in TORCH_DTYPES:
            return TORCH_DTYPES[name]
        if full in TORCH_STORAGES:
            return TORCH_STORAGES[full]
        if _OTHER_TYPES.fullmatch(full):
            return full
        if full == "torch.Size":
            return Made(self._size)
        if full == "collections.OrderedDict":
            return Made(self._table)
        if module in ("builtins", "__builtin__") and name == "getattr":
            return Made(self._enum_member)
        if _is_inert(module, name):
            if full not in self._records:
                self._records[full] = type("Record", (Record,), {"name": full, "__slots__": ()})
            return self._records[full]
        raise ConvertError(
            f"{self._where}: refused: the pickle names {full[:200]!r}, which no checkpoint writer needs. "
            "Nothing was executed. Do not load this file with another tool; get the checkpoint from its "
            "source again."
        )

    def _enum_member(self, args: tuple[Any, ...]) -> Record | type[Record]:
        """What `getattr(owner, name)` stands for: Python 3.11.0 to 3.11.3 (Debian 12) pickles enum members so,
        protocol 2 classes in classes."""
        owner, name = args if len(args) == 2 else (None, None)
        if not (isinstance(owner, type) and issubclass(owner, Record) and isinstance(name, str)):
            raise ConvertError(
                f"{self._where}: refused: the pickle calls getattr on something that is no enum of a checkpoint "
                "writer. Nothing was executed. Get the checkpoint from its source again."
            )
        full = f"{owner.name}.{name}"
        if full == _CLASS_IN_CLASS:
            return self._records.setdefault(full, type("Record", (Record,), {"name": full, "__slots__": ()}))
        return owner((name,))

    @staticmethod
    def _size(args: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(args) > 1 or (args and type(args[0]) is not tuple):
            raise Damaged("torch.Size of something that is no tuple")
        return args[0] if args else ()

    @staticmethod
    def _table(args: tuple[Any, ...]) -> Table:
        if args:
            raise Damaged("collections.OrderedDict with arguments; Python 3 sets its items afterwards")
        return Table()


def _is_inert(module: str, name: str) -> bool:
    full = f"{module}.{name}"
    if "." in name:  # of protocol 4: an attribute of a name
        return False
    if module in ("builtins", "__builtin__"):
        return name in _BUILTINS
    if full in _NAMES or _SCALARS.fullmatch(full):
        return True
    if _HARMFUL & {*module.split("."), name}:
        return False
    return full.startswith(_PACKAGES) and _CLASS.fullmatch(name) is not None


def unpickle(data: bytes, where: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The object in `data`, made of plain values and `Record`s only.

    Memory and time: a multiple of the length of `data`, whatever it says of itself. With `persistent` (a file of
    torch.save) walking through the value is bounded likewise; else it may name one list from many places.

    Args:
        data: one pickle, of any protocol.
        where: file (and member) that the bytes come from, for messages.
        persistent: what a persistent id stands for; refused if not given.

    Raises:
        ConvertError: the pickle names something that is not allowed, or is damaged.
    """

    def refuse(pid: Any) -> Any:
        raise ConvertError(f"{where}: refused: a persistent id in a pickle that has none")

    collects = gc.isenabled()
    gc.disable()  # millions of values that all stay: to look through them again and again takes long
    try:
        value = Machine(data, _Names(where), persistent or refuse).run()
        if persistent is not None:
            _check_size(value, _FEW + _PARTS_A_BYTE * len(data))
        return value
    except Damaged as error:
        raise ConvertError(f"{where}: damaged: not a readable pickle ({error}). Copy the file again.") from error
    finally:
        if collects:
            gc.enable()


def _check_size(value: Any, most: int) -> None:
    """Containers in containers that name each other twice are few bytes, and without end for who walks them.

    What is shared counts as often as a walk comes by, and is looked at once. What holds itself (a mesh its root)
    counts once: who walks it has a limit of its own.
    """
    counted: dict[int, tuple[int, int]] = {}  # id -> values in it, containers in each other
    begun: set[int] = set()
    left = [value]
    while left:
        one = left[-1]
        if id(one) in counted:
            left.pop()
            continue
        inner = _inner(one)
        holders = [item for item in inner if isinstance(item, _HOLDERS)]
        if holders and id(one) not in begun:
            begun.add(id(one))
            left += [item for item in holders if id(item) not in begun]
            continue
        left.pop()
        held = [counted[id(item)] for item in holders if id(item) in counted]
        values = 1 + len(inner) + sum(values for values, _ in held)
        depth = 1 + max((depth for _, depth in held), default=0)
        if depth > _DEEPEST or values > most:
            raise Damaged(f"more than {_DEEPEST} containers in each other, or {most} values")
        counted[id(one)] = values, depth


def _inner(holder: Any) -> Collection[Any]:
    if isinstance(holder, dict):
        return holder.values()
    if isinstance(holder, Record):
        return holder.args, holder.state, holder.items
    return holder if isinstance(holder, (list, tuple)) else ()


def unpickle_file(path: Path) -> Any:
    """`unpickle` of a whole file."""
    return unpickle(path.read_bytes(), str(path))
