"""What Slurm and Ray make of the allocation that a job asks for."""

import re
from collections.abc import Iterator
from pathlib import Path

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.cpus import RUNNER_CPUS, cpus_needed
from launch.sizing.gpus import is_amd, is_type
from launch.sizing.layout import plan_layout, ray_nodes
from launch.sizing.slurm_time import time_seconds
from launch.supervisor.nodelist import expand

_GIB = 2**30
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_YEAR_S = 365 * 24 * 3600
# srun and the container need the environment of the shell that submits.
_ENVIRONMENT_FILE = re.compile(r"/.*|[0-9]+")
_LOOPBACK_OR_BRIDGE = re.compile(r"(lo|docker[0-9]+|virbr[0-9]+)(:.*)?")
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9_.:@-]{0,14}")


def memory_bytes(text: str) -> int:
    """Bytes of a memory size as Slurm writes it; without a unit it is in MiB, and 0 is all of the node."""
    unit = text[-1] if text[-1] in _UNITS else "M"
    return int(text.rstrip("KMGT")) * _UNITS[unit]


def check_slurm(job: Job, project: Path | None = None, *, rehearse: bool = False) -> Iterator[Finding]:
    """What Slurm would refuse after a while in the queue, or do otherwise than meant.

    Args:
        project: folder that relative paths start from, to look at the model's size.
        rehearse: a rehearsal asks for no GPU and gives Ray its own number of CPUs.
    """
    yield from _check_gpu(job)
    yield from _check_time("cluster.time", job.cluster.time)
    if rehearse:
        yield from _check_time("rehearsal.time", job.rehearsal.time)
    else:
        yield from _check_cpus(job)
        yield from _check_memory(job, project)
    yield from _check_options(job)
    yield from _check_interface(job)


def _check_gpu(job: Job) -> Iterator[Finding]:
    gpu = job.cluster.gpu
    if gpu is None:
        return
    if is_amd(gpu):
        yield warning(
            "gpu-type",
            f"cluster.gpu={gpu!r} is a GPU of AMD; the images of this toolkit are for CUDA",
            "take a partition with GPUs of NVIDIA",
        )
    if is_type(gpu):
        return
    match = re.fullmatch(r"(?:gres/|gres:)?(?:gpu:)?(?:((?![0-9]{1,3}:)[A-Za-z0-9][\w.+-]*):)?([0-9]+)?", gpu)
    kind, count = (match[1], match[2]) if match else (None, None)
    fields = f"cluster.gpu={kind}" if kind else "cluster.gpu=null (any), or a type as h100"
    fields += f" and cluster.gpus_per_node={count}" if count else ""
    yield error(
        "gpu-type",
        f"cluster.gpu={gpu!r} is not the name of a GPU type: it would become --gpus-per-node={gpu}:"
        f"{job.cluster.gpus_per_node}",
        f"set {fields}; `sinfo -o %G` shows the types",
    )


def _check_time(field: str, text: str) -> Iterator[Finding]:
    seconds = time_seconds(text)
    if seconds == 0:
        yield warning(
            "time-limit", f"{field}={text} asks Slurm for no time limit, which most sites refuse", "give the hours"
        )
    elif seconds > _YEAR_S:
        yield error(
            "time-limit",
            f"{field}={text} is {seconds / 86400:.0f} days; Slurm takes at most the partition's limit",
            "write HH:MM:SS, or D-HH:MM:SS with days before the dash",
        )
    elif "-" not in text and text.count(":") < 2 and seconds <= 72 * 60:
        meant = text.partition(":")[0]
        yield warning(
            "time-limit",
            f"{field}={text} is {seconds / 60:g} minutes: Slurm reads a number as minutes, and M:S before H:M",
            f"for hours write {meant}:00:00",
        )


def _check_cpus(job: Job) -> Iterator[Finding]:
    cpus = job.cluster.cpus_per_node
    least, with_driver = cpus_needed(job)
    what = f"verl {job.engine.verl} in {job.engine.mode} mode asks Ray for {with_driver} CPUs on the fullest node"
    if cpus is None:
        if not _is_exclusive(job):
            yield warning(
                "cpus",
                f"cluster.cpus_per_node is not set: the job needs {with_driver} CPUs on each node, and a site's "
                f"default may be one",
                f"set cluster.cpus_per_node={with_driver}, or --exclusive in cluster.extra_sbatch where the site "
                f"gives whole nodes",
            )
        return
    remedy = f"set cluster.cpus_per_node={with_driver} or more; with fewer verl waits for ever without a word"
    single = ray_nodes(job) == 1
    if cpus < least or cpus < RUNNER_CPUS[job.engine.mode] or (single and cpus < with_driver):
        yield error("cpus", f"cluster.cpus_per_node={cpus}, but {what}", remedy)
    elif cpus < with_driver:
        yield warning("cpus", f"cluster.cpus_per_node={cpus}, but {what} if the driver lands there", remedy)


