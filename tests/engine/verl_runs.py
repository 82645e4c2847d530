"""Run verl's real trainer once, in a process of its own with its own Ray, and read what it left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.rehearsal.overrides import cpu_environment, cpu_overrides, ray_cpus

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT / "data_prep" / "samples" / "gsm8k" / "train.jsonl"
BATCH, SAMPLES = 4, 4  # prompts a step, responses a prompt
TIMEOUT_S = 300


@dataclass(frozen=True)
class Stack:
    """A Python with one verl version, and the models made with it."""

    python: str
    verl: str
    models: Path


@dataclass
class Run:
    """What a finished run left behind."""

    returncode: int
    log: str
    folder: Path
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def dumps(self) -> list[Path]:
        return sorted((self.folder / "weights").glob("*.safetensors"))

    def rewards(self) -> list[float]:
        """Every value that the reward function returned, in order; one process computed them all."""
        files = list((self.folder / "rewards").glob("*.jsonl"))
        assert len(files) == 1, files
        return [json.loads(line)["score"] for line in files[0].read_text().splitlines()]


def read_metrics(log: str) -> dict[int, dict[str, float]]:
    """Metrics by step from the console logger's lines, "step:1 - actor/loss:np.float64(0.1) - ..."."""
    metrics = {}
    for line in log.splitlines():
        if found := re.search(r"\bstep:(\d+) - ", line):
            pairs = re.findall(
                r"([\w/@.-]+):(?:np\.\w+\()?(-?\d[\d.e+-]*|nan|inf)\)?(?: - |$)", line[found.end() :]
            )
            metrics[int(found[1])] = {name: float(value) for name, value in pairs}
    return metrics


def train(
    stack: Stack,
    folder: Path,
    data: Path,
    *,
    actor: str,
    rollout: str = "hf",
    one_step_off: bool | None = None,
    steps: int = 2,
    actor_ranks: int = 1,
    rollout_ranks: int = 1,
    overrides: Sequence[str] = (),
) -> Run:
    """Train and save a checkpoint at the last step.

    Args:
        stack: Which verl.
        folder: New folder of the run.
        data: Parquet file.
        actor: "megatron" or "fsdp2".
        rollout: "hf" or "vllm".
        one_step_off: See `cpu_overrides`.
        steps: Training steps.
        actor_ranks: Logical GPUs of the training pool.
        rollout_ranks: Logical GPUs of the rollout pool (one-step-off).
        overrides: Added last.
    """
    if one_step_off is None:
        one_step_off = stack.verl != "0.6.1"
    gpus = actor_ranks + (rollout_ranks if one_step_off else 0)
    rewards, weights, home = (folder / name for name in ("rewards", "weights", "home"))
    for made in (rewards, weights, home):
        made.mkdir(parents=True)
    environment = {
        **os.environ,
        **cpu_environment(stack.verl, actor, rollout),
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "HYDRA_FULL_ERROR": "1",
        "REHEARSAL_DUMP_WEIGHTS": str(weights),
        "DIGIT_REWARD_LOG": str(rewards),
    }
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray_folder:  # Ray's socket paths must be short
        command = [
            stack.python,
            *_entry_point(actor, one_step_off),
            *_job_overrides(stack, folder, data, actor, one_step_off, actor_ranks, rollout_ranks, steps),
            *cpu_overrides(stack.verl, actor, rollout, one_step_off=one_step_off),
            f"ray_kwargs.ray_init.num_cpus={ray_cpus(gpus)}",
            f"+ray_kwargs.ray_init.num_gpus={gpus}",
            f"+ray_kwargs.ray_init._temp_dir={ray_folder}",
            "+ray_kwargs.ray_init.include_dashboard=False",
            "+ray_kwargs.ray_init.object_store_memory=200000000",
            *overrides,
        ]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                returncode = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                returncode = -1
            finally:
                with contextlib.suppress(ProcessLookupError):  # Ray's daemons are in the trainer's group
                    os.killpg(process.pid, signal.SIGKILL)
    text = (folder / "log").read_text(errors="replace")
    return Run(returncode, text, folder, read_metrics(text))


def _entry_point(actor: str, one_step_off: bool) -> list[str]:
    module = "verl.experimental.one_step_off_policy.main_ppo" if one_step_off else "verl.trainer.main_ppo"
    config = ("one_step_off_" if one_step_off else "") + (
        "ppo_megatron_trainer" if actor == "megatron" else "ppo_trainer"
    )
    return ["-m", module, f"--config-name={config}", "hydra.searchpath=[pkg://verl.trainer.config]"]


def _job_overrides(
    stack: Stack,
    folder: Path,
    data: Path,
    actor: str,
    one_step_off: bool,
    actor_ranks: int,
    rollout_ranks: int,
    steps: int,
) -> list[str]:
    """What a job would say, in the smallest sizes."""
    reward = "custom_reward_function" if stack.verl == "0.6.1" else "reward.custom_reward_function"
    overrides = [
        f"hydra.run.dir={folder}/hydra",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={BATCH}",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        f"actor_rollout_ref.model.path={stack.models}/policy",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={BATCH}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        f"actor_rollout_ref.rollout.n={SAMPLES}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        f"{reward}.path={Path(__file__).with_name('digit_reward.py')}",
        f"{reward}.name=compute_score",
        f"trainer.n_gpus_per_node={actor_ranks}",
        "trainer.nnodes=1",
        "trainer.logger=[console]",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        f"trainer.save_freq={steps}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=1",
        f"trainer.default_local_dir={folder}/checkpoints",
    ]
    if actor == "fsdp2":
        overrides += ["actor_rollout_ref.actor.strategy=fsdp2", "critic.strategy=fsdp2"]
    else:
        overrides += [
            "actor_rollout_ref.actor.megatron.use_dist_checkpointing=True",
            f"actor_rollout_ref.actor.megatron.dist_checkpointing_path={stack.models}/policy_mcore",
        ]
    if one_step_off:
        overrides += [
            "actor_rollout_ref.hybrid_engine=False",
            "rollout.nnodes=1",
            f"rollout.n_gpus_per_node={rollout_ranks}",
        ]
    return overrides
