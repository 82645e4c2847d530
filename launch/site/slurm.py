"""What sinfo, scontrol and sacctmgr print, Slurm 22.05 to 26.05. Pure functions on their text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from launch.site.gres import parse_gres

# Hidden partitions too; nodes that differ on lines of their own; of this cluster, not of its federation.
SINFO = ("sinfo", "--all", "--local", "--exact", "--noheader", "--format=%P|%a|%l|%D|%T|%c|%m|%G|%f")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
CONFIG = ("scontrol", "show", "config")
_GONE = re.compile(r"down|drain|fail|error|unknown|future|inval|not_resp|no_resp|power_down|powering_down|maint")


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike.

    Attributes:
        state: as sinfo writes it, without its flags.
        gpus: GPUs of one node by type, "" for those without a type.
        mem_mb: memory of one node, MiB.
    """

    count: int
    state: str
    cpus: int
    mem_mb: int
    gpus: dict[str, int]
    features: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether jobs start there, now or when others end."""
        return _GONE.search(self.state.lower()) is None


@dataclass
class Partition:
    """One partition: its nodes by sinfo, `settings` by scontrol show partition (empty where it did not answer)."""

    name: str
    default: bool
    up: bool
    limit: str
    nodes: list[Nodes] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def listed(self, key: str) -> list[str] | None:
        """A setting that is a list of names; None where it does not limit anybody."""
        text = self.settings.get(key, "")
        return None if text in ("", "ALL", "(null)", "N/A") else text.split(",")


def clusters(text: str) -> dict[str, str]:
    """What sinfo prints of each cluster, by its line `CLUSTER: name`; empty where it tells of this one only."""
    parts = re.split(r"^CLUSTER:[ \t]*(.*?)[ \t\r]*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))  # noqa: B905 (Python 3.10)


def parse_sinfo(text: str) -> tuple[list[Partition], int]:
    """Partitions in Slurm's order, and the number of lines that are none (warnings, a message of the day)."""
    found: dict[str, Partition] = {}
    strange = 0
    for line in text.splitlines():
        fields = [part.strip() for part in line.split("|")]
        numbers = [re.match(r"[0-9]{1,9}", fields[place]) for place in (3, 5, 6)] if len(fields) == 9 else [None]
        if not all(numbers) or not fields[0].rstrip("*"):
            strange += bool(line.strip())
            continue
        count, cpus, mem_mb = (int(number[0]) for number in numbers if number is not None)
        name = fields[0][:-1] if fields[0].endswith("*") else fields[0]
        known = found.setdefault(name, Partition(name, fields[0] != name, fields[1] == "up", fields[2]))
        features = () if fields[8] == "(null)" else tuple(part for part in fields[8].split(",") if part)
        if count:  # a partition without nodes has a line too
            state = fields[4].rstrip("*~#!%$@^+-")
            known.nodes.append(Nodes(count, state, cpus, mem_mb, parse_gres(fields[7]), features))
    return list(found.values()), strange


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Settings of each partition by `scontrol --oneliner show partition`; also when it is not on one line."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for key, value in re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", text):
        if key == "PartitionName":
            current = found.setdefault(value, {})
        elif current is not None:
            current.setdefault(key, value)
    return found


def parse_config(text: str) -> dict[str, str]:
    """Settings by `scontrol show config`, with those of cgroup.conf at its end; those without a value left out."""
    pairs = re.findall(r"^([A-Za-z_/-]+)\s*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return {key: value for key, value in pairs if value not in ("", "(null)", "N/A")}


@dataclass(frozen=True)
class Account:
    """An association of the user: what may be asked for with --account. `partition` "": all of them."""

    name: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""


def associations(user: str, cluster: str = "") -> tuple[str, ...]:
    """The command that lists the accounts of a user, of all clusters of the accounting where none is named."""
    of_this_one = (f"cluster={cluster}",) if cluster else ()
    columns = "format=Account,Partition,QOS,DefaultQOS"
    return ("sacctmgr", "-nP", "show", "assoc", *of_this_one, f"user={user}", columns)


def default_account(user: str) -> tuple[str, ...]:
    """The command that names the account which Slurm takes by itself."""
    return ("sacctmgr", "-nP", "show", "user", f"name={user}", "format=DefaultAccount")


def parse_accounts(text: str) -> list[Account]:
    """Accounts by `associations`, each once for each partition; lines of another shape are passed over."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    found = [
        Account(name.strip(), part.strip(), tuple(each for each in qos.split(",") if each), default.strip())
        for name, part, qos, default in rows
        if name.strip()
    ]
    return list(dict.fromkeys(found))


def seconds(limit: str) -> int | None:
    """Seconds of a limit as Slurm prints it (1-00:00:00, 30:00); None for none (infinite, UNLIMITED, n/a)."""
    found = re.fullmatch(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,6})", limit.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def names(partitions: Iterable[Partition]) -> str:
    """Partitions for a message: a, b (default), c."""
    return ", ".join(one.name + " (default)" * one.default for one in partitions)
