"""The V1 trainer of verl 0.9.1 saves before the end of the allocation: the hook on verl's own class."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.hooks.save_before_end import MODULE

ROOT = Path(__file__).resolve().parents[2]
HOOK = "launch.hooks.save_before_end"
# Steps of a real PPOTrainerSync whose work is left out; prints trainer.save_freq as `fit` reads it after each.
STEPS = """
import json, os, sys, time
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from transfer_queue import KVBatchMeta

class Trainer(PPOTrainerSync):
    def __init__(self, save_freq):
        self.parameter_sync_step = 1
        self.config = OmegaConf.create(
            {"data": {"train_batch_size": 4}, "trainer": {"save_freq": save_freq, "esi_redundant_time": 300}}
        )
        OmegaConf.set_struct(self.config, True)
    def prepare_step(self):
        return {}
    def _step_once(self, metrics, timing_raw, size):
        time.sleep(0.01)
        return KVBatchMeta(partition_id="train", keys=["a"], tags=[{}])

told = []
for save_freq, times in json.loads(sys.argv[1]):
    trainer, seen = Trainer(save_freq), []
    for remaining in times:
        if remaining is None:
            os.environ.pop("MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP", None)
        else:
            os.environ["MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"] = str(time.time() + remaining)
        batch = trainer.step({}, {})
        assert batch.keys == ["a"]
        seen.append(trainer.config.trainer.save_freq)
    told.append(seen)
print("TOLD", json.dumps(told))
"""


def environment(modules: str) -> dict[str, str]:
    platform = {"VERL_PLATFORM": "cpu"} if "rehearsal" in modules else {}
    return {**os.environ, **platform, "PYTHONPATH": str(ROOT), "VERL_USE_EXTERNAL_MODULES": modules}


def save_freqs(modules: str, *cases: tuple[int, list[float | None]]) -> list[list[int]]:
    """trainer.save_freq after steps at these seconds before the end, for each (save_freq of the job, seconds)."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS, json.dumps(cases)],
        env=environment(modules),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rpartition("TOLD ")[2])


@pytest.mark.parametrize("modules", [HOOK, f"launch.rehearsal.backend,{HOOK}"])
def test_the_v1_trainer_saves_in_the_last_minutes(modules: str):
    """Near is 300 s of margin, verl's 60 s and a step; past the end there is nothing to save for."""
    freqs, never = save_freqs(modules, (25, [None, 9999, 359, 100, -5, 9999]), (-1, [359]))
    assert freqs == [25, 25, 1, 1, 25, 25]
    assert never == [-1]


def test_without_the_hook_it_would_not():
    """When verl learns it by itself, the hook can go."""
    assert save_freqs("", (25, [359])) == [[25]]


def test_the_frequency_is_read_after_the_step():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    text = inspect.getsource(PPOTrainer.fit)
    assert 0 < text.index("self.step(") < text.index("self.config.trainer.save_freq > 0")
    assert "step" not in vars(PPOTrainerSync)


def test_a_process_that_trains_nothing_pays_nothing():
    code = f"import verl, sys; sys.exit('{HOOK}' not in sys.modules or '{MODULE}' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(HOOK),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
