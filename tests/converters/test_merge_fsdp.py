"""FSDP shards that are missing, damaged, mixed up or malicious."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from merge_helpers import edit_json

from converters.errors import ConvertError
from converters.merge import merge

pytestmark = pytest.mark.engine


@pytest.fixture
def actor(written: dict[str, Path], tmp_path: Path) -> Path:
    """Qwen3 with 1003 rows of vocabulary over two ranks, to damage."""
    shutil.copytree(written["qwen3_odd-fsdp2"], tmp_path / "actor")
    return tmp_path / "actor"


@pytest.fixture
def tied_actor(written: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(written["qwen2_tied-fsdp2"], tmp_path / "actor")
    return tmp_path / "actor"


def _refused(actor: Path, tmp_path: Path, match: str) -> None:
    with pytest.raises(ConvertError, match=match):
        merge(actor, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["actor"]


def test_missing_shard_is_named(actor: Path, tmp_path: Path) -> None:
    (actor / "model_world_size_2_rank_1.pt").unlink()
    _refused(actor, tmp_path, r"model_world_size_2_rank_1\.pt")


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_truncated_shard_is_named(actor: Path, tmp_path: Path, keep: int) -> None:
    shard = actor / "model_world_size_2_rank_1.pt"
    shard.write_bytes(shard.read_bytes()[:keep])
    _refused(actor, tmp_path, r"model_world_size_2_rank_1\.pt.*(truncated|not a whole)")


def test_flipped_byte_in_the_weights_is_found(actor: Path, tmp_path: Path) -> None:
    shard = actor / "model_world_size_2_rank_0.pt"
    data = bytearray(shard.read_bytes())
    with zipfile.ZipFile(shard) as archive:
        member = max(archive.infolist(), key=lambda m: m.file_size)
    data[member.header_offset + 4096] ^= 1
    shard.write_bytes(data)
    _refused(actor, tmp_path, "CRC-32")


def test_shards_of_another_run_are_refused(actor: Path, written: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(written["qwen2_tied-fsdp2"] / "model_world_size_2_rank_1.pt", actor)
    _refused(actor, tmp_path, "do not hold the same tensors")


def test_shard_under_another_ranks_name_is_refused(actor: Path, tmp_path: Path) -> None:
    shutil.copy(actor / "model_world_size_2_rank_0.pt", actor / "model_world_size_2_rank_1.pt")
    _refused(actor, tmp_path, "holds the shard of rank 0")


def test_malicious_pickle_is_refused_and_not_run(actor: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Attack:
        def __reduce__(self) -> tuple:
            return (os.system, (f"touch {marker}",))

    _replace_pickle(actor / "model_world_size_2_rank_1.pt", {"model.embed_tokens.weight": Attack()})
    with pytest.raises(ConvertError, match=r"refused.*system"):
        merge(actor, tmp_path / "out")
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def _replace_pickle(shard: Path, value: object) -> None:
    import pickle

    buffer = io.BytesIO()
    with zipfile.ZipFile(shard) as old, zipfile.ZipFile(buffer, "w") as new:
        for member in old.infolist():
            data = pickle.dumps(value) if member.filename.endswith("data.pkl") else old.read(member)
            new.writestr(member.filename, data)
    shard.write_bytes(buffer.getvalue())


def test_tied_flag_against_untied_weights(actor: Path, tmp_path: Path) -> None:
    edit_json(actor / "huggingface" / "config.json", tie_word_embeddings=True)
    _refused(actor, tmp_path, "trained untied")


def test_untied_flag_against_tied_weights_keeps_both(tied_actor: Path, tmp_path: Path) -> None:
    """A state dict of a tied model holds lm_head too: with an untied config both are written, and are equal."""
    import torch
    from merge_helpers import load

    edit_json(tied_actor / "huggingface" / "config.json", tie_word_embeddings=False)
    merge(tied_actor, tmp_path / "out")
    tensors = load(tmp_path / "out")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_other_world_size_beside_is_told_apart(actor: Path, tmp_path: Path) -> None:
    (actor / "model_world_size_4_rank_0.pt").write_bytes(b"left over")
    merge(actor, tmp_path / "out")
    (actor / "fsdp_config.json").unlink()
    with pytest.raises(ConvertError, match="world sizes"):
        merge(actor, tmp_path / "out2")