def _model_bytes(job: Job, project: Path | None) -> int:
    if project is None:
        return 0
    folder = project / job.model.path
    return sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())


def _check_memory(job: Job, project: Path | None) -> Iterator[Finding]:
    text = job.cluster.mem
    if text is None:
        return
    size = memory_bytes(text)
    if size == 0:
        if job.cluster.gpus_per_node < 8 and not any("exclusive" in option for option in job.cluster.extra_sbatch):
            yield warning(
                "memory",
                f"cluster.mem={text} asks for all memory of the node beside {job.cluster.gpus_per_node} GPUs",
                "other jobs then cannot use the node's other GPUs; say how much, or add --exclusive",
            )
        return
    if text[-1].isdigit() and size < 32 * _GIB:
        yield warning(
            "memory",
            f"cluster.mem={text} is {text} MB: Slurm reads a number without a unit as MB",
            f"write {text}G",
        )
        return
    gpus = job.cluster.gpus_per_node
    floor = max(8 * gpus, 32)
    if size < floor * _GIB:
        yield warning(
            "memory",
            f"cluster.mem={text} is {size / _GIB:.0f} GiB for {gpus} GPUs; Ray, the trainers and the engines of a "
            f"node take {floor} GiB and more",
            f"ask for {floor}G or more",
        )
    weights = _model_bytes(job, project)
    # Each rank loads the weights on the host; what is offloaded stays: 12 bytes of master weights and moments for
    # 2 bytes of weights, over all training nodes.
    copies = 2 + (6 if "optimizer" in job.actor.offload else 0) / max(plan_layout(job).train_nodes, 1)
    if size < copies * weights:
        yield warning(
            "memory",
            f"cluster.mem={text} is {size / _GIB:.0f} GiB; loading and offloading the model's weights "
            f"({weights / _GIB:.0f} GiB) takes about {copies:.1f} times that: {copies * weights / _GIB:.0f} GiB",
            f"ask for {int(copies * weights / _GIB) + 1}G or more",
        )


_LETTERS = {
    "-p": "--partition", "-A": "--account", "-q": "--qos", "-w": "--nodelist", "-x": "--exclude",
    "-L": "--licenses", "-O": "--overcommit", "-s": "--oversubscribe", "-S": "--core-spec",
}  # fmt: skip
_NAMES = (
    "--gres", "--tres-per-task", "--export", "--export-file", "--exclusive", "--mem-per-cpu", "--mem-per-gpu",
    "--requeue", "--no-requeue", "--hint", "--threads-per-core", "--spread-job", "--use-min-nodes",
    "--open-mode", "--signal", *_LETTERS.values(),
)  # fmt: skip


def _name(option: str) -> str:
    """The long name of an sbatch option; Slurm completes what is abbreviated without doubt."""
    name = option.partition("=")[0]
    if not option.startswith("--"):
        return _LETTERS.get(option[:2], option[:2])
    completed = [known for known in _NAMES if known.startswith(name)]
    return completed[0] if name not in _NAMES and len(completed) == 1 else name


def _is_exclusive(job: Job) -> bool:
    """Whether the job has its nodes, and so their CPUs, alone; user, mcs and topo only say who may share them."""
    return any(_name(option) == "--exclusive" and "=" not in option for option in job.cluster.extra_sbatch)


def _check_options(job: Job) -> Iterator[Finding]:
    options = job.cluster.extra_sbatch
    names = [_name(option) for option in options]
    for name in sorted({name for name in names if names.count(name) > 1}):
        if name not in ("--licenses", "--gres"):
            yield warning(
                "sbatch-options", f"cluster.extra_sbatch holds {name} twice; the last one counts", "keep one"
            )
    for option, name in zip(options, names, strict=True):
        yield from _check_option(job, option, name)


