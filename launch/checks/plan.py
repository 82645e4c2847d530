"""The pools fit on the allocation and divide by the parallel sizes."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.layout import Layout, model_parallel, plan_layout


def check_gpus(job: Job, *, rehearse: bool) -> Iterator[Finding]:
    """Reward, rollout and training each have their GPUs, and whole engines and whole models fit in the pools."""
    layout = plan_layout(job)
    too_large = [*_pools(job, layout)]
    if too_large:
        yield from too_large
        return
    yield from _engines(job, layout)
    yield from _models(job, layout)
    if layout.idle_gpus and not rehearse:  # a rehearsal's GPUs are slots
        yield warning(
            "idle-gpus",
            f"{layout.idle_gpus} of {job.cluster.nodes}*{job.cluster.gpus_per_node} GPUs have nothing to do "
            f"(reward {layout.reward_gpus}, rollout {layout.rollout_nodes}*{layout.rollout_gpus}, training "
            f"{layout.train_nodes}*{layout.train_gpus})",
            "make cluster.gpus_per_node, rollout.gpus_per_node, actor.gpus_per_node and reward.gpus add up; a "
            "pool has the same number on each of its nodes",
        )


def _pools(job: Job, layout: Layout) -> Iterator[Finding]:
    gpus, nodes = job.cluster.gpus_per_node, job.cluster.nodes
    if layout.reward_gpus > gpus:
        yield error(
            "gpu-plan",
            f"reward.gpus={layout.reward_gpus} but a node has {gpus} GPUs",
            f"set reward.gpus={gpus - 1}",
        )
        return
    if layout.train_gpus < 1 or layout.train_nodes < 1:
        yield error(
            "gpu-plan",
            f"nothing is left to train on: {nodes} nodes of {gpus} GPUs, reward {layout.reward_gpus}, rollout "
            f"{layout.rollout_nodes} nodes of {layout.rollout_gpus}",
            "lower rollout.gpus_per_node or rollout.nodes, or raise cluster.nodes or cluster.gpus_per_node",
        )
        return
    head = layout.ray_gpus_head
    if layout.rollout_gpus > head:
        yield error(
            "gpu-plan",
            f"rollout.gpus_per_node={layout.rollout_gpus} but the head node has {head} of its {gpus} GPUs left "
            f"beside the reward server's {layout.reward_gpus}",
            f"set rollout.gpus_per_node={max(head, 1)} or reward.gpus=0",
        )
    elif job.engine.mode == "one_step_off" and layout.rollout_gpus < 1:
        yield error(
            "gpu-plan",
            f"no GPU is left for the rollout: {nodes} nodes of {gpus} GPUs, reward {layout.reward_gpus}, training "
            f"{layout.train_nodes} nodes of {layout.train_gpus}",
            "lower actor.gpus_per_node, or raise cluster.nodes or cluster.gpus_per_node",
        )
    elif nodes == 1 and job.engine.mode == "one_step_off" and layout.rollout_gpus + layout.train_gpus > head:
        yield error(
            "gpu-plan",
            f"rollout {layout.rollout_gpus} + training {layout.train_gpus} GPUs are more than the {head} of "
            f"{gpus} that the one node has beside the reward server's {layout.reward_gpus}",
            "lower rollout.gpus_per_node or actor.gpus_per_node, or set cluster.nodes=2",
        )
    on_train_node = head if job.engine.mode == "sync" else gpus
    if nodes > 1 or job.engine.mode == "sync":
        yield from _training_pool(layout, on_train_node, gpus)


def _training_pool(layout: Layout, on_node: int, gpus: int) -> Iterator[Finding]:
    if layout.train_gpus > on_node:
        yield error(
            "gpu-plan",
            f"actor.gpus_per_node={layout.train_gpus} but a training node has {on_node} of its {gpus} GPUs for it",
            f"set actor.gpus_per_node={max(on_node, 1)}",
        )


def _engines(job: Job, layout: Layout) -> Iterator[Finding]:
    pool, field = layout.rollout_gpus, "rollout.gpus_per_node"
    if job.engine.mode == "sync":
        pool, field = layout.train_gpus, "actor.gpus_per_node"
    if pool % job.rollout.tensor_parallel:
        yield error(
            "rollout-tp",
            f"{field}={pool} is not divisible by rollout.tensor_parallel={job.rollout.tensor_parallel}",
            f"choose a divisor of {pool}",
        )


def _models(job: Job, layout: Layout) -> Iterator[Finding]:
    size, world = model_parallel(job), layout.train_world
    actor = job.actor
    if world % size:
        yield error(
            "train-parallel",
            f"{world} training GPUs ({layout.train_nodes} nodes of {layout.train_gpus}) are not divisible by "
            f"tensor*pipeline*context = {actor.tensor_parallel}*{actor.pipeline_parallel}*"
            f"{actor.context_parallel} = {size}",
            "change actor.tensor_parallel, pipeline_parallel or context_parallel, or the nodes",
        )
    elif actor.strategy == "fsdp2" and world % actor.context_parallel:
        yield error(
            "train-parallel",
            f"{world} training GPUs are not divisible by actor.context_parallel={actor.context_parallel}",
            "choose a divisor",
        )
