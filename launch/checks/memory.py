"""GPU memory: what cannot fit at all is an error, what the estimate finds tight is a warning."""

from collections.abc import Iterator
from pathlib import Path

from launch.checks.memory_remedies import estimate_job, shape_of, sync_remedy, training_remedy
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.memory import GIB, GpuMemory, MemoryEstimate, gpu_memory

__all__ = ["check_memory", "estimate_job"]

# The CUDA context, NCCL and fragments take the rest.
_FULL = 0.9


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
    for finding in (*_training(job, project, found, gpu), *_rollout(job, found, gpu), *_reward(job, project, gpu)):
        if finding.severity == "error" and not gpu.sure:
            yield warning(finding.id, finding.message, f"set cluster.gpu_memory_gb; {finding.remedy}")
        else:
            yield finding


def _training(job: Job, project: Path, found: MemoryEstimate, gpu: GpuMemory) -> Iterator[Finding]:
    training = found.training
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in training.parts)
    if training.floor > gpu.gib:
        yield error(
            "memory-training",
            f"weights, gradients and optimizer take {training.floor:.1f} GiB on a training GPU of {gpu.gib:.1f} "
            f"GiB ({gpu.source})",
            training_remedy(job, project, lambda after: after.training.floor <= gpu.gib),
        )
    elif training.total > _FULL * gpu.gib:
        yield warning(
            "memory-training",
            f"an update is estimated at {training.total:.1f} GiB, over {_FULL:.0%} of the {gpu.gib:.1f} GiB of a "
            f"training GPU ({gpu.source}), with every sequence at full length: {parts}",
            training_remedy(job, project, lambda after: after.training.total <= _FULL * gpu.gib),
        )
    if found.together is not None and found.together > gpu.gib:
        stays = "and the training's states beside it" if job.rollout.free_cache is False else "beside what stays"
        yield warning(
            "memory-sync",
            f"the rollout takes rollout.gpu_memory_utilization={job.rollout.gpu_memory_utilization:g} of "
            f"a GPU {stays}: {found.together:.1f} of {gpu.gib:.1f} GiB",
            sync_remedy(job, project, lambda after: after.together is not None and after.together <= gpu.gib),
        )


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
    """The reward server holds its whole model on each of its GPUs."""
    if job.reward.kind != "server" or not job.reward.gpus:
        return
    shape = shape_of(project / job.reward.model)
    wide = job.reward.dtype == "float32"
    weights = (4 if wide else 2) * shape.parameters().total / GIB if shape is not None else 0.0
    if weights > gpu.gib:
        kind = "float32" if wide else "16 bits"
        yield error(
            "memory-reward",
            f"reward.model: its weights take {weights:.1f} GiB in {kind}, a GPU has {gpu.gib:.1f} ({gpu.source})",
            "set reward.dtype=auto" if wide else "take a smaller reward model",
        )
