"""Which GPUs do what: the reward server, the rollout pool, the training pool."""

from dataclasses import dataclass, field

from launch.config import Job
from launch.sizing.batches import Steps, model_parallel, steps


@dataclass(frozen=True)
class Layout:
    """GPU counts of a job. In sync mode rollout and training share one pool and the rollout fields are 0.

    `ray_gpus_head` and `ray_gpus_other` are what Ray may hand out on the head node and on each other of the
    `ray_nodes`, the first of the allocation; with `reward_node` the last one serves rewards and is not in Ray.
    `idle_gpus` is what no part uses, on all nodes together; `train_room` is what a training node could give.
    """

    reward_gpus: int
    rollout_nodes: int
    rollout_gpus: int
    train_nodes: int
    train_gpus: int
    ray_gpus_head: int
    ray_gpus_other: int
    idle_gpus: int = 0
    reward_node: bool = False
    train_room: int = field(default=0, compare=False)
    ray_nodes: int = field(default=0, compare=False)

    @property
    def ray_gpus(self) -> int:
        """GPUs that Ray must show on all its nodes together."""
        return self.ray_gpus_head + self.ray_gpus_other * (self.ray_nodes - 1)

    @property
    def reward_on_head(self) -> int:
        """GPUs of the head node that the reward server has."""
        return 0 if self.reward_node else self.reward_gpus

    @property
    def reward_idle(self) -> int:
        """GPUs of the reward server's own node that it does not use."""
        return self.ray_gpus_other - self.reward_gpus if self.reward_node else 0

    @property
    def train_world(self) -> int:
        """Number of training ranks."""
        return self.train_nodes * self.train_gpus


def _whole(job: Job, nodes: int, gpus: int) -> Steps | None:
    """The batch rules of a training pool of whole copies of the model and, in sync mode, whole engines."""
    engine = job.rollout.tensor_parallel if job.engine.mode == "sync" else 1
    return steps(job, nodes * gpus) if gpus % engine == 0 else None


def _training_gpus(job: Job, nodes: int, free: int) -> int:
    """GPUs of the training pool on each of `nodes`, of `free`: the most that copies of the model and the batch
    divide by. Where none does, all of them: the rules then say what does not divide."""
    if job.actor.gpus_per_node is not None or nodes < 1:
        return job.actor.gpus_per_node or free
    for gpus in range(free, 0, -1):
        rule = _whole(job, nodes, gpus)
        if rule and rule.fit(job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n):
            return gpus
    return free


def fullest_pool(job: Job, layout: Layout) -> Steps | None:
    """The batch rules of the training pool that the job asks for, or of the largest that its parallel sizes allow;
    None where they allow none."""
    if job.actor.gpus_per_node is not None:
        return steps(job, layout.train_world)
    for gpus in range(layout.train_room, 0, -1):
        if rule := _whole(job, layout.train_nodes, gpus):
            return rule
    return None


def _rollout_share(job: Job, free: int) -> int:
    """GPUs of the rollout pool where it shares one node with the training pool: half, and whole engines."""
    size, engine = model_parallel(job), job.rollout.tensor_parallel
    training = job.actor.gpus_per_node or -(-(free - free // 2) // size) * size
    return max((free - training) // engine * engine, 0) or free // 2


def has_reward_node(job: Job) -> bool:
    """Whether the last node of the allocation serves rewards, apart from Ray."""
    return job.reward.kind == "server" and job.reward.placement == "separate"


def ray_nodes(job: Job) -> int:
    """Nodes that are in Ray, the head first: those of the pools."""
    return job.cluster.nodes - has_reward_node(job)


def plan_layout(job: Job) -> Layout:
    """Place the pools on the allocation.

    The reward server has GPUs of the head node, or (`reward.placement=separate`) the last node to itself. verl
    gives each pool the same number of GPUs on each of its nodes (`trainer.n_gpus_per_node`), and in one_step_off
    mode the two pools do not overlap (verl 0.9.1, experimental/separation/utils.py). With one node in Ray both
    pools share it; with several the rollout pool takes `rollout.nodes` of them, the head first.
    """
    nodes, gpus, apart = ray_nodes(job), job.cluster.gpus_per_node, has_reward_node(job)
    reward = job.reward.gpus if job.reward.kind == "server" else 0
    head = gpus if apart else gpus - reward
    free = head + gpus * (nodes - 1)
    over = gpus - reward if apart else 0  # of the reward node
    if job.engine.mode == "sync":
        # One pool, equal on all nodes: a reward GPU on the head costs one on every node.
        train = _training_gpus(job, nodes, head)
        return Layout(reward, 0, 0, nodes, train, head, gpus, free + over - nodes * train, apart, head, nodes)
    if nodes == 1:
        rollout = _rollout_share(job, head) if job.rollout.gpus_per_node is None else job.rollout.gpus_per_node
        train = _training_gpus(job, 1, head - rollout)
        idle = free + over - rollout - train
        return Layout(reward, 1, rollout, 1, train, head, gpus, idle, apart, head - rollout, nodes)
    rollout_nodes = job.rollout.nodes or nodes // 2
    rollout = head if job.rollout.gpus_per_node is None else job.rollout.gpus_per_node
    train_nodes = nodes - rollout_nodes
    train = _training_gpus(job, train_nodes, gpus)
    idle = free + over - rollout_nodes * rollout - train_nodes * train
    return Layout(reward, rollout_nodes, rollout, train_nodes, train, head, gpus, idle, apart, gpus, nodes)
