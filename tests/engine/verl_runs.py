"""Run a rehearsal as a user does, by its rendered script without Slurm, and read what it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.config import Job, load_job
from launch.config.templates import Template
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.supervisor.training_log import read_steps

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT / "data_prep" / "samples" / "gsm8k" / "train.jsonl"
BATCH, SAMPLES = 4, 4  # prompts a step, responses a prompt
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Stack:
    """A Python with one verl version, and the models made with it."""

    python: str
    verl: str
    models: Path


@dataclass
class Run:
    """What a finished run left in its run directory."""

    folder: Path
    output: str

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def dumps(self) -> list[Path]:
        """Weight sets that the rollout received, in order."""
        return sorted((self.folder / "weights").glob("*.safetensors"))

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """verl's metrics by step."""
        (log,) = (self.folder / "logs").glob("*-trainer.log")
        return {step.number: step.metrics for step in read_steps(log)}

    @property
    def verdict(self) -> dict[str, object]:
        """How the job ended; empty where it left no verdict."""
        file = self.folder / "verdict.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def rewards(self) -> list[float]:
        """Every score that the reward function returned, in order; one process computed them all."""
        (file,) = (self.folder / "reward_log").glob("*.jsonl")
        return [json.loads(line)["score"] for line in file.read_text().splitlines()]


def _run(stack: Stack, folder: Path, script: Path, name: str) -> tuple[Run, int]:
    """The script in the run directory `name` of `folder`, with the stack's models; and its exit code."""
    run = Run(folder / name, "")
    shutil.copytree(stack.models, run.folder / "rehearsal")
    environment = {
        **os.environ,
        "LAUNCH_PYTHON": stack.python,
        "RUN_DIR": str(run.folder),
        "REHEARSAL_DUMP_WEIGHTS": str(run.folder / "weights"),
    }
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(["bash", script], env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # the supervisor then ends everything below it
            process.wait(120)
            code = -1
    run.output = (folder / "output").read_text(errors="replace")
    return run, code


def train(
    stack: Stack,
    folder: Path,
    data: Path,
    *settings: str,
    template: Template = "grpo",
    steps: int = 2,
    reshape: Callable[[Job], Job] = lambda job: job,
    fails: bool = False,
) -> Run:
    """Render a rehearsal with --set `settings` and run it with the stack's Python.

    Checkpoints are saved after every step. The models of the stack are put where the job would make them.

    Args:
        stack: Environment and models.
        folder: Empty folder of this test.
        data: Training file, for validation too.
        settings: Further --set arguments.
        template: Algorithm.
        steps: Steps of training.
        reshape: Last change to the shrunk job, for what a rehearsal does not do by itself.
        fails: Whether the run must fail.
    """
    engine = ["engine.mode=sync"] if stack.verl == "0.6.1" else []
    reward = ["reward.kind=function", f"reward.function={Path(__file__).with_name('digit_reward.py')}"]
    assignments = [
        f"engine.verl={stack.verl}",
        *engine,
        *([] if any(setting.startswith("reward.") for setting in settings) else reward),
        f"data.train=[{data}]",
        f"data.val=[{data}]",
        f"rehearsal.steps={steps}",
        f"rehearsal.train_batch_size={BATCH}",
        f"rehearsal.n={SAMPLES}",
        "rehearsal.max_prompt_length=64",
        *settings,
    ]
    job = rehearse(load_job(template, None, assignments))
    job = reshape(job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": 1})}))
    script = folder / "run.sh"
    script.write_text(render_script(RenderRequest(job, folder, script.name, rehearse=True)))
    run, code = _run(stack, folder, script, "run")
    if code > 0 and run.verdict.get("kind") == "port-taken":
        # verl asks the kernel for a free port and listens on it seconds later (single_controller/ray/base.py).
        # Slurm starts such a job again; here this stands for it.
        run, code = _run(stack, folder, script, "run-again")
    if fails and code > 0:
        return run
    if code != 0 or fails:
        logs = "".join(
            file.read_text(errors="replace")[-4000:] for file in (run.folder / "logs").glob("*trainer.log")
        )
        pytest.fail(f"exit code {code}\n{run.output}\n{logs}")
    return run
