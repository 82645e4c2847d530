"""The plan of a job, drawn for a person: which GPUs of which node do what, in which sizes, with how much memory.

node 0   | R G G G G G G G
node 1-3 | T T T T T T T T
"""

import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from launch.config import Job
from launch.sizing.batches import expert_group, model_parallel
from launch.sizing.layout import Layout
from launch.sizing.memory import MemoryEstimate

_WIDTH = 80
# More GPUs than these on a node are counted instead of drawn.
_DRAWN = 16
_NO_PLAN = "no plan to draw: the sizes do not fit on the GPUs"
_LETTERS = {"rollout": "G", "train": "T", "both": "B", "idle": ".", "reward": "R"}
_MEANING = {
    "reward": "reward model",
    "rollout": "rollout (generation)",
    "train": "training",
    "both": "training and rollout in turn",
    "idle": "idle",
}


@dataclass(frozen=True)
class Node:
    """GPUs of one node by what they do; they add up to those of the node."""

    reward: int = 0
    rollout: int = 0
    train: int = 0
    both: int = 0
    idle: int = 0

    def counts(self) -> dict[str, int]:
        """What is there at all, in the order of the devices."""
        return {role: count for role in _LETTERS if (count := getattr(self, role))}


def _node(gpus: int, *, reward: int = 0, rollout: int = 0, train: int = 0, both: int = 0) -> Node:
    idle = max(gpus - reward - rollout - train - both, 0)
    return Node(reward, rollout, train, both, idle)


def plan_nodes(job: Job, layout: Layout) -> list[Node]:
    """Every node of the allocation, the head first, a node of the reward server's own last; the rollout pool takes
    the first nodes, the head too."""
    gpus = job.cluster.gpus_per_node
    if layout.reward_node:
        return [*_ray_nodes(job, layout, 0), _node(gpus, reward=layout.reward_gpus)]
    return _ray_nodes(job, layout, layout.reward_gpus)


def _ray_nodes(job: Job, layout: Layout, on_head: int) -> list[Node]:
    gpus, nodes = job.cluster.gpus_per_node, layout.ray_nodes
    reward = ([on_head] + [0] * (nodes - 1))[:nodes]
    if job.engine.mode == "sync":
        return [_node(gpus, reward=here, both=layout.train_gpus) for here in reward]
    if nodes == 1:
        return [_node(gpus, reward=reward[0], rollout=layout.rollout_gpus, train=layout.train_gpus)]
    return [
        _node(gpus, reward=here, rollout=layout.rollout_gpus)
        if number < layout.rollout_nodes
        else _node(gpus, reward=here, train=layout.train_gpus)
        for number, here in enumerate(reward)
    ]


def fits(job: Job, layout: Layout) -> bool:
    """Whether there is a plan to draw: each GPU has one thing to do, and models and engines are whole."""
    if layout.train_world < 1 or layout.train_world % model_parallel(job):
        return False
    if job.actor.strategy == "megatron" and layout.train_world % expert_group(job):
        return False
    engines = layout.train_gpus if job.engine.mode == "sync" else layout.rollout_gpus
    if layout.ray_nodes < 1 or layout.ray_gpus_head < 0 or engines < 1 or engines % job.rollout.tensor_parallel:
        return False
    gpus = job.cluster.gpus_per_node
    return all(sum(node.counts().values()) == gpus for node in plan_nodes(job, layout))


def _ranges(nodes: list[Node]) -> list[tuple[int, int, Node]]:
    """(first, last, what both and all between do)."""
    ranges = []
    for node, members in groupby(enumerate(nodes), key=lambda item: item[1]):
        numbers = [number for number, _ in members]
        ranges.append((numbers[0], numbers[-1], node))
    return ranges


def _drawn(node: Node, *, counted: bool) -> str:
    if counted:
        return ", ".join(f"{count} {_LETTERS[role]}" for role, count in node.counts().items())
    return " ".join(_LETTERS[role] for role, count in node.counts().items() for _ in range(count))


