"""Pickles that want to run something: refused, and nothing happens."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import pickle
import random
import shutil
import struct
import subprocess
import time
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from merge_jobs import RECORDED, Recorded

from converters.checkpoint import torch_zip
from converters.checkpoint.torch_dist import read_index
from converters.errors import ConvertError
from converters.merge import main, merge
from converters.pickles.records import Record
from converters.pickles.safe_unpickle import unpickle


class _Call:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple:
        return self._reduced


@pytest.mark.parametrize(
    "function",
    [
        os.system,
        eval,
        exec,
        __import__,
        print,
        shutil.rmtree,
        pickle.loads,
        open,
        subprocess.Popen,
        os.execv,
        vars,
    ],
)
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
        b"\x82\x01.",
        b"\x83\x01\x00.",
        b"\x84\x01\x00\x00\x00.",  # extension registry
        b"\x97.",
        b"\x98.",  # buffers from outside
        b"cmegatron.core.os\nSystem\n.",
        b"ctorch.distributed.checkpoint.metadata\nos\n.",
        b"cnumpy.testing\nmeasure\n.",
        b"cnumpy\nload\n.",
        b"cmegatron.training\npretrain\n.",
        b"cfunctools\npartial\n.",
        b"coperator\nmethodcaller\n.",
        b"ctypes\nFunctionType\n.",
        b"crunpy\nrun_path\n.",
        b"cimportlib\nimport_module\n.",
        b"csocket\ncreate_connection\n.",
        b"c__builtin__\neval\n.",
        b"c__builtin__\n__import__\n.",
        b"cnt\nsystem\n.",
        b"cposix\nsystem\n.",
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


# ---- common.pt


@pytest.mark.parametrize("version", ["0131", "0161"])
def test_common_pt_of_megatron_core_is_read(version: str) -> None:
    """Optimizer, scheduler and arguments, with the enums and settings of that version (record_common.py)."""
    read = torch_zip.load(RECORDED.parent / f"common_mcore{version}.pt")
    assert list(read) == ["optimizer", "opt_param_scheduler", "args", "iteration", "content_metadata"]
    assert read["opt_param_scheduler"]["lr_decay_style"] == "cosine"
    assert read["optimizer"]["state"][0]["exp_avg"].shape == (2,)
    args = read["args"].state
    assert args["params_dtype"] == "BF16"
    assert args["attention_backend"].name == "megatron.core.transformer.enums.AttnBackend"
    assert args["optimizer"].state["lr"] == 1e-3


def _settings() -> dict[str, object]:
    """What argument parsers, numpy and torch hold."""
    counts: collections.defaultdict[str, dict] = collections.defaultdict(dict, a={1: 2})
    args = argparse.Namespace(
        dtype=torch.bfloat16, timeout=datetime.timedelta(seconds=3), scalar=np.float32(3.5), array=np.arange(4),
        flag=np.bool_(True), kind=np.dtype("float32"), state=np.random.RandomState(0).get_state()[:1],
        counts=counts, seen={1, 2}, frozen=frozenset("ab"), raw=b"abc\xff", array_of_bytes=bytearray(b"x"),
        span=range(3), queue=collections.deque([1, 2]), ordered=collections.OrderedDict(one=1),
        size=torch.Size([2, 3]), device=torch.device("cpu"), inner=types.SimpleNamespace(x=1), big=2**200,
        infinite=float("inf"), activation=torch.nn.functional.silu, text="é\n\\",
        generator=np.random.default_rng(0), load=Path("/x"),
    )  # fmt: skip
    return {"args": args, "iteration": 7, "metadata": {"type": "dp_reshardable"}}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_settings_in_every_protocol(protocol: int) -> None:
    state = _settings()
    read = unpickle(pickle.dumps(state, protocol=protocol), "here")
    assert list(read) == list(state)
    assert read["metadata"] == state["metadata"]
    args = read["args"].state
    assert (args["dtype"], args["big"], args["text"], args["size"]) == ("BF16", 2**200, "é\n\\", (2, 3))
    assert (args["infinite"], args["ordered"]) == (float("inf"), {"one": 1})


def test_malicious_common_pt_is_refused_and_not_run(recorded: Recorded, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    torch.save({"args": _Call(os.system, f"touch {marker}")}, recorded.actor / "dist_ckpt" / "common.pt")
    with pytest.raises(ConvertError, match=r"common\.pt:data\.pkl: refused.*posix\.system"):
        merge(recorded.run, tmp_path / "out")
    assert not marker.exists()


def test_common_pt_is_part_of_a_whole_checkpoint(recorded: Recorded) -> None:
    common = recorded.actor / "dist_ckpt" / "common.pt"
    os.truncate(common, common.stat().st_size // 2)
    with pytest.raises(ConvertError, match=r"common\.pt: not a whole torch\.save file"):
        read_index(recorded.actor / "dist_ckpt")
    common.unlink()
    with pytest.raises(ConvertError, match=r"common\.pt: missing"):
        read_index(recorded.actor / "dist_ckpt")


# ---- bombs


def _deep(opening: bytes, closing: bytes, depth: int) -> bytes:
    return opening * depth + closing * depth


_SHARED = b")q\x00" + b"".join(b"0h%ch%c\x86q%c" % (n, n, n + 1) for n in range(200))
_BOMBS = {
    "memo of 2**32": b"Nr" + b"\xff" * 4 + b".",
    "text memo": b"Np" + b"9" * 30 + b"\n.",
    "bytes of 2**62": b"\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "text of 2**62": b"\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "bytearray of 2**62": b"\x96" + struct.pack("<Q", 2**62) + b"x.",
    "text of 2**32": b"X" + b"\xff" * 4 + b"x.",
    "frame of 2**62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "number of 2**31 bytes": b"\x8b" + b"\xff" * 4 + b"x.",
    "number of a million digits": b"I" + b"9" * 10**6 + b"\n.",
    "key that doubles 200 times": b"}" + _SHARED + b"Ns.",
    "key of 10**5 tuples": b"}" + b")" + b"\x85" * 10**5 + b"Ns.",
    "set of 10**5 tuples": b"\x8f(" + b")" + b"\x85" * 10**5 + b"\x90.",
    "long key": b"}(" + b"N" * 1000 + b"tNs.",
    "list as a key": b"}]Ns.",
    "10**5 marks": b"(" * 10**5,
}


def _outcome(data: bytes) -> str:
    """What is said of a program; "" when it is read."""
    try:
        unpickle(data, "here")
    except ConvertError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", list(_BOMBS))
def test_bombs_end_at_once(name: str) -> None:
    started = time.process_time()
    told = _outcome(_BOMBS[name])
    assert time.process_time() - started < 1
    assert len(told) < 1000
    assert told.startswith("here: damaged: not a readable pickle") or ("memo" in name and not told)


@pytest.mark.parametrize(
    "data", [_SHARED + b".", _deep(b"(", b"t", 10**5) + b".", _deep(b"]", b"a", 10**5)[:-1] + b"."]
)
def test_containers_without_end_are_no_file_of_torch_save(tmp_path: Path, data: bytes) -> None:
    """A walk through the value is bounded as well."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", data)
    started = time.process_time()
    with pytest.raises(ConvertError, match="containers in each other"):
        torch_zip.load(tmp_path / "x.pt")
    assert time.process_time() - started < 3


