"""The real trainer, a few steps of each combination: steps, rewards, checkpoints, and exactness of the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from verl_runs import BATCH, ROOT, SAMPLES, Run, Stack, train

pytestmark = pytest.mark.engine


def check_steps(run: Run, steps: int) -> None:
    """The trainer did every step, learned, and its scores are the reward function's."""
    assert sorted(run.metrics) == list(range(1, steps + 1))
    for metrics in run.metrics.values():
        assert metrics["actor/grad_norm"] > 0
    rewards = run.rewards()
    size = BATCH * SAMPLES
    assert len(rewards) >= steps * size
    for step, metrics in run.metrics.items():
        batch = rewards[(step - 1) * size : step * size]
        assert metrics["critic/score/mean"] == pytest.approx(sum(batch) / size, abs=1e-5), step
    verdict = json.loads((run.folder / "verdict.json").read_text())
    assert (verdict["state"], verdict["steps_done"]) == ("completed", steps)


def check_log_probs(run: Run) -> None:
    """The rollout samples from the trainer's model: with equal weights their log-probs agree.

    Under bypass_mode the old log-probs are the rollout's, so that ppo_kl of the first update is their mean
    difference from the trainer's (bfloat16 in both; random weights would give more than 0.1).
    """
    assert run.metrics[1]["actor/ppo_kl"] == pytest.approx(0, abs=2e-3)
    assert run.metrics[1]["actor/pg_clipfrac"] == 0


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def check_exactness(run: Run, models: Path) -> None:
    """The first step's checkpoint, merged, equals what the rollout received next, bit for bit, and has changed.

    Both trainers send the weights before a step's generation: the last set that arrives in a run of two steps
    holds the first step's update, as global_step_1 does. The job itself merged the last checkpoint.
    """
    merged = run.folder / "merged"
    command = [sys.executable, "-m", "converters.merge", "--local_dir", str(run.checkpoints / "global_step_1")]
    command += ["--target_dir", str(merged), "--base_model", str(models / "policy")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trained, received = tensors(merged), load_file(run.dumps[-1])
    assert trained.keys() == received.keys()
    for name, tensor in trained.items():
        assert tensor.dtype == received[name].dtype, name
        assert torch.equal(tensor, received[name]), name
    initial, last = load_file(models / "policy" / "model.safetensors"), tensors(run.folder / "hf_model")
    assert last.keys() == trained.keys()
    for before, after in ((initial, trained), (trained, last)):
        assert any(not torch.equal(before[name].to(tensor.dtype), tensor) for name, tensor in after.items())


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2)], ids=["tp1", "tp2", "pp2"])
def test_megatron_one_step_off(stack091: Stack, sums: Path, tmp_path: Path, tensor: int, pipeline: int):
    sizes = f"actor={{tensor_parallel: {tensor}, pipeline_parallel: {pipeline}}}"
    run = train(stack091, tmp_path, sums, sizes, "cluster.nodes=1")
    check_steps(run, 2)
    check_log_probs(run)
    with safe_open(run.dumps[-1], "pt") as dump:
        assert dump.metadata() == {"global_steps": "2"}
    check_exactness(run, stack091.models)


def test_fsdp2_one_step_off_with_two_replicas(stack091: Stack, sums: Path, tmp_path: Path):
    """Three slots: one training rank and two rollout replicas, against the rehearsal's own two and one."""
    pools = ["trainer.nnodes=1", "rollout.n_gpus_per_node=2"]
    run = train(stack091, tmp_path, sums, "actor.strategy=fsdp2", "cluster.nodes=3", overrides=pools)
    check_steps(run, 2)
    check_log_probs(run)
    last = [path for path in run.dumps if path.name.endswith("_update0003.safetensors")]
    assert [path.name[:8] for path in last] == ["replica0", "replica1"]
    assert last[0].read_bytes() == last[1].read_bytes()
    check_exactness(run, stack091.models)


def test_colocated_main_ppo_with_the_reward_server(stack091: Stack, sums: Path, tmp_path: Path):
    one = ["engine.mode=sync", "cluster.nodes=1", "actor.pipeline_parallel=1", "reward.kind=server"]
    run = train(stack091, tmp_path, sums, *one)
    check_steps(run, 2)
    assert "reward server ready" in run.output


@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
def test_verl_061(stack061: Stack, sums: Path, tmp_path: Path, strategy: str):
    one = [f"actor={{strategy: {strategy}, pipeline_parallel: 1}}", "cluster.nodes=1"]
    run = train(stack061, tmp_path, sums, *one)
    check_steps(run, 2)
    check_exactness(run, stack061.models)


def test_vllm_rollout(stack_vllm: Stack, sums: Path, tmp_path: Path):
    one = ["rehearsal.rollout=vllm", "cluster.nodes=1", "actor.pipeline_parallel=1"]
    run = train(stack_vllm, tmp_path, sums, *one)
    check_steps(run, 2)
    check_log_probs(run)  # vLLM starts from random weights: the trainer's have arrived