def _check_option(job: Job, option: str, name: str) -> Iterator[Finding]:
    value = option.partition("=")[2] if option.startswith("--") else option[2:]
    cluster, place = job.cluster, f"cluster.extra_sbatch: {option}"
    if name in ("--gres", "--tres-per-task") and re.search(r"(^|[,/:])gpu\b", value):
        yield error(
            "sbatch-options",
            f"{place} beside --gpus-per-node={cluster.gpus_per_node}, which the script sets itself",
            "use cluster.gpu and cluster.gpus_per_node",
        )
    elif name in ("--partition", "--account", "--qos"):
        field = name.lstrip("-")
        if getattr(cluster, field) is not None:
            told = f"{place} contradicts cluster.{field}={getattr(cluster, field)}"
            yield error("sbatch-options", told, f"use cluster.{field} alone")
    elif name == "--exclusive" and cluster.cpus_per_node is not None:
        yield warning(
            "sbatch-options",
            f"{place} gives the job all CPUs of a node; cluster.cpus_per_node={cluster.cpus_per_node} uses these",
            "set cluster.cpus_per_node=null, or to the CPUs of a node",
        )
    elif (name == "--export" and "ALL" not in value.upper().split(",")) or (
        name == "--export-file" and _ENVIRONMENT_FILE.fullmatch(value)
    ):
        yield error(
            "sbatch-options",
            f"{place} takes PATH, the modules and the tokens of your shell away from the job",
            "leave it out, or begin the list with ALL; name what the job needs in container.env or "
            "container.env_file",
        )
    elif name in ("--mem-per-cpu", "--mem-per-gpu") and cluster.mem is not None:
        told = f"{place} contradicts cluster.mem={cluster.mem}: Slurm takes one of them"
        yield error("sbatch-options", told, "use cluster.mem")
    elif name == "--nodelist":
        yield from _check_nodelist(job, place, value)
    elif name in ("--overcommit", "--oversubscribe", "--spread-job", "--use-min-nodes"):
        yield warning(
            "sbatch-options",
            f"{place} changes which CPUs or nodes the job gets; Ray counts on its own",
            "leave it out",
        )
    elif name == "--requeue" and not job.recovery.requeue:
        yield warning(
            "sbatch-options",
            f"{place} starts the job again by itself after a node failure and uses node hours unasked",
            "leave it out and set recovery.requeue=true, which counts restarts and stops when one makes no step",
        )
    elif name == "--no-requeue" and job.recovery.requeue:
        yield error(
            "sbatch-options",
            f"{place} contradicts recovery.requeue=true: Slurm refuses to requeue such a job",
            "leave it out, or set recovery.requeue=false",
        )
    elif name == "--open-mode" and value.startswith("t") and job.recovery.requeue:
        yield warning(
            "sbatch-options",
            f"{place} empties the job's output when recovery.requeue starts it again",
            "leave it out",
        )
    elif name == "--signal":
        yield warning(
            "sbatch-options",
            f"{place} ends the job when the signal comes; the launcher knows when the allocation ends without one",
            "leave it out; checkpoint.before_end_s is the time that is kept free for the last checkpoint",
        )
    elif name in ("--hint", "--threads-per-core", "--core-spec"):
        yield warning("sbatch-options", f"{place} can leave Ray fewer CPUs than it is told", "leave it out")


def _check_nodelist(job: Job, place: str, value: str) -> Iterator[Finding]:
    if "/" in value:
        return  # a file of names
    names = expand(value)
    if len(set(names)) > job.cluster.nodes:
        yield error(
            "sbatch-options",
            f"{place} names {len(set(names))} nodes, but cluster.nodes={job.cluster.nodes}",
            f"name {job.cluster.nodes}, or set cluster.nodes={len(set(names))}",
        )


def _check_interface(job: Job) -> Iterator[Finding]:
    name = job.cluster.network_interface
    if name is None:
        return
    if job.cluster.nodes > 1 and _LOOPBACK_OR_BRIDGE.fullmatch(name):
        yield error(
            "network-interface",
            f"cluster.network_interface={name}: no other of the {job.cluster.nodes} nodes is reached by it",
            "name one that has an address of its own on each node (`ip -4 addr`), or null: found by itself",
        )
        return
    if _INTERFACE.fullmatch(name):
        return
    yield error(
        "network-interface",
        f"cluster.network_interface={name!r} is not the name of one interface; Gloo takes one literal name, not "
        f"the lists, prefixes and '^' of NCCL",
        "name one, as `ip -4 addr` shows it on a compute node, or null: found by itself",
    )
