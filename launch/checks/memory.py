"""GPU memory: what cannot fit at all is an error, what the estimate finds tight is a warning."""

from collections.abc import Iterator
from pathlib import Path

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.shape import ModelShape, ShapeError, read_shape
from launch.sizing.batches import expert_group, model_parallel
from launch.sizing.layout import Layout, plan_layout
from launch.sizing.memory import GIB, GpuMemory, MemoryEstimate, estimate, gpu_memory

# The CUDA context, NCCL and fragments take the rest.
_FULL = 0.9


def estimate_job(job: Job, project: Path) -> MemoryEstimate | None:
    """The estimate of a job; None where a model's shape is not known or the pools do not divide (reported by other
    rules)."""
    layout = plan_layout(job)
    if not _divides(job, layout):
        return None
    shape = _shape(project / job.model.path)
    if shape is None:
        return None
    critic = _shape(project / job.critic.path) if job.critic.path is not None else None
    return estimate(job, shape, layout, critic=critic)


def _divides(job: Job, layout: Layout) -> bool:
    world = layout.train_world
    if job.actor.strategy == "megatron" and world % expert_group(job):
        return False
    return layout.train_nodes >= 1 and layout.train_gpus >= 1 and world % model_parallel(job) == 0


def _shape(folder: Path) -> ModelShape | None:
    if not folder.is_dir():
        return None
    try:
        return read_shape(folder)
    except ShapeError:
        return None


def check_memory(job: Job, project: Path) -> Iterator[Finding]:
    """Training, rollout and reward model against the memory of one GPU.

    Where only the GPU's name is known and it covers several sizes, nothing is an error.
    """
    found = estimate_job(job, project)
    if found is None:
        return
    gpu = gpu_memory(job)
    if gpu is None:
        known = f"cluster.gpu={job.cluster.gpu} is not known" if job.cluster.gpu else "cluster.gpu is not given"
        yield warning(
            "memory-unknown",
            f"{known}: whether the model fits on a GPU is not checked",
            "set cluster.gpu_memory_gb to the memory of one GPU, e.g. 80",
        )
        return
    for finding in (*_training(job, found, gpu), *_rollout(job, found, gpu), *_reward(job, project, gpu)):
        if finding.severity == "error" and not gpu.sure:
            yield warning(finding.id, finding.message, f"set cluster.gpu_memory_gb; {finding.remedy}")
        else:
            yield finding


def _training(job: Job, found: MemoryEstimate, gpu: GpuMemory) -> Iterator[Finding]:
    training = found.training
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in training.parts)
    if training.floor > gpu.gib:
        yield error(
            "memory-training",
            f"weights, gradients and optimizer take {training.floor:.1f} GiB on a training GPU of {gpu.gib:.1f} "
            f"GiB ({gpu.source})",
            _spread(job),
        )
    elif training.total > _FULL * gpu.gib:
        yield warning(
            "memory-training",
            f"an update is estimated at {training.total:.1f} GiB on a training GPU of {gpu.gib:.1f} GiB "
            f"({gpu.source}), with every sequence at full length: {parts}",
            _relief(job, dict(training.parts)),
        )
    if found.together is not None and found.together > gpu.gib:
        stays = "and the training's states beside it" if job.rollout.free_cache is False else "beside what stays"
        yield warning(
            "memory-sync",
            f"the rollout takes rollout.gpu_memory_utilization={job.rollout.gpu_memory_utilization:g} of "
            f"a GPU {stays}: {found.together:.1f} of {gpu.gib:.1f} GiB",
            "lower rollout.gpu_memory_utilization, or set actor.offload=[param,optimizer] and "
            "rollout.free_cache=true",
        )


def _spread(job: Job) -> str:
    if job.actor.strategy == "fsdp2":
        return "train on more GPUs"
    return (
        "raise actor.tensor_parallel, pipeline_parallel or (of a model with experts) expert_parallel, or the GPUs"
    )


def _relief(job: Job, parts: dict[str, float]) -> str:
    batch = parts.get("activations", 0.0) + parts.get("logits", 0.0)
    if batch < sum(parts.values()) / 2:
        return _spread(job)
    smaller = "actor.max_tokens_per_gpu" if job.actor.dynamic_batch else "actor.micro_batch_size_per_gpu"
    if job.actor.recompute or (job.actor.recompute is None and job.actor.strategy == "fsdp2"):
        return f"lower {smaller}"
    return f"lower {smaller}, or set actor.recompute=true"


def _rollout(job: Job, found: MemoryEstimate, gpu: GpuMemory) -> Iterator[Finding]:
    rollout, share = found.rollout, job.rollout.gpu_memory_utilization
    if rollout.budget is None or rollout.sequences is None or rollout.kv is None:
        return
    if rollout.kv <= 0:
        yield error(
            "memory-rollout",
            f"the rollout's weights take {rollout.weights:.1f} GiB on a GPU, its share is "
            f"gpu_memory_utilization*memory = {share:g}*{gpu.gib:.1f} = {rollout.budget:.1f} GiB ({gpu.source})",
            "raise rollout.tensor_parallel or rollout.gpu_memory_utilization",
        )
    elif rollout.sequences < 1:
        yield error(
            "memory-rollout",
            f"the KV cache of the rollout has {rollout.kv:.1f} GiB on a GPU ({share:g}*{gpu.gib:.1f} - "
            f"weights {rollout.weights:.1f}), a sequence of {rollout.longest} tokens takes "
            f"{rollout.kv_gib_per_sequence:.1f}",
            "raise rollout.tensor_parallel or rollout.gpu_memory_utilization, or lower the lengths",
        )


def _reward(job: Job, project: Path, gpu: GpuMemory) -> Iterator[Finding]:
    """The reward server holds its whole model in bf16 on one GPU."""
    if job.reward.kind != "server" or not job.reward.gpus:
        return
    shape = _shape(project / job.reward.model)
    weights = 2 * shape.parameters().total / GIB if shape is not None else 0.0
    if weights > gpu.gib:
        yield error(
            "memory-reward",
            f"reward.model: its weights take {weights:.1f} GiB in bf16, a GPU has {gpu.gib:.1f} ({gpu.source})",
            "take a smaller reward model",
        )
