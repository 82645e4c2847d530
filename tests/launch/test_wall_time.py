"""The end of the allocation: verl's own rule and the supervisor's beside each other."""

import ast
import os
import time
from pathlib import Path

import pytest

from launch.config import load_job
from launch.engines.command import trainer_command
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.wall_time import (
    END_S,
    LAST_STEP_S,
    VARIABLE,
    VERL_SAVE_S,
    expiration_environment,
    in_last_minutes,
    out_of_time,
)

WORDS = [
    "--run-dir", "/r", "--checkpoint-dir", "/c", "--nodes", "1", "--ray-gpus-head", "1", "--ray-gpus-other", "0",
    "--ray-cpus", "9",
]  # fmt: skip
END = 1_000_000.0


def settings(end: float | None = END, margin: float = 300.0) -> Settings:
    words = [*WORDS, "--end-margin", str(margin)] + ([] if end is None else ["--ends-at", str(end)])
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    return read_settings([*words, "::trainer", "t"], slurm)


def test_an_unknown_end_is_no_end():
    assert expiration_environment(settings(None)) == {}
    assert not out_of_time(settings(None), time.time(), time.time())


def test_the_trainer_ends_before_the_allocation():
    assert not out_of_time(settings(), END - END_S - 1)
    assert out_of_time(settings(), END - END_S)
    assert out_of_time(settings(), END + 10)


@pytest.mark.parametrize(
    ("before_end", "ago", "out"),
    [
        (END_S + 300 + VERL_SAVE_S, 31, True),
        (END_S + 300 + VERL_SAVE_S + 1, 31, False),
        (END_S + 200, 31, True),
        (END_S + 200, 29, False),  # it may have been the last step
    ],
)
def test_a_checkpoint_of_the_last_minutes_ends_the_trainer(before_end: float, ago: float, out: bool):
    saved_at = END - before_end
    assert out_of_time(settings(), saved_at + ago, saved_at) is out


class Trainer:
    """A trainer with verl's rule, and a supervisor that looks at it every two seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float, save_s: float, margin: float) -> None:
        from verl.utils.checkpoint.checkpoint_manager import should_save_ckpt_esi

        self.job = settings(END, margin)
        for name, value in expiration_environment(self.job).items():
            monkeypatch.setenv(name, value)
        self.now = END - 7200.0
        monkeypatch.setattr(time, "time", lambda: self.now)
        self.first: float | None = None
        self.saves: list[float] = []  # seconds before the end of the allocation at which each was whole
        self.lost = 0
        while self._lasts(step_s):
            self.lost += 1
            if should_save_ckpt_esi(max_steps_duration=step_s, redundant_time=margin):
                if not self._lasts(save_s):
                    break
                self.saves.append(END - self.now)
                self.lost = 0
                if self.first is None and in_last_minutes(self.job, self.now):
                    self.first = self.now

    def _lasts(self, duration: float) -> bool:
        """Whether the trainer lives that much longer."""
        until = self.now + duration
        while self.now < until:
            if out_of_time(self.job, self.now, self.first):
                return False
            self.now = min(self.now + 2.0, until)
        return not out_of_time(self.job, self.now, self.first)


@pytest.mark.parametrize("step_s", [1, 20, 300, 900])
@pytest.mark.parametrize("save_s", [1, 60, 300, 359])
def test_verls_rule_and_ours_save_in_time(monkeypatch: pytest.MonkeyPatch, step_s: float, save_s: float):
    """A save of up to before_end_s + 60 s is whole, and hardly anything is trained after it."""
    trainer = Trainer(monkeypatch, step_s, save_s, 300.0)
    assert trainer.saves[-1] >= END_S
    assert trainer.lost <= LAST_STEP_S / step_s
    assert len(trainer.saves) <= 2 + LAST_STEP_S / (step_s + save_s)


def test_a_longer_save_needs_a_longer_margin(monkeypatch: pytest.MonkeyPatch):
    assert Trainer(monkeypatch, 20, 500, 0.0).saves == []
    assert Trainer(monkeypatch, 20, 500, 500.0).saves != []


@pytest.mark.parametrize("version", ["0.6.1", "0.8.0", "0.9.1"])
def test_the_margin_is_verls_redundant_time(version: str):
    mode = "sync" if version == "0.6.1" else "one_step_off"
    job = load_job("grpo", None, [f"engine={{verl: {version}, mode: {mode}}}", "checkpoint.before_end_s=120"])
    command = trainer_command(job, Path("/p"), rehearse=False, sample_data=False)
    assert "trainer.esi_redundant_time=120.0" in command.overrides


def test_the_variable_is_verls():
    import verl.utils.checkpoint.checkpoint_manager as manager

    names = [
        node.value
        for node in ast.walk(ast.parse(Path(manager.__file__).read_text()))
        if isinstance(node, ast.Constant)
    ]
    assert VARIABLE in names
    assert VARIABLE not in os.environ
