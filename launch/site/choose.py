"""Guess from a site's facts what a job should ask for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from launch.site import slurm
from launch.site.facts import Site
from launch.site.gres import is_mig

DAY = 24 * 3600
_SHORTEST = 60  # Slurm counts minutes
_SHORT = 3600  # a partition for no longer is for trying out


@dataclass(frozen=True)
class GpuNodes:
    """The nodes of a partition that a job is meant for: those with most GPUs of one type.

    Attributes:
        kind: GPU type as Slurm names it; "" where it names none.
        gpus: GPUs of one node; 0 for a partition without any.
        cpus, mem_mb: of the smallest of these nodes.
        others: other kinds of nodes of the partition: "4 nodes with 2 x a40".
        beside: GPUs of other types in these nodes: "2 nodes have 4 x a100 too".
    """

    kind: str
    nodes: int
    gpus: int
    cpus: int
    mem_mb: int
    features: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass
class Choice:
    """What is written into cluster.yaml, with the reasons. None: the field is left as a comment."""

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


def closed_why(partition: slurm.Partition, site: Site) -> str | None:
    """Why the user cannot submit to a partition; None where nothing speaks against it."""
    if not partition.up:
        return "it is down"
    if partition.settings.get("RootOnly") == "YES":
        return "it is for root only"
    if partition.settings.get("ReqResv") == "YES":
        return "it needs a reservation"
    groups = partition.listed("AllowGroups")
    if groups is not None and not set(groups) & set(site.groups):
        return f"it is for the groups {', '.join(groups)}"
    if site.accounts:
        mine = {one.name for one in site.accounts}
        allowed = partition.listed("AllowAccounts")
        if allowed is not None and not mine & set(allowed):
            return f"it is for the accounts {', '.join(allowed)}"
        denied = partition.listed("DenyAccounts")
        if denied is not None and mine <= set(denied):
            return f"it is not for the accounts {', '.join(denied)}"
        wanted, qos = partition.listed("AllowQos"), {name for one in site.accounts for name in one.qos}
        if wanted is not None and qos and not qos & set(wanted):
            return f"it is for the QOS {', '.join(wanted)}"
    return None


def gpu_nodes(partition: slurm.Partition) -> GpuNodes:
    """The most frequent kind of GPU nodes of a partition; those that are down count where no other is there."""
    nodes = [one for one in partition.nodes if one.usable] or partition.nodes
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
    )


def _shown(gpus: dict[str, int]) -> str:
    return " + ".join(f"{count} x {name or 'GPU'}" for name, count in gpus.items())


def all_gpus(nodes: GpuNodes) -> int:
    """GPUs of all these nodes."""
    return nodes.gpus * nodes.nodes


def choose(site: Site, named: str | None = None) -> Choice:
    """The guess for a site, for the partition `named` or the one that fits best.

    That is the default one if it has GPUs, else the one with most GPUs of one type that is up and open to the
    user; those with slices of GPUs (MIG) only, hidden ones and those for an hour or less come last.

    Raises:
        KeyError: there is no partition `named`.
    """
    closed = {one.name: why for one in site.partitions if (why := closed_why(one, site))}
    if named is not None:
        by_name = {one.name: one for one in reversed(site.partitions)}
        partition, why = by_name[named], "named by you"
        if named in closed:
            why += f"; but {closed[named]}"
    else:
        partition, why = _best(site, closed)
    choice = Choice(partition, why, gpu_nodes(partition), closed=closed)
    choice.account, choice.account_why = _account(site, partition)
    choice.qos, choice.qos_why = _qos(site, partition, choice.account)
    choice.module, choice.module_why, choice.runtime = _module(site)
    return choice


def _best(site: Site, closed: dict[str, str]) -> tuple[slurm.Partition, str]:
    default = next((one for one in site.partitions if one.default), None)

    def rank(one: slurm.Partition) -> tuple[bool, bool, bool, bool, bool, int]:
        limit, nodes = slurm.seconds(one.limit), gpu_nodes(one)
        first = one is default and one.name not in closed  # whatever its limit
        shown, whole = one.settings.get("Hidden") != "YES", not is_mig(nodes.kind)
        long = limit is None or limit > _SHORT
        return one.name not in closed, shown or first, whole, first, long, all_gpus(nodes)

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
    return best, "of those open to you it has most GPUs of one type" + (
        f"; the default one, {default.name}, has {_lacks(default, closed)}" if default is not None else ""
    )


def _lacks(partition: slurm.Partition, closed: dict[str, str]) -> str:
    usable = partition.name not in closed and gpu_nodes(partition).gpus
    return "slices of GPUs (MIG) only" if usable else "none that you can use"


def _usable_accounts(site: Site, partition: slurm.Partition) -> list[slurm.Account]:
    allowed, denied = partition.listed("AllowAccounts"), partition.listed("DenyAccounts") or []
    return [
        one
        for one in site.accounts or []
        if one.partition in ("", partition.name)
        and (allowed is None or one.name in allowed)
        and one.name not in denied
    ]


def accounts_for(site: Site, partition: slurm.Partition) -> list[str]:
    """Accounts that can be named for a partition."""
    return list(dict.fromkeys(one.name for one in _usable_accounts(site, partition)))


def _account(site: Site, partition: slurm.Partition) -> tuple[str | None, str]:
    if site.accounts is None:
        return None, "Slurm's accounting did not say which accounts you have"
    usable = accounts_for(site, partition)
    if not usable:
        return None, "Slurm's accounting knows no account of yours for this partition"
    if site.default_account in usable:
        rest = [name for name in usable if name != site.default_account]
        return site.default_account, "your default account" + (f"; others: {', '.join(rest)}" if rest else "")
    if len(usable) == 1:
        return usable[0], "your only account for this partition"
    return usable[0], f"the first of your accounts for this partition; others: {', '.join(usable[1:])}"


def _qos(site: Site, partition: slurm.Partition, account: str | None) -> tuple[str | None, str]:
    mine = [one for one in _usable_accounts(site, partition) if one.name == account]
    qos = list(dict.fromkeys(name for one in mine for name in one.qos))
    wanted = partition.listed("AllowQos")
    fitting = [name for name in qos if wanted is None or name in wanted]
    default = next((one.default_qos for one in mine if one.default_qos), "")
    if wanted is not None and fitting and default not in wanted:
        return fitting[0], f"the partition takes only {', '.join(wanted)}"
    if fitting:
        return (
            None,
            f"Slurm takes your default by itself{f', {default}' if default else ''}; yours: {', '.join(fitting)}",
        )
    return None, "Slurm takes your default by itself"


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
    told = (
        "there is no `module` on this node"
        if site.modules is None
        else "`module avail` lists no container program"
    )
    return None, f"{told}, and no apptainer or singularity is in PATH; ask the site", "auto"


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
    """Partitions that the user may choose."""
    yield from (one for one in site.partitions if one.name not in choice.closed)
