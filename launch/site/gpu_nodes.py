"""Which nodes of a partition a job is meant for. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from launch.site import slurm
from launch.site.gres import is_mig


@dataclass(frozen=True)
class GpuNodes:
    """The nodes of a partition that a job is meant for: those with most GPUs of one type.

    Attributes:
        kind: GPU type as Slurm names it; "" where it names none.
        gpus: GPUs of one node; 0 for a partition without any.
        cpus, mem_mb: of the smallest of these nodes.
        others: other kinds of nodes of the partition: "4 nodes with 2 x a40".
        beside: GPUs of other types in these nodes: "2 nodes have 4 x a100 too".
        down: "none of them is up now (4 drained)"; "" where a job can start on one.
    """

    kind: str
    nodes: int
    gpus: int
    cpus: int
    mem_mb: int
    features: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    down: str = ""


def gpu_nodes(partition: slurm.Partition) -> GpuNodes:
    """The most frequent kind of GPU nodes of a partition; those that are down count where no other has GPUs."""
    usable = [one for one in partition.nodes if one.usable]
    if not any(one.gpus for one in usable) and any(one.gpus for one in partition.nodes):
        nodes = partition.nodes
    else:
        nodes = usable or partition.nodes
    by_kind: Counter[tuple[bool, str]] = Counter()
    for one in nodes:
        for kind, count in one.gpus.items():
            by_kind[not is_mig(kind), kind] += count * one.count
    if not by_kind:
        return _as_one("", 0, nodes)
    kind = max(by_kind, key=lambda key: (key[0], by_kind[key], key[1]))[1]
    sizes: Counter[int] = Counter()
    for one in nodes:
        if kind in one.gpus:
            sizes[one.gpus[kind]] += one.count
    gpus = max(sizes, key=lambda size: (sizes[size], size))
    return _as_one(kind, gpus, nodes)


def _as_one(kind: str, gpus: int, nodes: list[slurm.Nodes]) -> GpuNodes:
    meant = [one for one in nodes if one.gpus.get(kind, 0) == gpus]
    rest: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    for one in nodes:
        if one not in meant:
            rest[_shown(one.gpus) or "no GPU"] += one.count
        elif len(one.gpus) > 1:
            beside[_shown({name: count for name, count in one.gpus.items() if name != kind})] += one.count
    features = set.intersection(*(set(one.features) for one in meant)) if meant else set()
    return GpuNodes(
        kind,
        sum(one.count for one in meant),
        gpus,
        min((one.cpus for one in meant), default=0),
        min((one.mem_mb for one in meant), default=0),
        tuple(sorted(features)),
        tuple(f"{count} node{'s' * (count != 1)} with {shown}" for shown, count in rest.most_common()),
        tuple(
            f"{count} node{'s have' if count != 1 else ' has'} {shown} too"
            for shown, count in beside.most_common()
        ),
        _down(meant),
    )


def _down(nodes: list[slurm.Nodes]) -> str:
    if not nodes or any(one.usable for one in nodes):
        return ""
    states: Counter[str] = Counter()
    for one in nodes:
        states[one.state] += one.count
    return f"none of them is up now ({', '.join(f'{count} {state}' for state, count in states.most_common())})"


def _shown(gpus: dict[str, int]) -> str:
    return " + ".join(f"{count} x {name or 'GPU'}" for name, count in gpus.items())


def all_gpus(nodes: GpuNodes) -> int:
    """GPUs of all these nodes."""
    return nodes.gpus * nodes.nodes
