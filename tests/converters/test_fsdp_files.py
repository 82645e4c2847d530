"""Numbers in the files of FSDP that cannot be true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from converters.checkpoint import fsdp
from converters.checkpoint.locate import locate
from converters.errors import ConvertError


@pytest.mark.parametrize("world", [10**9, -1, 0, 2.0, "2", None, True])
def test_number_of_ranks_is_bounded(tmp_path: Path, world: object) -> None:
    (tmp_path / "fsdp_config.json").write_text(json.dumps({"world_size": world}))
    with pytest.raises(ConvertError, match="world_size is"):
        fsdp.shard_files(tmp_path)


def test_number_of_ranks_in_a_name_is_bounded(tmp_path: Path) -> None:
    (tmp_path / f"model_world_size_{10**9}_rank_0.pt").touch()
    with pytest.raises(ConvertError, match=r"no fsdp_config\.json"):
        fsdp.shard_files(tmp_path)


def test_a_tensor_of_more_elements_than_bytes_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(ConvertError, match=r"w \[1000000000000\] is more than its 4 bytes"):
        fsdp.read_index(tmp_path)


def test_shards_without_the_file_of_their_number_are_told(tmp_path: Path) -> None:
    (tmp_path / "model_world_size_1_rank_0.pt").touch()
    (note,) = locate(tmp_path).notes
    assert "fsdp_config.json is missing: the number of ranks is that in the names" in note
    (tmp_path / "fsdp_config.json").write_text('{"world_size": 1}')
    assert locate(tmp_path).notes == ()