def _pt(path: Path, program: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A file of torch.save with another pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x/data.pkl", program)
    return path


_PARAMETER = b"ctorch._utils\n_rebuild_parameter\n"
_DOUBLED = b"K\x01" + b"2\x86" * 40
_IN_RECORDS = {
    "arguments": b"ctorch\ndevice\n" + _DOUBLED + b"\x85R.",
    "state": b"cargparse\nNamespace\n)R" + _DOUBLED + b"b.",
    "items": b"ccollections\ndeque\n)R" + _DOUBLED + b"a.",
    "parameters": b"N" + (b"2\x86q\x000" + _PARAMETER + b"h\x00\x85R") * 40 + b".",
    "deep state": b"cargparse\nNamespace\n)RK\x01" + b"\x85" * 5000 + b"b.",
    "deep parameters": _PARAMETER * 5000 + b"K\x01" + b"\x85R" * 5000 + b".",
    "holds itself": b"]q\x00" + _PARAMETER + b"h\x00\x85Ra.",
}


@pytest.mark.parametrize("name", list(_IN_RECORDS))
def test_what_records_hold_is_bounded_as_well(name: str, tmp_path: Path) -> None:
    """Their arguments, state and items are walked too: a DTensor is one."""
    with pytest.raises(ConvertError, match="containers in each other"):
        torch_zip.load(_pt(tmp_path / "x.pt", _IN_RECORDS[name]))


def test_records_may_hold_each_other(tmp_path: Path) -> None:
    """A mesh that was flattened holds its root, which holds it; an enum its members."""
    program = b"cargparse\nNamespace\n)Rq\x00}(X\x04\x00\x00\x00selfh\x00ub."
    found = torch_zip.load(_pt(tmp_path / "x.pt", program))
    assert found.state["self"] is found


def test_a_pickle_that_is_compressed_is_refused(tmp_path: Path) -> None:
    """1.5 GB of zeros are 1.4 MB; torch.save compresses nothing."""
    bomb = b"\x8e" + struct.pack("<Q", 10**7) + bytes(10**7) + b"."
    with pytest.raises(ConvertError, match=r"x\.pt: refused: x/data\.pkl is compressed"):
        torch_zip.load(_pt(tmp_path / "x.pt", bomb, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("field", [20, 24], ids=["packed", "unpacked"])
def test_a_pickle_longer_than_its_file_is_refused(field: int, tmp_path: Path) -> None:
    path = _pt(tmp_path / "x.pt", b"N.")
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + field
    data[at : at + 4] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=r"x\.pt: refused: x/data\.pkl is compressed, or"):
        torch_zip.load(path)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float8_e4m3fnuz"])
def test_a_type_that_is_not_read_is_named_and_not_called_harmful(dtype: str, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3).to(getattr(torch, dtype))}, tmp_path / "x.pt")
    with pytest.raises(
        ConvertError, match=r"x\.pt: holds a tensor of type torch\.\w+, which is not read"
    ) as caught:
        torch_zip.load(tmp_path / "x.pt")
    assert "refused" not in str(caught.value)


def test_damaged_bytes_are_our_error_or_values(unpacked: Recorded) -> None:
    """Bytes of a real program, changed at random: no other exception, and no hang."""
    settings = _settings()
    whole = (unpacked.actor / "dist_ckpt" / ".metadata").read_bytes()
    draw = random.Random(7)
    started = time.process_time()
    for data in (
        pickle.dumps(settings, protocol=2),
        pickle.dumps(settings, protocol=4),
        whole[-3000:],
        whole[:3000],
    ):
        for _ in range(150):
            changed = bytearray(data)
            for _ in range(draw.randrange(1, 8)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            if draw.random() < 0.2:
                del changed[draw.randrange(1, len(changed)) :]
            assert _outcome(bytes(changed))[:5] in ("", "here:")
    assert time.process_time() - started < 20
