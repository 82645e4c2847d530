"""What a partition demands of its jobs beyond nodes, memory and time, as sentences for a comment. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from launch.site import slurm
from launch.site.gpu_nodes import GpuNodes


def demands(partition: slurm.Partition, nodes: GpuNodes) -> Iterator[str]:
    """Limits that have no field of their own in a job."""
    least = partition.settings.get("MinNodes", "")
    if least.isdigit() and int(least) > 1:
        few = f", and there are {nodes.nodes} of this kind" if int(least) > nodes.nodes else ""
        yield f"a job must have {least} nodes or more (MinNodes){few}"
    if partition.settings.get("OverSubscribe") == "EXCLUSIVE":
        yield "a job gets whole nodes, and they count in full (OverSubscribe=EXCLUSIVE)"
    if (places := partition.listed("AllocNodes")) is not None:
        yield f"jobs can be submitted from {','.join(places)} only (AllocNodes)"


def socket_limit(partition: slurm.Partition, nodes: GpuNodes) -> str:
    """Why the CPUs that a job may have on a node are not known; "" where they are."""
    most = partition.settings.get("MaxCPUsPerSocket", "")
    if not most.isdigit() or not 0 < int(most) < nodes.cpus:
        return ""
    told = "for each socket of a node, whose number is not known here"
    return f"MaxCPUsPerSocket: {most} {told}; a node has {nodes.cpus} CPUs"
