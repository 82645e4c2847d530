"""Guess from a site's facts what a job should ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from launch.site import slurm
from launch.site.access import account_for, closed_why, doubtful_why, qos_for, refused_why
from launch.site.facts import Site
from launch.site.gpu_nodes import GpuNodes, all_gpus, gpu_nodes
from launch.site.gres import is_mig

DAY = 24 * 3600
_SHORTEST = 60  # Slurm counts minutes
_SHORT = 3600  # a partition for no longer is for trying out
_MOST_SHOWN = 6
_NO_PREEMPTION = {"OFF", "GANG", "WITHIN", "N/A", "(null)"}


@dataclass
class Choice:
    """What is written into cluster.yaml, with the reasons. None: the field is left as a comment.

    Attributes:
        closed: partitions that are not for the user, and why.
        doubtful: those that may not be.
        refused: why sbatch will refuse every job; "" where that is not known.
    """

    partition: slurm.Partition
    partition_why: str
    nodes: GpuNodes
    account: str | None = None
    account_why: str = ""
    qos: str | None = None
    qos_why: str = ""
    module: str | None = None
    module_why: str = ""
    runtime: str = "auto"
    image_folder: str | None = None
    closed: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, str] = field(default_factory=dict)
    refused: str = ""


def choose(site: Site, named: str | None = None) -> Choice:
    """The guess for a site, for the partition `named` or the one that fits best.

    That is the default one if it has GPUs, else the one with most GPUs of one type that is up and open to the
    user; those that may be closed, with slices of GPUs (MIG) only, hidden ones, those for an hour or less and
    those whose jobs are preempted come last.

    Raises:
        KeyError: there is no partition `named`.
    """
    closed = {one.name: why for one in site.partitions if (why := closed_why(one, site))}
    doubtful = {
        one.name: why
        for one in site.partitions
        if one.name not in closed and (why := doubtful_why(one, site)) is not None
    }
    if named is not None:
        by_name = {one.name: one for one in reversed(site.partitions)}
        partition, why = by_name[named], "named by you"
        if named in closed:
            why += f"; but {closed[named]}"
    else:
        partition, why = _best(site, closed, doubtful)
    if partition.name in doubtful:
        why += f"; it may be closed to you: {doubtful[partition.name]}"
    nodes = gpu_nodes(partition)
    if nodes.down:
        why += f"; {nodes.down}"
    choice = Choice(partition, why, nodes, closed=closed, doubtful=doubtful, refused=refused_why(site))
    choice.account, choice.account_why = account_for(site, partition)
    choice.qos, choice.qos_why = qos_for(site, partition, choice.account)
    choice.module, choice.module_why, choice.runtime = _module(site)
    return choice


def _drawbacks(
    one: slurm.Partition, site: Site, closed: dict[str, str], doubtful: dict[str, str]
) -> Iterator[tuple[bool, str]]:
    """Whether a partition has each of the drawbacks, the worst first."""
    limit, first = slurm.seconds(one.limit), one.default and one.name not in closed
    yield one.name in closed, closed.get(one.name, "")
    yield one.name in doubtful, "it may be closed to you"
    yield one.settings.get("Hidden") == "YES" and not first, "it is hidden"
    yield is_mig(gpu_nodes(one).kind), "slices of GPUs (MIG)"
    yield not first, "it is not the default one"
    yield limit is not None and limit <= _SHORT, f"for {one.limit}"  # the default one's limit does not count
    yield preempted(one, site), "its jobs may be preempted"


def _best(site: Site, closed: dict[str, str], doubtful: dict[str, str]) -> tuple[slurm.Partition, str]:
    default = next((one for one in site.partitions if one.default), None)
    flaws = {one.name: [*_drawbacks(one, site, closed, doubtful)] for one in site.partitions}

    def rank(one: slurm.Partition) -> tuple[list[bool], int, bool]:
        nodes = gpu_nodes(one)
        return [not has for has, _ in flaws[one.name]], all_gpus(nodes), not nodes.down

    having = [one for one in site.partitions if gpu_nodes(one).gpus]
    if not having:
        first = default or site.partitions[0]
        return first, "no partition has GPUs that Slurm knows of" + (
            "; this is the default one" if first.default else ""
        )
    best = max(having, key=rank)  # of equal ones the first in Slurm's order
    if best is default and best.name not in closed:
        return best, "the default partition, and it has GPUs"
    if best.name in closed:
        return best, f"it has most GPUs of one type, but {closed[best.name]}"
    why = "of those open to you it has most GPUs of one type"
    most = all_gpus(gpu_nodes(best))
    larger = [
        f"{one.name} ({_worse(flaws[one.name], flaws[best.name])})"
        for one in having
        if one.name not in closed and all_gpus(gpu_nodes(one)) > most
    ]
    if larger:
        why += f", apart from {', '.join(larger[:_MOST_SHOWN])}"
    return best, why + (
        f"; the default one, {default.name}, {_lacks(default, closed, doubtful)}" if default else ""
    )


def _worse(flaws: list[tuple[bool, str]], than: list[tuple[bool, str]]) -> str:
    """The first drawback that only one of two partitions has."""
    pairs = zip(flaws, than)  # noqa: B905 (Python 3.10)
    return next((why for (has, why), (also, _) in pairs if has and not also), "")


def _lacks(default: slurm.Partition, closed: dict[str, str], doubtful: dict[str, str]) -> str:
    if default.name in closed or not gpu_nodes(default).gpus:
        return "has none that you can use"
    return "may be closed to you" if default.name in doubtful else "has slices of GPUs (MIG) only"


def preempted(partition: slurm.Partition, site: Site) -> bool:
    """Whether jobs of a partition may be ended or stopped for others."""
    if site.config.get("PreemptType") == "preempt/none":
        return False
    return not set(partition.settings.get("PreemptMode", "OFF").split(",")) <= _NO_PREEMPTION


def _module(site: Site) -> tuple[str | None, str, str]:
    if "apptainer" in site.programs or ("singularity" in site.programs and not site.modules):
        shown = ", ".join(f"{name} ({said})" if said else name for name, said in site.programs.items())
        also = f"; modules: {', '.join(one.name for one in site.modules)}" if site.modules else ""
        return None, f"without a module this node has {shown}{also}", "auto"
    if site.modules:
        best, rest = site.modules[0], [one.name for one in site.modules[1:8]]
        why = "the site's default version" if best.default else "the newest that `module avail` lists"
        if not best.direct:
            why = f"by `module spider`; `module spider {best.name}` says which modules it needs before it"
        return best.name, why + (f"; others: {', '.join(rest)}" if rest else ""), best.runtime
    if site.modules_unknown:
        told = f"which modules there are is not known ({site.modules_unknown})"
    elif site.modules is None:
        told = "there is no `module` on this node"
    else:
        told = "`module avail` lists no container program"
    if site.modules_perhaps:
        told += f" by its own name; perhaps {', '.join(site.modules_perhaps[:_MOST_SHOWN])}"
    here = (
        f"{' and '.join(site.silent)} in PATH did not tell a version"
        if site.silent
        else "no apptainer or singularity is in PATH"
    )
    return None, f"{told}, and {here}; ask the site", "auto"


def time_limit(partition: slurm.Partition) -> tuple[str | None, str]:
    """The time to ask for and why: the partition's limit, a day at most; None where no job can have that limit."""
    limit = slurm.seconds(partition.limit)
    if limit is not None and limit < _SHORTEST:
        return (
            None,
            f"Slurm names a limit of {partition.limit} for the partition, which no job can keep; ask the site",
        )
    if limit is None:
        return "24:00:00", "the partition has no limit; a day leaves Slurm room to plan"
    if limit > DAY:
        return "24:00:00", f"a day; the partition allows {partition.limit}, and shorter jobs start earlier"
    hours, rest = divmod(limit, 3600)
    return f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}", "the partition's limit"


def open_partitions(site: Site, choice: Choice) -> Iterator[slurm.Partition]:
    """Partitions that the user may choose; those that may be closed come last."""
    yield from sorted(
        (one for one in site.partitions if one.name not in choice.closed),
        key=lambda one: one.name in choice.doubtful,
    )
