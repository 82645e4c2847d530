"""Ask Slurm and the login node everything that a job's site values are guessed from."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.site import slurm
from launch.site.commands import Answer, Ask
from launch.site.modules import LIST, Module, parse_modules, perhaps_modules, was_asked
from launch.site.network import Network, read_network
from launch.site.storage import (
    LOCAL,
    STAT,
    TARGET,
    Folder,
    kind_of,
    local_folders,
    parse_mounts,
    parse_stat,
    target,
    untouched,
)
from launch.site.variables import folders, proxies


@dataclass
class Site:
    """What was found out. Where something could not be, `notes` says why.

    Attributes:
        partitions: all of them, hidden ones too.
        accounts: of the user; None where accounting did not answer.
        modules: of container programs, the best first; None where there is no `module`, or that is not known.
        modules_unknown: why it is not known which modules there are; "" where it is.
        modules_perhaps: names of modules that may be of container programs.
        programs: container programs in PATH, with what they say of their version.
        silent: those in PATH that did not say it.
        groups: the user's groups.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    partitions: list[slurm.Partition] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    accounts: list[slurm.Account] | None = None
    default_account: str = ""
    modules: list[Module] | None = None
    modules_unknown: str = ""
    modules_perhaps: list[str] = field(default_factory=list)
    programs: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    network: Network = field(default_factory=Network)
    home: Folder | None = None
    local: list[Folder] = field(default_factory=list)
    proxies: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def slurm_version(self) -> str:
        """22.05.8; "" where scontrol did not tell."""
        return self.config.get("SLURM_VERSION", "")


class NoSlurmError(Exception):
    """Slurm told of no partition; the message says why."""


def read_site(ask: Ask, environment: Mapping[str, str], root: Path = Path("/")) -> Site:
    """Everything about the site; `root` stands for / where folders and /proc, /sys are looked at.

    Raises:
        NoSlurmError: sinfo is not there, fails, or lists no partition. What else fails is a note.
    """
    site = Site(user=_user(environment), groups=_groups())
    _read_slurm(site, ask)
    _read_accounts(site, ask)
    _read_programs(site, ask)
    site.network = read_network(root / "sys")
    _read_folders(site, ask, environment, root)
    site.proxies = proxies(environment)
    site.folders = folders(environment)
    site.images = _images(Path("images"))
    return site


def _noted(site: Site, answer: Answer) -> bool:
    """Whether an answer is one; else what kept it from being one is noted."""
    if answer.problem is not None:
        site.notes.append(answer.problem)
    return answer.problem is None


def _read_slurm(site: Site, ask: Ask) -> None:
    answer = ask(slurm.SINFO)
    if answer.problem is not None:
        raise NoSlurmError(answer.problem)
    config = ask(slurm.CONFIG)
    if config.problem is None:
        site.config = slurm.parse_config(config.out)
    listed = _of_this_cluster(answer.out, site.config.get("ClusterName"))
    site.partitions, strange = slurm.parse_sinfo(listed)
    if not site.partitions:
        said = next((line for line in listed.splitlines() if line.strip()), "nothing")
        raise NoSlurmError(f"sinfo listed no partition that can be read; it printed {said[:200]!r}")
    if strange:
        site.notes.append(f"sinfo: {strange} lines that are no partition were passed over")
    answer = ask(slurm.PARTITIONS)
    if _noted(site, answer):
        settings = slurm.parse_partitions(answer.out)
        for partition in site.partitions:
            partition.settings = settings.get(partition.name, {})
    _noted(site, config)


def _of_this_cluster(listed: str, name: str | None) -> str:
    """What sinfo listed of the cluster `name`, where it lists several."""
    found = slurm.clusters(listed)
    if not found:
        return listed
    if name not in found:
        told = (
            f"{name}, this one, is not among them"
            if name
            else "scontrol show config did not say which is this one"
        )
        raise NoSlurmError(f"sinfo listed the clusters {', '.join(found)}, and {told}")
    return found[name]


def _read_accounts(site: Site, ask: Ask) -> None:
    if not site.user:
        site.notes.append("this user has no name: accounts were not asked for")
        return
    answer = ask(slurm.associations(site.user, site.config.get("ClusterName", "")))
    if not _noted(site, answer):
        return
    site.accounts = slurm.parse_accounts(answer.out)
    answer = ask(slurm.default_account(site.user))
    if site.accounts and _noted(site, answer):
        site.default_account = next((line.strip() for line in answer.out.splitlines() if line.strip()), "")


def _read_programs(site: Site, ask: Ask) -> None:
    answer = ask(LIST)
    # What was printed counts, whatever became of the shell after it.
    if was_asked(answer.out):
        site.modules, site.modules_perhaps = parse_modules(answer.out), perhaps_modules(answer.out)
        site.modules_unknown = answer.problem or "" if site.modules == [] else ""
        _noted(site, answer)
    else:
        site.modules_unknown = answer.problem or "the login shell ended before they could be asked for"
        site.notes.append(f"modules: {site.modules_unknown}")
    for program in ("apptainer", "singularity"):
        answer = ask((program, "--version"))
        if answer.problem is None:
            site.programs[program] = next(iter(answer.out.strip().splitlines()), "")
        elif answer.problem != f"{program} is not in PATH":
            site.silent.append(program)
            site.notes.append(answer.problem)


def _read_folders(site: Site, ask: Ask, environment: Mapping[str, str], root: Path) -> None:
    try:
        mounts = parse_mounts((root / "proc/mounts").read_text(encoding="utf-8", errors="replace"))
    except OSError as wrong:
        mounts = {}
        site.notes.append(f"/proc/mounts: {wrong.strerror}")
    temporary = environment.get("TMPDIR", "").rstrip("/")

    def link(path: str) -> str | None:
        try:
            return str((root / path.lstrip("/")).readlink())
        except OSError:
            return None

    means = {path: target(path, mounts, link) for path in (*LOCAL, temporary) if path.startswith("/")}
    # By the list of mounts, or a look at the folder above: a network file system that hangs is not touched.
    existing = [
        path for path, real in means.items() if real in mounts or untouched(real, mounts) or _is_folder(root, real)
    ]
    site.local = [Folder(path, kind_of(means[path], mounts)) for path in local_folders(existing, temporary)]
    home = environment.get("HOME", "")
    if home.startswith("/"):
        answer = ask((*STAT, home))
        total, free = parse_stat(answer.out) if _noted(site, answer) else (None, None)
        real = target(home, mounts, link)
        if answer.problem is None:
            # It answers: links in it can be followed, too.
            real = ask((*TARGET, home)).out.strip("\n") or real
        site.home = Folder(home, kind_of(real, mounts), total, free)


def _is_folder(root: Path, path: str) -> bool:
    try:
        return (root / path.lstrip("/")).is_dir()
    except OSError:
        return False


def _images(folder: Path) -> list[str]:
    try:
        return sorted(str(path) for path in folder.glob("*.sif"))[:32]
    except OSError:
        return []


def _user(environment: Mapping[str, str]) -> str:
    """By the user's number, as Slurm does it; $USER may be another."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return environment.get("USER", "")


def _groups() -> tuple[str, ...]:
    found = []
    for number in os.getgroups():
        try:
            found.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return tuple(found)
