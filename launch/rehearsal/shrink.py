"""Shrink a job to what a machine without GPUs can run, keeping its way: engine, mode, algorithm, actor, nodes."""

from typing import Any, TypeVar, cast

from launch.config import Job
from launch.config.algorithm import Algorithm
from launch.config.base import Section
from launch.config.cluster import Cluster
from launch.config.services import Checkpoint
from launch.config.training import Actor, Critic, Rollout
from launch.sizing.layout import has_reward_node
from launch.sizing.slurm_time import time_seconds

MAX_TRAIN_RANKS = 2
MAX_NODES = 3

Part = TypeVar("Part", bound=Section)


def rehearse(job: Job) -> Job:
    """The rehearsal of `job`: the same verl version, mode, algorithm, actor strategy and reward path, tiny.

    - model: one of `rehearsal.family`, dense even where the job's has experts; the critic starts from it too;
    - nodes: as in the job, at most 3, and 3 where the job does not say (head with the rollout, two training
      ranks on two other nodes, or one and a reward node); "GPUs" are slots that Ray counts, not hardware;
    - parallel sizes: tensor and pipeline size are kept while their product is at most 2, the others become 1;
    - what only a GPU has (FP8, offload, CUDA graphs, memory limits) is off;
    - batch sizes, lengths and learning rates: from the `rehearsal` section, DAPO's overlong buffer in proportion.
    """
    small = job.rehearsal
    actor = _actor(job)
    return _with(
        job,
        name=f"{job.name}-rehearsal",
        cluster=_cluster(job, actor.tensor_parallel * actor.pipeline_parallel),
        container=_with(job.container, image=small.image, cuda=None, stack=None),
        rollout=_rollout(job),
        actor=actor,
        critic=_critic(job),
        data=_with(
            job.data,
            train_batch_size=small.train_batch_size,
            max_prompt_length=small.max_prompt_length,
            max_response_length=small.max_response_length,
        ),
        # The tiny model is served here, whatever serves the job's.
        reward=_with(
            job.reward,
            gpus=0,
            backend="transformers",
            upstream=None,
            upstream_key_file=None,
            dtype="auto",
            batch_tokens=None,
            trust_remote_code=False,
        ),
        algorithm=_algorithm(job),
        checkpoint=_checkpoint(job),
        logging=_with(job.logging, loggers=["console"]),
    )


def _with(part: Part, **values: Any) -> Part:
    """A copy with other values, that still knows which fields the user set: rules look at that."""
    copy = type(part).model_construct(set(part.model_fields_set), **{**dict(part), **values})
    return cast(Part, copy)


def _cluster(job: Job, ranks: int) -> Cluster:
    """Nodes and slots for a rollout of one rank and `ranks` training ranks."""
    given = min(job.cluster.nodes, MAX_NODES) if "nodes" in job.cluster.model_fields_set else MAX_NODES
    # One of them serves rewards alone; a job of one node is told that it has none left.
    apart = has_reward_node(job) and given > 1
    nodes = given - apart
    if job.engine.mode == "sync":
        # One pool for both; the HF rollout holds one copy for each rank.
        nodes = min(nodes, ranks)
        slots = ranks // nodes
    elif nodes == 1:
        slots = 1 + ranks
    else:
        slots = ranks if (nodes - 1) % ranks else 1
    return _with(
        job.cluster,
        nodes=nodes + apart,
        gpus_per_node=slots,
        gpu=None,
        gpu_memory_gb=None,
        mem=None,
        extra_sbatch=[option for option in job.cluster.extra_sbatch if not option.startswith("--gres")],
        cpus_per_node=job.rehearsal.cpus_per_node,
        time=job.rehearsal.time,
    )


def _checkpoint(job: Job) -> Checkpoint:
    """One at the end, more where the job says so; a short time limit is not all kept free."""
    kept, limit = job.checkpoint, time_seconds(job.rehearsal.time)
    before_end = kept.before_end_s
    if limit and before_end > limit / 3 and ("before_end_s" not in kept.model_fields_set or before_end >= limit):
        before_end = limit // 10
    every = job.rehearsal.steps
    if "every" in kept.model_fields_set:
        every = min(kept.every, every)
    return _with(kept, every=every, dir=job.output_dir, before_end_s=float(before_end))


def _rollout(job: Job) -> Rollout:
    return _with(
        job.rollout,
        nodes=1,
        gpus_per_node=1,
        tensor_parallel=1,
        n=min(job.rollout.n, job.rehearsal.n),
        fp8=False,
        max_model_len=None,
        max_batched_tokens=None,
        chunked_prefill=True,
        max_num_seqs=None,
        enforce_eager=None,
        free_cache=None,
    )


def _actor(job: Job) -> Actor:
    small = job.rehearsal
    tensor = min(job.actor.tensor_parallel, MAX_TRAIN_RANKS)
    pipeline = min(job.actor.pipeline_parallel, MAX_TRAIN_RANKS // tensor)
    if job.actor.strategy == "fsdp2":
        tensor = pipeline = 1
    # Two data-parallel ranks have a micro batch each, even with one response for each prompt.
    sequences = small.train_batch_size * min(job.rollout.n, small.n)
    micro = max(1, min(small.train_batch_size, sequences // MAX_TRAIN_RANKS))
    tokens = micro * (small.max_prompt_length + small.max_response_length)
    return _with(
        job.actor,
        gpus_per_node=None,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=None,
        # The local layers of Megatron-core that stand in for Transformer Engine's do without.
        sequence_parallel=False,
        fp8=None,
        lr=small.lr,
        mini_batch_size=small.train_batch_size,
        micro_batch_size_per_gpu=micro,
        max_tokens_per_gpu=tokens if job.actor.dynamic_batch else None,
        recompute=None,
        offload=[],
    )


def _critic(job: Job) -> Critic:
    small = job.rehearsal
    return _with(
        job.critic,
        path=None,
        lr=small.lr,
        micro_batch_size_per_gpu=None,
        # One step of warm-up stands for many, and leaves the actor steps of its own.
        warmup_steps=min(job.critic.warmup_steps, 1, small.steps - 1),
        offload=[],
    )


def _algorithm(job: Job) -> Algorithm:
    small, algorithm = job.rehearsal, job.algorithm
    buffer = algorithm.overlong_buffer
    length = round(buffer.length * small.max_response_length / job.data.max_response_length)
    return _with(
        algorithm,
        total_steps=small.steps,
        epochs=small.steps,
        test_every=-1,
        overlong_buffer=_with(buffer, length=max(1, min(length, small.max_response_length - 1))),
    )