def training_sizes(job: Job, layout: Layout) -> dict[str, int]:
    """Parallel sizes of the training pool; `data` is 0 where the others do not divide it."""
    actor, world = job.actor, layout.train_world
    if actor.strategy == "fsdp2":
        sizes = {"context": actor.context_parallel}
    else:
        sizes = {
            "tensor": actor.tensor_parallel,
            "pipeline": actor.pipeline_parallel,
            "context": actor.context_parallel,
        }
    product = 1
    for size in sizes.values():
        product *= size
    sizes["data"] = world // product if world % product == 0 else 0
    if actor.strategy == "megatron":
        sizes["expert"] = actor.expert_parallel
        sizes["expert_tensor"] = actor.expert_tensor_parallel or actor.tensor_parallel
    return sizes


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _sizes_text(job: Job, layout: Layout) -> list[str]:
    sizes = training_sizes(job, layout)
    short = {"tensor": "TP", "pipeline": "PP", "context": "CP", "data": "DP"}
    product = " x ".join(f"{short[name]} {size}" for name, size in sizes.items() if name in short)
    training = f"training: {_many(layout.train_world, 'GPU')} = {product} ({job.actor.strategy})"
    if sizes.get("expert", 1) > 1:
        training += f"; experts: EP {sizes['expert']} x TP {sizes['expert_tensor']}"
    engine_gpus = job.rollout.tensor_parallel
    pool = layout.train_world if job.engine.mode == "sync" else layout.rollout_nodes * layout.rollout_gpus
    engines = f"{_many(pool // engine_gpus, 'engine')} x TP {engine_gpus} ({job.rollout.engine})"
    lines = [training, f"rollout:  {_many(pool, 'GPU')} = {engines}"]
    if job.reward.kind == "server":
        where = _many(layout.reward_gpus, "GPU") if layout.reward_gpus else "CPUs"
        place = "the last node, apart from Ray" if layout.reward_node else "the head node"
        behind = f", asking a {job.reward.backend} server elsewhere" if job.reward.upstream else ""
        lines.append(f"reward:   {where} of {place}{behind}")
    return lines


def plan_table(
    job: Job, layout: Layout, estimate: MemoryEstimate | None = None, *, assumptions: bool = False
) -> str:
    """The plan as text of at most 80 columns, without a newline at its end; a line for pools that do not fit.

    Args:
        assumptions: say what the memory estimate assumes.
    """
    if not fits(job, layout):
        return _NO_PLAN
    ranges = _ranges(plan_nodes(job, layout))
    names = [f"node {first}" if first == last else f"node {first}-{last}" for first, last, _ in ranges]
    width = max(map(len, names))
    counted = job.cluster.gpus_per_node > _DRAWN
    lines = [
        f"{name:<{width}} | {_drawn(node, counted=counted)}"
        for name, (_, _, node) in zip(names, ranges, strict=True)
    ]
    used = [role for role in _LETTERS if any(getattr(node, role) for _, _, node in ranges)]
    lines += textwrap.wrap(", ".join(f"{_LETTERS[role]} {_MEANING[role]}" for role in used), _WIDTH)
    told = _sizes_text(job, layout) + (estimate.lines(assumptions=assumptions) if estimate is not None else [])
    for text in told:
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def _reward_place(job: Job, layout: Layout) -> int | None:
    """Number of the node that serves rewards; None without a server."""
    if job.reward.kind != "server":
        return None
    return job.cluster.nodes - 1 if layout.reward_node else 0


def plan_data(job: Job, layout: Layout, estimate: MemoryEstimate | None = None) -> dict[str, Any]:
    """The same plan for a program; sizes in GiB, and no nodes where the pools do not fit."""
    data: dict[str, Any] = {
        "nodes": [
            {"first": first, "last": last, "gpus": node.counts()}
            for first, last, node in (_ranges(plan_nodes(job, layout)) if fits(job, layout) else [])
        ],
        "training": {"gpus": layout.train_world, "strategy": job.actor.strategy, **training_sizes(job, layout)},
        "rollout": {
            "gpus": layout.train_world
            if job.engine.mode == "sync"
            else layout.rollout_nodes * layout.rollout_gpus,
            "engine": job.rollout.engine,
            "tensor": job.rollout.tensor_parallel,
        },
        "reward": {"gpus": layout.reward_gpus, "node": _reward_place(job, layout)},
        "memory": None,
    }
    if estimate is not None:
        data["memory"] = {
            "gpu": None if estimate.gpu is None else estimate.gpu.gib,
            "training": {"total": estimate.training.total, "parts": dict(estimate.training.parts)},
            "rollout": {
                "weights": estimate.rollout.weights,
                "kv": estimate.rollout.kv,
                "sequences": estimate.rollout.sequences,
            },
            "together": estimate.together,
            "assumptions": list(estimate.assumptions),
        }
    return data
