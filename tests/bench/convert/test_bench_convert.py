"""The bench of converters: its checkpoint is one that mergers read, its verdicts are those of its numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from convert_report import table, targets
from mcore_inputs import Dimensions, dimensions, write
from timed import Run, run

from converters.merge import merge

ROOT = Path(__file__).parents[3]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_checkpoint_is_of_the_model_that_its_config_describes(tmp_path: Path) -> None:
    from safetensors import safe_open

    shape = Dimensions(3, hidden=16, ffn=24, heads=4, kv_heads=2, head=8, vocabulary=40)
    write(tmp_path / "actor", shape)
    assert len(list((tmp_path / "actor" / "model" / "dist_ckpt").glob("*.distcp"))) == 4
    merge(tmp_path / "actor", tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert len(list(file.keys())) == 2 + 3 * 11
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 3


@pytest.mark.parametrize("megabytes", [500, 1000, 4000])
def test_sizes_are_those_that_were_asked_for(megabytes: int) -> None:
    parts = dimensions(megabytes).parts()
    total = sum(2 * part.sizes[-1] * (part.sizes[-2] if len(part.sizes) > 1 else 1) for part in parts)
    assert total == pytest.approx(megabytes * 1e6, rel=0.02)


def test_time_and_memory_are_those_of_the_command(tmp_path: Path) -> None:
    code = "import time; held = b'x' * (60 << 20); time.sleep(0.3)"
    found = run([sys.executable, "-c", code], {}, tmp_path / "log")
    assert 0.3 < found.seconds < 30
    assert 60 < found.peak_mib < 150
    with pytest.raises(RuntimeError, match="ended with 3: told"):
        run([sys.executable, "-c", "print('told'); raise SystemExit(3)"], {}, tmp_path / "log")


def test_targets() -> None:
    def runs(ours: float, copy: float, verl: float, peak: float) -> dict[str, list[Run]]:
        named = {"ours": ours, "cp+fsync": copy, "verl": verl}
        return {name: [Run(seconds, 1, peak, 0)] * 3 for name, seconds in named.items()}

    largest = {500: 2**28, 1000: 2**28}
    good = {500: runs(3, 1, 5, 50), 1000: runs(1.5, 1, 5, 55)}
    assert [reached for _, reached in targets(good, largest)] == [True] * 6
    assert [reached for _, reached in targets({1000: runs(1.6, 1, 1.5, 900)}, largest)] == [False, False, False]
    grown = {500: runs(1, 1, 5, 50), 1000: runs(1, 1, 5, 65)}
    assert [reached for _, reached in targets(grown, largest)][-1] is False
    assert "1.50 times the time of cp -r until it is on disk" in targets(good, largest)[3][0]
    assert "1.50" in table(good)[4]
