"""The memory of a node to ask for: all that Slurm gives one job there."""

from __future__ import annotations

from collections.abc import Mapping

_WHOLE = 8  # GPUs of a node that a job always takes whole


def memory(
    config: Mapping[str, str], settings: Mapping[str, str], *, mem_mb: int, gpus: int, cpus: int
) -> tuple[str | None, str]:
    """The memory to ask for and why; None where Slurm does not hand it out, or says what cannot be true.

    Args:
        config, settings: of the cluster and of the partition, as scontrol shows them.
        mem_mb, gpus: of a node.
        cpus: that the job asks for on a node.
    """
    shown = f"{mem_mb // 1024} GiB"
    parameters = config.get("SelectTypeParameters", "")
    if parameters and "MEMORY" not in parameters.upper():
        return None, f"Slurm does not hand out memory here ({parameters}); a node has {shown}"
    if not mem_mb or not gpus:
        return None, "0: all memory of a node"
    if mem_mb < 1024:
        return None, f"Slurm counts {mem_mb} MB in a node, too little to be true (RealMemory); ask the site"
    limit, what = _limit(config, settings, cpus)
    if limit is not None and limit < 1024:
        return None, f"Slurm allows {limit} MB on a node, too little for a job ({what}); ask the site"
    if limit is not None and limit < mem_mb:
        return f"{limit}M", f"{what}; a node has {shown}"
    default = _default(config, settings)
    if gpus >= _WHOLE:
        return '"0"', f"all memory of each node ({shown}), since a job has all its GPUs; without it: {default}"
    part = max(1, mem_mb * 95 // 100 // 1024)
    return f"{part}G", f"95 % of a node ({shown}; Slurm keeps some) for all its GPUs; without it: {default}"


def _limit(config: Mapping[str, str], settings: Mapping[str, str], cpus: int) -> tuple[int | None, str]:
    """The most MB of a node that a job may have, and by which limit: either one of the partition goes before both
    of the cluster (slurm.conf, MaxMemPerCPU)."""
    for place, whose in ((settings, "partition"), (config, "cluster")):
        node, cpu = (_number(place, key) for key in ("MaxMemPerNode", "MaxMemPerCPU"))
        found = [(node, f"MaxMemPerNode of the {whose}")] if node else []
        found += [(cpu * cpus, f"MaxMemPerCPU={cpu} of the {whose} for {cpus} CPUs")] if cpu and cpus else []
        if node or cpu:
            return min(found, default=(None, ""))
    return None, ""


def _number(place: Mapping[str, str], key: str) -> int:
    text = place.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _default(config: Mapping[str, str], settings: Mapping[str, str]) -> str:
    for place in (settings, config):
        for key in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU"):
            if _number(place, key):
                return f"{key}={place[key]} MB"
    return "Slurm's default"
