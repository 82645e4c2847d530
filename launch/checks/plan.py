"""The pools fit on the allocation and divide by the parallel sizes."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error
from launch.layout import plan_layout


def check_gpus(job: Job) -> Iterator[Finding]:
    """The pools fit on the allocation and divide by the parallel sizes."""
    layout = plan_layout(job)
    gpus, nodes = job.cluster.gpus_per_node, job.cluster.nodes
    if layout.train_gpus < 1 or layout.train_nodes < 1:
        yield error(
            "gpu-plan",
            f"nothing is left to train on: {nodes} nodes of {gpus} GPUs, reward {layout.reward_gpus}, rollout "
            f"{layout.rollout_nodes} nodes of {layout.rollout_gpus}",
            "lower rollout.gpus_per_node or rollout.nodes, or raise cluster.nodes",
        )
        return
    on_rollout_node = layout.ray_gpus_head
    if layout.rollout_gpus > on_rollout_node:
        yield error(
            "gpu-plan",
            f"rollout.gpus_per_node={layout.rollout_gpus} but the head node has {on_rollout_node} of its {gpus} "
            f"GPUs left beside the reward server's {layout.reward_gpus}",
            f"set rollout.gpus_per_node={max(on_rollout_node, 1)} or reward.gpus=0",
        )
    if layout.rollout_gpus % job.rollout.tensor_parallel:
        yield error(
            "rollout-tp",
            f"rollout.gpus_per_node={layout.rollout_gpus} is not divisible by "
            f"rollout.tensor_parallel={job.rollout.tensor_parallel}",
            "choose a divisor",
        )
    size = model_parallel(job)
    if layout.train_world % size:
        yield error(
            "train-parallel",
            f"{layout.train_world} training GPUs ({layout.train_nodes} nodes of {layout.train_gpus}) are not "
            f"divisible by tensor*pipeline*context = {size}",
            "change actor.tensor_parallel, pipeline_parallel or context_parallel, or the nodes",
        )


def model_parallel(job: Job) -> int:
    """GPUs that hold one copy of the model."""
    if job.actor.strategy != "megatron":
        return 1
    return job.actor.tensor_parallel * job.actor.pipeline_parallel * job.actor.context_parallel
