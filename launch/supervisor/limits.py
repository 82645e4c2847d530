"""What a node allows: open files, processes, shared memory, and the job's own memory."""

import os
import resource
import shutil
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Tuple

OPEN_FILES = 65535
_FEW_FILES = 16384
_SHARED_MEMORY = Path("/dev/shm")
# Ray and the engines start some hundred threads for each GPU.
_FEW_PROCESSES = 8192
_SMALL_SHARED_MEMORY = 8 * 2**30
# More would be taken from the trainer; the objects of a step are far smaller.
_OBJECT_STORE_SHARE = 0.3
# ray/_private/ray_constants.py (2.60): OBJECT_STORE_MINIMUM_MEMORY_BYTES, DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES.
_OBJECT_STORE_LEAST = 75 * 2**20
_OBJECT_STORE_MOST = 200 * 10**9
_UNLIMITED = 2**60  # cgroup v1 writes a number near 2**63 for "no limit"


def raise_open_files() -> List[str]:
    """Raise the soft limit of open files to the smaller of the hard one and 65535, or warn. Returns warnings."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    told = []
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            told.append(f"the limit of open files stays at {soft}: {error}")
    if wanted < _FEW_FILES:
        told.append(f"the hard limit of open files is {hard}; Ray wants {OPEN_FILES} (ulimit -Hn)")
    return told


def low_limits(*, shared_memory: bool) -> List[str]:
    """Warnings on what else is scarce on this node; `shared_memory`: the job needs much of it."""
    told = []
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes not in (resource.RLIM_INFINITY, -1) and processes < _FEW_PROCESSES:
        told.append(
            f"the limit of processes and threads is {processes} (ulimit -u); 'pthread_create failed' means it"
        )
    free = free_bytes(_SHARED_MEMORY)
    if shared_memory and free is not None and free < _SMALL_SHARED_MEMORY:
        told.append(f"{_SHARED_MEMORY} has {free / 2**30:.1f} GiB free; NCCL and Ray's object store live there")
    return told


def free_bytes(folder: Path) -> Optional[int]:
    """Free bytes of the file system at `folder`, or None when there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def job_memory(environ: Mapping[str, str], cgroup_root: Path = Path("/sys/fs/cgroup")) -> Optional[int]:
    """Bytes that the job may use on this node: the smaller of SLURM_MEM_PER_NODE (MiB) and its cgroup's limit."""
    found = []
    text = environ.get("SLURM_MEM_PER_NODE", "")
    if text.isascii() and text.isdigit() and int(text):  # 0: all of the node
        found.append(int(text) * 2**20)
    found += _cgroup_limits(cgroup_root)
    return min(found, default=None)


def _memory_cgroups(root: Path) -> Iterator[Tuple[Path, Path, bool]]:
    """(where the tree is mounted, this process's folder, whether it is v2) of each that counts memory."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            base = root if controllers == "" else root / "memory"
            yield base, base / place.lstrip("/"), controllers == ""


def oom_kills(cgroup_root: Path = Path("/sys/fs/cgroup")) -> Optional[int]:
    """How many processes of this one's cgroup the kernel has killed for want of memory; None where it is not told.

    With Slurm's task/cgroup that is the job on this node, since it began.
    """
    for _, folder, new in _memory_cgroups(cgroup_root):
        try:
            text = (folder / ("memory.events" if new else "memory.oom_control")).read_text()
        except OSError:
            continue  # not mounted in the container, or the root of the tree
        counts = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
        if counts.get("oom_kill", "").strip().isdigit():
            return int(counts["oom_kill"])
    return None


def _cgroup_limits(root: Path) -> List[int]:
    """Memory limits of this process's cgroups and of those above, v2 and v1."""
    found = []
    for base, folder, new in _memory_cgroups(root):
        name = "memory.max" if new else "memory.limit_in_bytes"
        for part in [folder, *folder.parents]:
            try:
                text = (part / name).read_text().strip()
            except OSError:
                text = ""  # not mounted in the container, or the root of the tree
            if text.isdigit() and int(text) < _UNLIMITED:
                found.append(int(text))
            if part == base:
                break
    return found


def object_store_bytes(memory: Optional[int], shared_memory: Optional[int]) -> Optional[int]:
    """Size of Ray's object store: at most 30 % of the job's memory and 90 % of the free shared memory.

    None, Ray's own choice, when neither is known; Ray would look at the node's memory, of which a job may have a
    small part (the kernel counts shared memory as the job's).
    """
    bounds = []
    if memory is not None:
        bounds.append(int(memory * _OBJECT_STORE_SHARE))
    elif shared_memory is not None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        bounds.append(int(total * _OBJECT_STORE_SHARE))
    if shared_memory is not None:
        bounds.append(int(shared_memory * 0.9))
    return max(min(*bounds, _OBJECT_STORE_MOST), _OBJECT_STORE_LEAST) if bounds else None


def node_object_store(environ: Mapping[str, str]) -> Optional[int]:
    """The size of the object store on this node, in bytes."""
    return object_store_bytes(job_memory(environ), free_bytes(_SHARED_MEMORY))
