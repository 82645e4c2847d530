"""The real trainer, a few steps of each combination: steps, rewards, checkpoints, and exactness of the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from verl_runs import BATCH, ROOT, SAMPLES, Run, Stack, train

from launch.config import Job

pytestmark = pytest.mark.engine


def check_steps(run: Run, steps: int, shift: Callable[[dict[str, float]], float] = lambda metrics: 0.0) -> None:
    """The trainer did every step, learned, and its scores are the reward function's plus `shift`."""
    assert sorted(run.metrics) == list(range(1, steps + 1))
    for metrics in run.metrics.values():
        assert metrics["actor/grad_norm"] > 0
    rewards = run.rewards()
    size = BATCH * SAMPLES
    assert len(rewards) >= steps * size
    for step, metrics in run.metrics.items():
        batch = rewards[(step - 1) * size : step * size]
        expected = sum(batch) / size + shift(metrics)
        assert metrics["critic/score/mean"] == pytest.approx(expected, abs=1e-5), step
    verdict = json.loads((run.folder / "verdict.json").read_text())
    assert (verdict["state"], verdict["steps_done"]) == ("completed", steps)


def check_critic(run: Run) -> None:
    """The critic learned: its values differ from the first step's, and it was saved beside the actor."""
    for metrics in run.metrics.values():
        assert metrics["critic/vf_loss"] > 0
        assert metrics["critic/grad_norm"] > 0
    assert run.metrics[1]["critic/values/mean"] != run.metrics[2]["critic/values/mean"]
    assert any(file.stat().st_size > 0 for file in (run.checkpoints / "global_step_2" / "critic").rglob("*"))


