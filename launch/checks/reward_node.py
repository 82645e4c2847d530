"""A node of the reward server's own: whether there is anything to serve, and what it costs."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.layout import has_reward_node


def check_reward_node(job: Job, *, rehearse: bool) -> Iterator[Finding]:
    """`reward.placement=separate` needs a server, and gives it a whole node; that pools fit is for `plan`.

    Args:
        rehearse: GPUs are slots, of which some may be idle.
    """
    if job.reward.placement == "separate" and job.reward.kind == "function":
        yield error(
            "reward-placement",
            "reward.placement=separate with reward.kind=function: your function runs in verl's workers, there is "
            "no server to give a node",
            "set reward.placement=head, or reward.kind=server",
        )
    if has_reward_node(job) and not rehearse and job.reward.gpus < job.cluster.gpus_per_node:
        gpus = job.cluster.gpus_per_node
        uses = f"uses {job.reward.gpus}" if job.reward.gpus else "uses none (CPU)"
        yield warning(
            "reward-node",
            f"reward.placement=separate gives the reward server a node of {gpus} GPUs, of which it {uses}",
            "set reward.placement=head, unless the reward model must have a node to itself",
        )
