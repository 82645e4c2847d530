"""Pickles that want to run something: refused, and nothing happens."""

from __future__ import annotations

import collections
import os
import pickle
import shutil
from pathlib import Path

import pytest
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.merge import main, merge
from converters.safe_unpickle import Record, unpickle


class _Call:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple:
        return self._reduced


@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, print, shutil.rmtree, pickle.loads, open])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_names_of_callables_are_refused(function: object, protocol: int) -> None:
    data = pickle.dumps(_Call(function, "x"), protocol=protocol)
    with pytest.raises(ConvertError, match="refused"):
        unpickle(data, "here")


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",  # INST
        b"ctorch.distributed.checkpoint.metadata\nos.system\n(S'true'\ntR.",
        b"\x80\x04\x8c\x21torch.distributed.checkpoint.metas\x94.",
        b"\x80\x04\x8c\x1ctorch.distributed.checkpoint\x8c\x09os.system\x93(\x8c\x04truet\x93.",
        b"ctorch.hub\nload\n(S'a/b'\ntR.",
        b"ctorch.serialization\nload\n(S'x'\ntR.",
        b"ctorch._utils\n_rebuild_device_tensor_from_numpy\n.",
        b"\x80\x02Pstorage\n.",  # persistent id
        b"\x82\x01.",  # extension registry
    ],
)
def test_handmade_programs_are_refused(data: bytes) -> None:
    with pytest.raises(ConvertError):
        unpickle(data, "here")


@pytest.mark.parametrize("data", [b"", b".", b"\x80\x04", b"(((", b"\x80\x04]\x94(K\x01", b"]]]" * 100, b"N" * 10])
def test_damaged_pickles_are_our_error(data: bytes) -> None:
    with pytest.raises(ConvertError, match="damaged"):
        unpickle(data, "here")


def test_known_names_are_records_and_never_imported() -> None:
    data = b"cmegatron.core.dist_checkpointing.strategies.torch\nMCoreSavePlan\n(I1\ntR."
    record = unpickle(data, "here")
    assert isinstance(record, Record)
    assert record.args == (1,)
    assert type(record).__module__.startswith("converters")


def _getattr(owner: bytes, name: bytes) -> bytes:
    """A pickle, protocol 0, of `getattr(owner, name)`."""
    return b"cbuiltins\ngetattr\n(" + owner + b"V" + name + b"\ntR."


def test_an_enum_member_as_debian_12_pickles_it_is_a_record() -> None:
    owner = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
    member = unpickle(_getattr(owner, b"TORCH_CONTIGUOUS_FORMAT"), "here")
    assert isinstance(member, Record)
    assert member.name == "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING"
    assert member.args == ("TORCH_CONTIGUOUS_FORMAT",)


@pytest.mark.parametrize("owner", [b"}", b"(l", b"Vtext\n", b"ctorch\nSize\n", b"ccollections\nOrderedDict\n"])
def test_getattr_of_anything_else_is_refused(owner: bytes) -> None:
    with pytest.raises(ConvertError, match="refused"):
        unpickle(_getattr(owner, b"__class__"), "here")


def test_getattr_reaches_nothing_of_the_record_class() -> None:
    owner = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
    for name in (b"__subclasses__", b"__init__", b"get"):
        assert isinstance(unpickle(_getattr(owner, name), "here"), Record)


def test_state_cannot_change_the_record_class() -> None:
    """BUILD on the class itself, with a dict that would become its attributes."""
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    with pytest.raises(ConvertError, match="damaged"):
        unpickle(name + b"(N(S'__setstate__'\nNdtb.", "here")
    assert not hasattr(Record, "__setstate__")


def test_plain_values_pass() -> None:
    value = {"a": [1, 2.5, None, "x", b"y"], "b": (True, {3})}
    assert unpickle(pickle.dumps(value, protocol=4), "here") == value
    ordered = collections.OrderedDict(one=1)
    assert unpickle(pickle.dumps(ordered), "here") == {"one": 1}


def test_malicious_metadata_is_refused_and_not_run(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "executed"
    path = recorded.actor / "dist_ckpt" / ".metadata"
    path.write_bytes(pickle.dumps({"state_dict_metadata": _Call(os.system, f"touch {marker}")}))
    assert main(["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / "out")]) == 1
    assert "Nothing was executed" in capsys.readouterr().err
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def test_malicious_shard_is_refused_and_not_run(recorded: Recorded, tmp_path: Path) -> None:
    """A pickle in the place of a tensor's, of the same length."""
    marker = tmp_path / "executed"
    for shard in (recorded.actor / "dist_ckpt").glob("*.distcp"):
        data = shard.read_bytes()
        evil = b"\x80\x02" + b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
        shard.write_bytes(
            data.replace(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00", evil[:36].ljust(36, b"N"))
        )
    with pytest.raises(ConvertError):
        merge(recorded.run, tmp_path / "out")
    assert not marker.exists()


def test_path_out_of_the_folder_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded.actor / "dist_ckpt" / ".metadata"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"__0_0.distcp", b"../..//etc/x"))
    with pytest.raises(ConvertError, match=r"refused.*not a file of this folder"):
        merge(recorded.run, tmp_path / "out")
