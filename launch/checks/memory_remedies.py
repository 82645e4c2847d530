"""Ways out where the memory of a GPU does not suffice: values are tried, and only those that suffice are named."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launch.checks.model_parallel import check_actor_sizes
from launch.checks.plan import broken_rules
from launch.checks.plan_remedies import changed, clean_changes, divisors
from launch.config import Job
from launch.model.shape import ModelShape, ShapeError, read_shape
from launch.sizing.batches import expert_group, model_parallel
from launch.sizing.layout import Layout, plan_layout
from launch.sizing.memory import MemoryEstimate, estimate
from launch.sizing.training_memory import recomputes, tokens_per_gpu

Changes = dict[str, Any]
_BOTH = ["param", "optimizer"]
_MOST_GPUS = 64


def estimate_job(job: Job, project: Path) -> MemoryEstimate | None:
    """The estimate of a job; None where a model's shape is not known or the pools do not divide (reported by other
    rules)."""
    layout = plan_layout(job)
    if not _divides(job, layout):
        return None
    shape = shape_of(project / job.model.path)
    if shape is None:
        return None
    critic = shape_of(project / job.critic.path) if job.critic.path is not None else None
    return estimate(job, shape, layout, critic=critic)


def _divides(job: Job, layout: Layout) -> bool:
    world = layout.train_world
    if job.actor.strategy == "megatron" and world % expert_group(job):
        return False
    return layout.train_nodes >= 1 and layout.train_gpus >= 1 and world % model_parallel(job) == 0


def shape_of(folder: Path) -> ModelShape | None:
    if not folder.is_dir():
        return None
    try:
        return read_shape(folder)
    except ShapeError:
        return None


def training_remedy(job: Job, project: Path, suffices: Callable[[MemoryEstimate], bool]) -> str:
    """What to set so that an update fits: what suffices alone, the cheapest first, or several at once."""
    levers = [*_batch_levers(job)]
    alone = [changes for lever in levers for changes in _suffices_first(job, project, lever, suffices)]
    together: Changes = {}
    if not alone:
        for lever in levers:
            together |= lever[-1]
            alone += _suffices_first(job, project, [together], suffices)
            if alone:
                break
    spread = [
        changes
        for lever in _size_levers(job, project)
        for changes in _suffices_first(job, project, lever, suffices)
    ]
    if not alone and not spread:
        spread = [
            {**together, **changes}
            for lever in _size_levers(job, project)
            for changes in _suffices_first(job, project, [{**together, **one} for one in lever], suffices)
        ]
    if alone or spread:
        return _written([*alone, *spread])
    if job.actor.strategy == "fsdp2":
        return "train on more GPUs: cluster.nodes"
    return (
        "raise actor.tensor_parallel, pipeline_parallel or (of a model with experts) expert_parallel, or the GPUs"
    )


def sync_remedy(job: Job, project: Path, suffices: Callable[[MemoryEstimate], bool]) -> str:
    """What to set so that the rollout fits beside what the training keeps on the GPU."""
    share = job.rollout.gpu_memory_utilization
    smaller = [{"rollout.gpu_memory_utilization": step / 20} for step in range(20, 0, -1) if step / 20 < share]

    def generates(after: MemoryEstimate) -> bool:
        return suffices(after) and (after.rollout.sequences or 0) >= 1

    free: Changes = {} if job.rollout.free_cache is not False else {"rollout.free_cache": True}
    offload: Changes = {"actor.offload": _BOTH}
    both: Changes = {**offload, "critic.offload": _BOTH}
    levers: list[list[Changes]] = [smaller, [free] if free else [], [{**offload, **free}, {**both, **free}]]
    levers.append([{**both, **free, **lower} for lower in smaller])
    found = [changes for lever in levers[:3] for changes in _suffices_first(job, project, lever, generates)]
    found = found or _suffices_first(job, project, levers[3], generates)
    return _written(found) if found else "raise rollout.tensor_parallel, or train on more GPUs"


def _suffices_first(
    job: Job, project: Path, lever: list[Changes], suffices: Callable[[MemoryEstimate], bool]
) -> list[Changes]:
    """The first change of a lever that suffices, if one does."""
    for changes in lever:
        after = estimate_job(changed(job, changes), project)
        if after is not None and suffices(after):
            return [changes]
    return []


def _batch_levers(job: Job) -> Iterator[list[Changes]]:
    """What costs time alone, the cheapest first; of each lever the mildest change first."""
    actor, critic = job.actor, job.algorithm.estimator == "gae"
    if actor.dynamic_batch:
        least = -(-job.longest_sequence // actor.context_parallel)
        if least < tokens_per_gpu(job, 1):
            yield [{"actor.max_tokens_per_gpu": least}]
    elif actor.micro_batch_size_per_gpu > 1:
        yield [{"actor.micro_batch_size_per_gpu": size} for size in divisors(actor.micro_batch_size_per_gpu)[1:]]
    if critic and not actor.dynamic_batch and (job.critic.micro_batch_size_per_gpu or 1) > 1:
        yield [
            {"critic.micro_batch_size_per_gpu": size}
            for size in divisors(job.critic.micro_batch_size_per_gpu or 1)[1:]
        ]
    if not recomputes(job):
        yield [{"actor.recompute": True}]
    if critic and set(job.critic.offload) != set(_BOTH):
        yield [{"critic.offload": _BOTH}]
    if set(actor.offload) != set(_BOTH):
        yield [{"actor.offload": _BOTH}]


def _size_levers(job: Job, project: Path) -> Iterator[list[Changes]]:
    """Larger parallel sizes that the model, the GPUs and the batches divide by."""
    shape = shape_of(project / job.model.path)
    if shape is None or job.actor.strategy == "fsdp2":
        return
    fields = ["tensor_parallel", "pipeline_parallel", *(["expert_parallel"] if shape.moe_layers else [])]
    for field in fields:
        now = getattr(job.actor, field)
        lever = []
        for size in range(2 * now, _MOST_GPUS + 1, now):
            changes: Changes = {f"actor.{field}": size}
            other = changed(job, changes)
            refused = any(one.severity == "error" for one in check_actor_sizes(other, shape, ""))
            if not refused and not broken_rules(other) and clean_changes(other, {}) == {}:
                lever.append(changes)
        yield lever


def _written(found: list[Changes]) -> str:
    return "set " + ", or ".join(
        " and ".join(f"{field}={_value(value)}" for field, value in changes.items()) for changes in found
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"[{','.join(value)}]"
        if isinstance(value, list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
