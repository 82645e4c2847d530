"""What a rehearsal keeps of a job and what it shrinks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.config import load_job
from launch.engines.raw_overrides import fold
from launch.rehearsal.shrink import rehearse

LARGE = """
cluster: {nodes: 8, gpus_per_node: 8, gpu: h200, gpu_memory_gb: 141, mem: 900G}
container: {cuda: "12.9"}
rollout: {n: 16, tensor_parallel: 4, fp8: true, max_model_len: 9000, max_batched_tokens: 9000, max_num_seqs: 64}
actor: {tensor_parallel: 4, pipeline_parallel: 2, context_parallel: 2, expert_parallel: 8, dynamic_batch: true,
        expert_tensor_parallel: 1, max_tokens_per_gpu: 20000, recompute: true}
data: {max_prompt_length: 2048, max_response_length: 4096}
logging: {loggers: [console, wandb]}
"""


def test_sizes_shrink(tmp_path: Path):
    (tmp_path / "job.yaml").write_text(LARGE)
    job = rehearse(load_job("grpo", tmp_path / "job.yaml"))
    assert (job.cluster.nodes, job.cluster.gpus_per_node) == (3, 1)
    assert (job.cluster.gpu, job.cluster.gpu_memory_gb, job.cluster.mem, job.container.cuda) == (None,) * 4
    actor, rollout = job.actor, job.rollout
    assert (actor.tensor_parallel, actor.pipeline_parallel, actor.context_parallel) == (2, 1, 1)
    assert (actor.expert_parallel, actor.expert_tensor_parallel, actor.sequence_parallel) == (1, None, False)
    assert (actor.fp8, actor.recompute, actor.offload) == (None, None, [])
    assert (actor.dynamic_batch, actor.max_tokens_per_gpu) == (True, 8 * (256 + 16))
    assert (rollout.n, rollout.tensor_parallel, rollout.fp8) == (8, 1, False)
    assert (rollout.max_model_len, rollout.max_batched_tokens, rollout.max_num_seqs) == (None, None, None)
    assert (job.data.max_response_length, job.logging.loggers, job.checkpoint.every) == (16, ["console"], 30)


def test_the_algorithm_stays():
    dapo = rehearse(
        load_job("dapo", None, ["data.max_response_length=4096", "algorithm.overlong_buffer.length=1024"])
    )
    assert (dapo.algorithm.clip_ratio_high, dapo.algorithm.loss_agg_mode) == (0.28, "token-mean")
    assert (dapo.algorithm.overlong_buffer.enable, dapo.algorithm.overlong_buffer.length) == (True, 4)
    ppo = rehearse(load_job("ppo", None, ["critic={path: models/critic, warmup_steps: 20, clip_range: 0.3}"]))
    assert ppo.algorithm.estimator == "gae"
    assert (ppo.rollout.n, ppo.critic.path, ppo.critic.warmup_steps, ppo.critic.clip_range) == (1, None, 1, 0.3)


@pytest.mark.parametrize(("length", "shrunk"), [(1, 1), (256, 1), (2048, 8), (4095, 15), (4096, 15)])
def test_the_overlong_buffer_stays_below_the_response(length: int, shrunk: int):
    settings = ["data.max_response_length=4096", f"algorithm.overlong_buffer.length={length}"]
    assert rehearse(load_job("dapo", None, settings)).algorithm.overlong_buffer.length == shrunk


def test_a_shrunk_value_is_not_the_users():
    """Rules that warn about a field without effect ask which fields the user set."""
    job = rehearse(load_job("grpo", None, ["engine.mode=sync", "cluster.nodes=1"]))
    assert not job.critic.model_fields_set
    assert "nodes" not in job.rollout.model_fields_set


def test_raw_overrides_of_sizes_shrink_too():
    """A raw override has the last word, so that one of a large size must not be left."""
    raw = [
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4",
        "data.max_response_length=8192",
        "actor_rollout_ref.rollout.max_num_seqs=512",
        "critic.optim.lr=1e-6",
        "trainer.save_freq=100",
        "trainer.total_training_steps=500",
        "data.validation_shuffle=True",
    ]
    job = rehearse(fold(load_job("ppo", None, [f"overrides={json.dumps(raw)}"])).job)
    assert job.overrides == ["data.validation_shuffle=True"]
    assert (job.actor.pipeline_parallel, job.data.max_response_length, job.rollout.max_num_seqs) == (2, 16, None)
    assert (job.critic.lr, job.checkpoint.every, job.algorithm.total_steps) == (1e-3, 30, 30)