def check_log_probs(run: Run) -> None:
    """The rollout samples from the trainer's model: with equal weights their log-probs agree.

    Under bypass_mode the old log-probs are the rollout's, so that ppo_kl of the first update is their mean
    difference from the trainer's (bfloat16 in both; random weights would give more than 0.1).
    """
    assert run.metrics[1]["actor/ppo_kl"] == pytest.approx(0, abs=2e-3)
    assert run.metrics[1]["actor/pg_clipfrac"] == 0


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def check_exactness(run: Run, models: Path, received: int = -1) -> None:
    """The first step's checkpoint, merged, equals what the rollout received after it, bit for bit; it has changed.

    Most trainers send the weights before a step's generation: the last set that arrives in a run of two steps
    holds the first step's update, as global_step_1 does. 0.9.1's main_ppo sends them after each step: the last but
    one. The job itself merged the last checkpoint.
    """
    merged = run.folder / "merged"
    command = [sys.executable, "-m", "converters.merge", "--local_dir", str(run.checkpoints / "global_step_1")]
    command += ["--target_dir", str(merged), "--base_model", str(models / "policy")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trained, sent = tensors(merged), load_file(run.dumps[received])
    assert trained.keys() == sent.keys()
    for name, tensor in trained.items():
        assert tensor.dtype == sent[name].dtype, name
        assert torch.equal(tensor, sent[name]), name
    initial, last = load_file(models / "policy" / "model.safetensors"), tensors(run.folder / "hf_model")
    assert last.keys() == trained.keys()
    for before, after in ((initial, trained), (trained, last)):
        assert any(not torch.equal(before[name].to(tensor.dtype), tensor) for name, tensor in after.items())


ONE_RANK = ("cluster.nodes=1", "actor.pipeline_parallel=1")
TP2 = ("cluster.nodes=1", "actor={tensor_parallel: 2, pipeline_parallel: 1}")
PP2 = ("cluster.nodes=1", "actor.pipeline_parallel=2")

EVEN_IS_WORTHLESS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    digits = sum(character.isdigit() for character in solution_str)
    return 1.0 + digits / max(1, len(solution_str)) if int(ground_truth) % 2 else 0.0
"""
BREAKS_AFTER_A_STEP = f"""
import itertools
calls = itertools.count(1)

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if next(calls) > {BATCH * SAMPLES}:
        raise ValueError("no such answer")
    return sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
"""


def reward_function(folder: Path, text: str) -> list[str]:
    """The --set arguments of a job with this reward function."""
    path = folder / "reward.py"
    path.write_text(text)
    return ["reward.kind=function", f"reward.function={path}"]


def test_grpo_one_step_off(stack091: Stack, sums: Path, tmp_path: Path):
    """The default job: Megatron, two pipeline stages."""
    run = train(stack091, tmp_path, sums, *PP2)
    check_steps(run, 2)
    check_log_probs(run)
    with safe_open(run.dumps[-1], "pt") as dump:
        assert dump.metadata() == {"global_steps": "2"}
    check_exactness(run, stack091.models)


def test_verl_080_one_step_off(stack080: Stack, sums: Path, tmp_path: Path):
    run = train(stack080, tmp_path, sums, *TP2)
    check_steps(run, 2)
    check_log_probs(run)
    check_exactness(run, stack080.models)


def test_dapo_one_step_off_with_two_replicas(stack091: Stack, sums: Path, tmp_path: Path):
    """FSDP2, three slots: one training rank and two rollout replicas, against the rehearsal's own two and one.

    Of 16 tokens 15 are the buffer: the punishment is linear in the length from the second token on.
    """

    def two_replicas(job: Job) -> Job:
        return job.model_copy(update={"rollout": job.rollout.model_copy(update={"nodes": 2})})

    def punishment(metrics: dict[str, float]) -> float:
        assert metrics["response_length/min"] >= 1
        return -0.5 * (metrics["response_length/mean"] - 1) / 15

    dapo = [
        "actor.strategy=fsdp2",
        "actor.dynamic_batch=true",
        "cluster.nodes=3",
        "algorithm.overlong_buffer={length: 3840, penalty_factor: 0.5}",
        "data.max_response_length=4096",
    ]
    run = train(stack091, tmp_path, sums, *dapo, template="dapo", reshape=two_replicas)
    check_steps(run, 2, punishment)
    check_log_probs(run)
    last = [path for path in run.dumps if path.name.endswith("_update0003.safetensors")]
    assert [path.name[:8] for path in last] == ["replica0", "replica1"]
    assert last[0].read_bytes() == last[1].read_bytes()
    check_exactness(run, stack091.models)


def test_ppo_sync_with_the_reward_server(stack091: Stack, sums: Path, tmp_path: Path):
    """Actor, reference and critic of two tensor-parallel ranks, colocated with the rollout."""
    sync = ["engine.mode=sync", "reward.kind=server", f"rollout.n={SAMPLES}"]
    run = train(stack091, tmp_path, sums, *TP2, *sync, template="ppo")
    check_steps(run, 2)
    check_critic(run)
    check_exactness(run, stack091.models, received=-2)
    assert "reward server ready" in run.output


def test_an_exception_of_the_reward_function_ends_a_sync_job(stack091: Stack, sums: Path, tmp_path: Path):
    """After a step with a critic of FSDP2. 0.9.1's V1 trainer logs it and goes on: a job takes the other one."""
    settings = ["engine.mode=sync", "actor.strategy=fsdp2", "cluster.nodes=1", f"rollout.n={SAMPLES}"]
    function = reward_function(tmp_path, BREAKS_AFTER_A_STEP)
    run = train(stack091, tmp_path, sums, *settings, *function, template="ppo", fails=True)
    assert list(run.metrics) == [1]
    assert run.metrics[1]["critic/grad_norm"] > 0
    verdict = json.loads((run.folder / "verdict.json").read_text())
    assert (verdict["state"], verdict["steps_done"]) == ("failed", 1)
    assert "no such answer" in json.dumps(verdict)


def test_dynamic_sampling(stack091: Stack, sums: Path, tmp_path: Path):
    """The V1 trainer generates again for each prompt whose rewards are all equal, and trains on the others."""
    settings = ["engine.mode=sync", "actor.strategy=fsdp2", "cluster.nodes=1"]
    dapo = ["algorithm.filter_groups.enable=true", "algorithm.overlong_buffer.enable=false"]
    function = reward_function(tmp_path, EVEN_IS_WORTHLESS)
    run = train(stack091, tmp_path, sums, *settings, *dapo, *function, template="dapo", steps=1)
    assert list(run.metrics) == [1]
    assert run.metrics[1]["training/filter_groups/evicted_samples"] > 0
    assert run.metrics[1]["critic/score/min"] >= 1


def test_verl_061_ppo(stack061: Stack, sums: Path, tmp_path: Path):
    run = train(stack061, tmp_path, sums, *ONE_RANK, f"rollout.n={SAMPLES}", template="ppo")
    check_steps(run, 2)
    check_critic(run)
    check_exactness(run, stack061.models)


def test_verl_061_fsdp2(stack061: Stack, sums: Path, tmp_path: Path):
    run = train(stack061, tmp_path, sums, *ONE_RANK, "actor.strategy=fsdp2")
    check_steps(run, 2)
    check_exactness(run, stack061.models)


def test_vllm_rollout(stack_vllm: Stack, sums: Path, tmp_path: Path):
    run = train(stack_vllm, tmp_path, sums, *ONE_RANK, "rehearsal.rollout=vllm")
    check_steps(run, 2)
    check_log_probs(run)  # vLLM starts from random weights: the trainer's have arrived
