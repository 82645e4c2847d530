"""Which GPUs do what: the reward server, the rollout pool, the training pool."""

from dataclasses import dataclass

from launch.config import Job


@dataclass(frozen=True)
class Layout:
    """GPU counts of a job. In sync mode rollout and training share one pool and the rollout fields are 0.

    `ray_gpus_head` and `ray_gpus_other` are what Ray may hand out on the head node and on each other node.
    """

    reward_gpus: int
    rollout_nodes: int
    rollout_gpus: int
    train_nodes: int
    train_gpus: int
    ray_gpus_head: int
    ray_gpus_other: int

    @property
    def train_world(self) -> int:
        """Number of training ranks."""
        return self.train_nodes * self.train_gpus


def plan_layout(job: Job) -> Layout:
    """Place the pools on the allocation.

    verl gives each pool the same number of GPUs on each of its nodes (`trainer.n_gpus_per_node`), and in
    one_step_off mode the two pools do not overlap (verl 0.9.1, experimental/separation/utils.py). With one
    node both pools share it; with several the rollout pool takes `rollout.nodes` of them.
    """
    nodes, gpus = job.cluster.nodes, job.cluster.gpus_per_node
    reward = job.reward.gpus if job.reward.kind == "server" else 0
    head = gpus - reward
    if job.engine.mode == "sync":
        # One pool, equal on all nodes: a reward GPU on the head costs one on every node.
        return Layout(reward, 0, 0, nodes, head, head, gpus)
    if nodes == 1:
        train = head - job.rollout.gpus_per_node
        return Layout(reward, 1, job.rollout.gpus_per_node, 1, train, head, gpus)
    return Layout(
        reward, job.rollout.nodes, job.rollout.gpus_per_node, nodes - job.rollout.nodes, gpus, head, gpus
    )
