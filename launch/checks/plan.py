"""The pools fit on the allocation and divide by the parallel sizes."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from launch.checks.plan_remedies import (
    Broken,
    Changes,
    Way,
    changed,
    clean_changes,
    divisors,
    each,
    remedy_of,
    smaller_divisors,
    written,
)
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.shape import ShapeError, read_shape
from launch.sizing.batches import expert_group, expert_tensor_parallel, model_parallel
from launch.sizing.layout import Layout, fullest_pool, plan_layout

_NO_REWARD_GPU = each("reward.gpus", [0])
_MOST_GPUS, _MOST_NODES = 64, 4096


def check_gpus(job: Job, *, rehearse: bool, project: Path | None = None) -> Iterator[Finding]:
    """Reward, rollout and training each have their GPUs, and whole engines and whole models fit in the pools.

    Args:
        rehearse: GPUs are slots, of which some may be idle.
        project: folder of relative paths, to name only sizes that the model's heads divide by.
    """
    heads = _heads(job, project)
    found = broken_rules(job, heads)
    for one in found:
        yield error(one.id, one.message, remedy_of(job, one, lambda other: broken_rules(other, heads)))
    if not found and not rehearse:
        yield from _idle(job, plan_layout(job))


def _heads(job: Job, project: Path | None) -> int | None:
    folder = None if project is None else project / job.model.path
    if folder is None or not folder.is_dir():
        return None
    try:
        return read_shape(folder).heads
    except ShapeError:
        return None


def broken_rules(job: Job, heads: int | None = None) -> list[Broken]:
    """What does not fit, with the ways out that are worth trying; `heads` of the model where they are known."""
    layout = plan_layout(job)
    found = [*_pools(job, layout)]
    return found or [*_engines(job, layout, heads), *_models(job, layout)]


def _larger(job: Job) -> tuple[Way, Way]:
    nodes, gpus = job.cluster.nodes, job.cluster.gpus_per_node
    more = each("cluster.gpus_per_node", range(gpus + 1, _MOST_GPUS + 1))
    return more, each("cluster.nodes", range(nodes + 1, nodes + 9))


def _down(field: str, most: int) -> Way:
    return each(field, range(min(most, _MOST_NODES), 0, -1))


def _reward_node(job: Job, layout: Layout) -> Iterator[Broken]:
    gpus, reward = job.cluster.gpus_per_node, layout.reward_gpus
    if layout.ray_nodes < 1:
        yield Broken(
            "gpu-plan",
            f"reward.placement=separate takes the last of cluster.nodes={job.cluster.nodes}, and no node is left "
            "for rollout and training",
            (_larger(job)[1], [{"reward.placement": "head"}]),
            part="reward node",
        )
    elif reward > gpus:
        yield Broken(
            "gpu-plan",
            f"reward.gpus={reward} is more than the {gpus} GPUs of the reward server's node",
            (each("reward.gpus", [1]), _NO_REWARD_GPU),
            part="reward",
        )


def _pools(job: Job, layout: Layout) -> Iterator[Broken]:
    gpus, nodes, head = job.cluster.gpus_per_node, layout.ray_nodes, layout.ray_gpus_head
    one_step_off = job.engine.mode == "one_step_off"
    on_head = layout.reward_on_head
    beside = f" beside the reward server's {on_head}" if on_head else ""
    if layout.reward_node and (nodes < 1 or layout.reward_gpus > gpus):
        yield from _reward_node(job, layout)
    elif head < 1:
        has = f"takes all {gpus} GPUs of" if head == 0 else f"is more than the {gpus} GPUs of"
        yield Broken(
            "gpu-plan",
            f"reward.gpus={layout.reward_gpus} {has} the head node, where generation needs some, too",
            (each("reward.gpus", [1] if gpus > 1 else []), _NO_REWARD_GPU, _larger(job)[0]),
            part="reward",
        )
    elif layout.train_gpus < 1 or layout.train_nodes < 1:
        yield Broken(
            "gpu-plan",
            f"nothing is left to train on: {_allocation(job, layout)}, rollout {layout.rollout_nodes} nodes of "
            f"{layout.rollout_gpus}",
            (
                _down("rollout.gpus_per_node", layout.rollout_gpus - 1) if layout.train_gpus < 1 else (),
                _down("rollout.nodes", nodes - 1) if layout.train_nodes < 1 else (),
                *_larger(job),
            ),
            part="training",
        )
    elif layout.rollout_gpus > head:
        yield Broken(
            "gpu-plan",
            f"rollout.gpus_per_node={layout.rollout_gpus} but "
            + (
                f"the head node has {head} of its {gpus} GPUs left{beside}"
                if on_head
                else f"a node has {gpus} GPUs"
            ),
            (_down("rollout.gpus_per_node", head), _NO_REWARD_GPU if on_head else (), *_larger(job)),
            part="rollout",
        )
    elif one_step_off and layout.rollout_gpus < 1:
        yield Broken(
            "gpu-plan",
            f"no GPU is left for the rollout: {_allocation(job, layout)}, training {layout.train_nodes} nodes of "
            f"{layout.train_gpus}",
            (_down("actor.gpus_per_node", layout.train_gpus - 1), *_larger(job)),
            part="no rollout",
        )
    elif nodes == 1 and one_step_off and layout.rollout_gpus + layout.train_gpus > head:
        yield Broken(
            "gpu-plan",
            f"rollout {layout.rollout_gpus} + training {layout.train_gpus} GPUs are more than the {head} of "
            f"{gpus} that the one node has{beside}",
            (
                _down("rollout.gpus_per_node", layout.rollout_gpus - 1),
                _down("actor.gpus_per_node", layout.train_gpus - 1),
                _larger(job)[1],
            ),
            part="one node",
        )
    elif layout.train_gpus > layout.train_room and not (nodes == 1 and one_step_off):
        yield Broken(
            "gpu-plan",
            f"actor.gpus_per_node={layout.train_gpus} but a training node has {layout.train_room} of its {gpus} "
            "GPUs for it",
            (
                _down("actor.gpus_per_node", layout.train_room),
                _NO_REWARD_GPU if layout.train_room < gpus else (),
            ),
            part="training node",
        )


def _allocation(job: Job, layout: Layout) -> str:
    gpus = job.cluster.gpus_per_node
    if layout.reward_node:
        return f"{layout.ray_nodes} nodes of {gpus} GPUs beside the reward server's node"
    return f"{layout.ray_nodes} nodes of {gpus} GPUs, reward {layout.reward_gpus}"


def _engines(job: Job, layout: Layout, heads: int | None) -> Iterator[Broken]:
    size, sync = job.rollout.tensor_parallel, job.engine.mode == "sync"
    pool = layout.train_gpus if sync else layout.rollout_gpus
    if pool % size == 0:
        return
    on_head = layout.reward_on_head
    field = "actor.gpus_per_node" if sync else "rollout.gpus_per_node"
    named = f"{field}={pool} is"
    if (job.actor if sync else job.rollout).gpus_per_node is None:
        left = f" beside the reward server's {on_head}" if on_head else ""
        named = f"the {pool} GPUs of a node{left} are" if pool != 1 else f"the one GPU of a node{left} is"
    room = layout.ray_gpus_head
    whole = [gpus for gpus in range(room, 0, -1) if gpus % size == 0]
    fitting = [
        tensor
        for tensor in range(min(size - 1, _MOST_GPUS), 0, -1)
        # Heads are a multiple of a small power of two in nearly every model.
        if (tensor & (tensor - 1) == 0 if heads is None else heads % tensor == 0)
    ]
    yield Broken(
        "rollout-tp",
        f"{named} not divisible by rollout.tensor_parallel={size}",
        (
            each(field, sorted(whole, key=lambda gpus: (gpus > pool, abs(gpus - pool)))),
            each("rollout.tensor_parallel", fitting),
            _NO_REWARD_GPU if on_head else (),
        ),
    )


def _models(job: Job, layout: Layout) -> Iterator[Broken]:
    actor, world = job.actor, layout.train_world
    size = model_parallel(job)
    pool = f"{world} training GPUs ({layout.train_nodes} nodes of {layout.train_gpus})"
    sizes = ["tensor_parallel", "pipeline_parallel", "context_parallel"]
    if actor.strategy == "fsdp2":
        sizes = sizes[2:]
    fields = [f"actor.{name}" for name in sizes]
    smaller = [smaller_divisors(field, getattr(actor, name)) for field, name in zip(fields, sizes, strict=True)]
    if world % size:
        named = "actor.context_parallel"
        if actor.strategy == "megatron":
            named = f"tensor*pipeline*context = {'*'.join(str(getattr(actor, name)) for name in sizes)}"
        yield Broken(
            "train-parallel",
            f"{pool} are not divisible by {named} = {size}",
            (_down("actor.gpus_per_node", layout.train_room), *smaller, _larger(job)[1]),
            last=_smaller_together(job, fields, world),
        )
    elif actor.strategy == "megatron" and world % expert_group(job):
        yield _experts(job, pool, world)


def _smaller_together(job: Job, fields: list[str], world: int) -> Iterator[Changes]:
    """Divisors of several sizes at once that divide the GPUs, the largest product first."""
    parts = [divisors(getattr(job.actor, field.removeprefix("actor."))) for field in fields]
    small = ([size for size in sizes if size <= _MOST_GPUS] for sizes in parts)
    for sizes in sorted(itertools.product(*small), key=math.prod, reverse=True):
        if world % math.prod(sizes) == 0:
            now = zip(fields, sizes, parts, strict=True)
            yield {field: size for field, size, (largest, *_) in now if size != largest}


def _experts(job: Job, pool: str, world: int) -> Broken:
    """Source: megatron-core 0.16.1 parallel_state.py."""
    ep, etp, pp = job.actor.expert_parallel, expert_tensor_parallel(job), job.actor.pipeline_parallel
    works = [size for size in divisors(world) if world % (etp * size * pp) == 0]
    # Experts are a power of two in nearly every model.
    works.sort(key=lambda size: (size & (size - 1) != 0, size > ep, abs(size - ep)))
    ways: list[Way] = [each("actor.expert_parallel", works)]
    if etp != 1:
        ways.append(each("actor.expert_tensor_parallel", [1]))
    told = f"; {', '.join(map(str, sorted(works)))} would do" if works else ""
    return Broken(
        "expert-parallel",
        f"{pool} are not divisible by expert_tensor*expert*pipeline = {etp}*{ep}*{pp} = {etp * ep * pp}: "
        f"actor.expert_parallel={ep}{told}",
        tuple(ways),
        last=tuple(
            {"actor.expert_parallel": size, "actor.expert_tensor_parallel": 1}
            for size in divisors(world)
            if world % (size * pp) == 0
        ),
    )


def _idle(job: Job, layout: Layout) -> Iterator[Finding]:
    """GPUs with nothing to do, unless it cannot be helped: a pool has the same number on each of its nodes, so
    that the reward server's GPUs cost as many on the pool's other nodes. Of a reward node: `reward_node`."""
    sync = job.engine.mode == "sync"
    shared = layout.train_nodes if sync else layout.rollout_nodes
    idle = _idle_in_pools(layout)
    if idle <= (shared - 1) * layout.reward_on_head:
        return
    pools = [f"reward {layout.reward_on_head}"] if layout.reward_on_head else []
    if sync:
        pools.append(f"training and rollout {layout.train_nodes}*{layout.train_gpus}")
    else:
        pools.append(f"rollout {layout.rollout_nodes}*{layout.rollout_gpus}")
        pools.append(f"training {layout.train_nodes}*{layout.train_gpus}")
    yield warning(
        "idle-gpus",
        f"{idle} of {layout.ray_nodes}*{job.cluster.gpus_per_node} GPUs have nothing to do ({', '.join(pools)})",
        _busier(job, layout),
    )


def _idle_in_pools(layout: Layout) -> int:
    return layout.idle_gpus - layout.reward_idle


def _busier(job: Job, layout: Layout) -> str:
    """Values that leave fewer GPUs idle."""
    head = layout.ray_gpus_head
    pools: list[Changes] = [{}]
    if job.engine.mode == "one_step_off":
        pools += [{"rollout.gpus_per_node": gpus} for gpus in range(head, 0, -1)]
    if job.actor.gpus_per_node is not None:
        room = head if layout.ray_nodes == 1 else layout.train_room
        trained: list[Changes] = [{"actor.gpus_per_node": gpus} for gpus in range(room, 0, -1)]
        pools = [{**pool, **more} for pool in pools for more in ({}, *trained)]
    elif (rule := fullest_pool(job, layout)) is not None:
        pools.append(clean_changes(job, {}, rule))
    pools += [{"cluster.gpus_per_node": gpus} for gpus in range(job.cluster.gpus_per_node - 1, 0, -1)]
    found = []
    for changes in pools:
        other = changed(job, changes)
        if broken_rules(other):
            continue
        after = plan_layout(other)
        smaller = other.cluster.gpus_per_node < job.cluster.gpus_per_node
        if _idle_in_pools(after) < _idle_in_pools(layout) and clean_changes(other, {}) == {}:
            found.append((smaller, _idle_in_pools(after), len(changes), written(changes)))
    if not found:
        return "a pool has the same number of GPUs on each of its nodes; ask for fewer, or change the sizes"
    return min(found)[3]
