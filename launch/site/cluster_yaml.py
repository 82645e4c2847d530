"""Facts and guesses as the text of cluster.yaml. Pure: what is asked for and what is read lies elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launch.site import slurm
from launch.site.choose import Choice, open_partitions, preempted, time_limit
from launch.site.facts import Site
from launch.site.gpu_nodes import GpuNodes, gpu_nodes
from launch.site.gres import is_mig
from launch.site.limits import demands, socket_limit
from launch.site.memory import memory
from launch.site.storage import Folder
from launch.site.yaml_text import comment, entry, flow_list, scalar
from launch.sizing.gpus import MIG, find_gpu, is_amd, is_type

# Names of images that `launch` looks for by default.
IMAGE, CPU_IMAGE, IMAGE_FOLDER = "verl-0.9.1.sif", "verl-cpu.sif", "images"
_MOST_GPUS = 64  # of a node, in a job
_GIB = 1024**3
_SMALL_HOME = 100 * _GIB
_SBATCH_WORD = re.compile(r"[A-Za-z0-9_.:,+@/-]{1,255}")
_MOST_SHOWN = 12
_HEAD = (
    "What launch.init found on this site. launch.render lays this file under each job of this folder: a job's own "
    "values and --set go over it. Guesses about compute nodes were made on the login node; read them once, "
    "correct them here."
)


def cluster_yaml(site: Site, choice: Choice) -> str:
    """The file. It has the shape of a job, and is laid under each job of its folder by launch.render."""
    lines = [
        *comment(_HEAD, 0),
        *_about(site),
        *(comment(choice.refused, 0) if choice.refused else []),
        "",
        "cluster:",
        *_partition(site, choice),
        *_account(choice),
        *_gpus(choice),
        *_cpus_and_memory(site, choice),
        *_time(choice),
        *_modules(site, choice),
        *_network(site),
        "",
        *_container(site, choice),
    ]
    return "\n".join(lines) + "\n"


def _about(site: Site) -> Iterator[str]:
    config = site.config
    parts = [f"Slurm {site.slurm_version}"] if site.slurm_version else []
    parts += [f"cluster {config['ClusterName']}"] if "ClusterName" in config else []
    shown = [
        f"{key}={config[key]}"
        for key in (
            "SelectTypeParameters", "TaskPlugin", "PrologFlags", "EnforcePartLimits", "AccountingStorageEnforce",
            "ConstrainDevices", "ConstrainRAMSpace",
        )
        if key in config
    ]  # fmt: skip
    if parts or shown:
        yield from comment("; ".join(", ".join(each) for each in (parts, shown) if each), 0)
    for note in site.notes:
        yield from comment(f"not found out: {note}", 0)


def _word(name: str, value: str | None, why: str) -> list[str]:
    """A field whose value goes into an #SBATCH line; a comment where there is none or it cannot stand there."""
    if value is None:
        return entry(name, "null", why, written=False)
    if not _SBATCH_WORD.fullmatch(value):
        told = "letters, digits and _ . : , + @ / - only can stand in an #SBATCH line"
        return entry(name, scalar(value), f"{why}; {told}", written=False)
    return entry(name, scalar(value), why)


def _partition(site: Site, choice: Choice) -> Iterator[str]:
    yield from _word("partition", choice.partition.name, choice.partition_why)
    others = [one for one in open_partitions(site, choice) if one.name != choice.partition.name]
    told = [f"{one.name} ({_shown(one)})" for one in others[:_MOST_SHOWN]]
    told += [f"{len(others) - _MOST_SHOWN} more"] if len(others) > _MOST_SHOWN else []
    if told:
        yield from comment(f"other partitions: {', '.join(told)}", 2)
    closed = [f"{name}: {why}" for name, why in choice.closed.items() if name != choice.partition.name][
        :_MOST_SHOWN
    ]
    if closed:
        yield from comment(f"not for you: {'; '.join(closed)}", 2)
    doubtful = [f"{name}: {why}" for name, why in choice.doubtful.items() if name != choice.partition.name]
    if doubtful:
        yield from comment(f"may be closed to you: {'; '.join(doubtful[:_MOST_SHOWN])}", 2)
    if preempted(choice.partition, site):
        told_mode = choice.partition.settings["PreemptMode"]
        yield from comment(f"jobs of this partition may be preempted (PreemptMode={told_mode})", 2)
    nodes = choice.nodes.nodes
    most = choice.partition.settings.get("MaxNodes", "UNLIMITED")
    limit = f", a job may have {most}" if most != "UNLIMITED" else ""
    yield from comment(
        f"nodes: a job says how many; there {'is' if nodes == 1 else 'are'} {nodes} of this kind{limit}", 2
    )
    for demand in demands(choice.partition, choice.nodes):
        yield from comment(demand, 2)


def _shown(partition: slurm.Partition) -> str:
    nodes = gpu_nodes(partition)
    gpus = f"{nodes.nodes} x {nodes.gpus} {nodes.kind or 'GPUs'}" if nodes.gpus else "no GPUs"
    return ", ".join([gpus, *nodes.beside, *([nodes.down] if nodes.down else []), partition.limit])


def _account(choice: Choice) -> Iterator[str]:
    yield from _word("account", choice.account, choice.account_why)
    yield from _word("qos", choice.qos, choice.qos_why)


def _gpus(choice: Choice) -> Iterator[str]:
    nodes = choice.nodes
    if not nodes.gpus:
        told = "Slurm knows of no GPUs in this partition: only rehearsals (--rehearse) run there"
        yield from entry("gpus_per_node", "8", told, written=False)
        return
    shown = f"sinfo: {nodes.nodes} node{'s' * (nodes.nodes != 1)} with {nodes.gpus} x "
    shown += nodes.kind or "GPUs without a type"
    if nodes.beside:
        shown += f"; of these {', '.join(nodes.beside)}"
    if nodes.others:
        shown += f"; other nodes of the partition: {', '.join(nodes.others)}"
    if nodes.gpus > _MOST_GPUS:
        told = f"{shown}; more than the {_MOST_GPUS} that a job may name"
        yield from entry("gpus_per_node", "8", told, written=False)
    else:
        yield from entry("gpus_per_node", str(nodes.gpus), shown)
    yield from _gpu(nodes)


def _gpu(nodes: GpuNodes) -> Iterator[str]:
    """The type; beside one that render does not know, and where there is none, the field for its memory."""
    kind = nodes.kind
    gpu = find_gpu(kind)
    if kind:
        told = "the type as Slurm names it"
        told += (
            "; with it memory and FP8 are checked"
            if gpu is not None
            else "; launch.render does not know it: say gpu_memory_gb for the check of memory"
        )
        if is_amd(kind):
            told += "; a GPU of AMD: the images of this toolkit are for CUDA"
        if is_mig(kind):
            told += "; a slice of a GPU (MIG): training over several of them does not work with NCCL"
        if is_type(kind):
            yield from _word("gpu", kind, told)
        else:
            yield from entry("gpu", scalar(kind), f"{told}; launch.render takes no such name", written=False)
    else:
        told = f" (features of these nodes: {', '.join(nodes.features)})" if nodes.features else ""
        yield from entry(
            "gpu", "null", f"Slurm names no type{told}; say gpu_memory_gb for the check of memory", written=False
        )
    if gpu is None:
        slice_gb = MIG.search(kind)
        yield from entry("gpu_memory_gb", slice_gb[1] if slice_gb else "80", "", written=False)


def _cpus_and_memory(site: Site, choice: Choice) -> Iterator[str]:
    nodes = choice.nodes
    if nodes.cpus and nodes.gpus:
        cpus = _cpus(choice)
        told = "all CPUs of such a node" if cpus == nodes.cpus else f"MaxCPUsPerNode; a node has {nodes.cpus}"
        socket = socket_limit(choice.partition, nodes)
        why = socket or f"{told}, as Slurm counts them"
        yield from entry("cpus_per_node", str(cpus), why, written=not socket)
    most, why = memory(
        site.config, choice.partition.settings, mem_mb=nodes.mem_mb, gpus=nodes.gpus, cpus=_cpus(choice)
    )
    yield from entry("mem", most or '"0"', why, written=most is not None)


def _cpus(choice: Choice) -> int:
    """Of a node, as far as a job may have them."""
    cpus, most = choice.nodes.cpus, choice.partition.settings.get("MaxCPUsPerNode", "")
    return min(cpus, int(most)) if most.isdigit() and int(most) else cpus


def _time(choice: Choice) -> Iterator[str]:
    limit, why = time_limit(choice.partition)
    if limit is None:
        yield from entry("time", scalar("24:00:00"), why, written=False)
    else:
        yield from entry("time", scalar(limit), f"{why}; a QOS may allow less")


def _modules(site: Site, choice: Choice) -> Iterator[str]:
    written = choice.module is not None
    value = flow_list([choice.module]) if choice.module is not None else "[]"
    yield from entry("modules", value, choice.module_why, written=written)
    if not written and site.programs:
        yield from comment("if compute nodes lack that program, name a module here", 2)


def _network(site: Site) -> Iterator[str]:
    names, devices = site.network.interfaces, site.network.infiniband
    told = (
        f"this node has {', '.join(names[:_MOST_SHOWN])}; compute nodes may have others"
        if names
        else "none of the usual names seen here"
    )
    if devices:
        told += f"; InfiniBand or RoCE devices here: {', '.join(devices[:_MOST_SHOWN])}"
    fast = names[0] if names else "null"
    yield from entry(
        "network_interface", scalar(fast) if names else "null", f"found by each node itself; {told}", written=False
    )


def _container(site: Site, choice: Choice) -> Iterator[str]:
    written = [*_written_container(site, choice)]
    yield "container:" if any(not line.lstrip().startswith("#") for line in written) else "# container:"
    yield from written
    if choice.image_folder is not None:
        yield "rehearsal:"
        yield from entry(
            "image", scalar(f"{choice.image_folder}/{CPU_IMAGE}"), "singularity.build --stack cpu makes it"
        )


def _written_container(site: Site, choice: Choice) -> Iterator[str]:
    seen = f"; there now: {', '.join(site.images[:_MOST_SHOWN])}" if site.images else ""
    if choice.image_folder is not None:
        yield from entry("image", scalar(f"{choice.image_folder}/{IMAGE}"), f"must be visible on all nodes{seen}")
    else:
        yield from entry(
            "image", f"{IMAGE_FOLDER}/{IMAGE}", f"the default, below the project{seen}", written=False
        )
    told = "apptainer if it is there, else singularity" if choice.runtime == "auto" else "the module's program"
    yield from entry("runtime", choice.runtime, told, written=choice.runtime != "auto")
    yield from _scratch(site)
    yield from _proxies(site)
    yield from _caches(site)


def _scratch(site: Site) -> Iterator[str]:
    found = [one for one in site.local if not one.in_memory and not one.shared and one.kind and one.lasting]
    shown = ", ".join(f"{one.path} ({one.kind or 'unknown'})" for one in site.local)
    memory = any(one.path == "/tmp" and one.in_memory for one in site.local)
    better = next((one.path for one in found if one.path != "/tmp"), "/tmp")
    told = f"folder on a disk of the node for container.stage: true; on this node: {shown or 'nothing known'}"
    if memory:
        told += "; /tmp is memory here: an image staged there takes as much of it as it is large"
    yield from entry("stage_dir", scalar(better), told, written=False)


def _proxies(site: Site) -> Iterator[str]:
    if not site.proxies:
        return
    told = ", ".join(f"{name}={value}" for name, value in site.proxies.items())
    yield from comment(
        f"proxies of this shell: {told}. They reach the job from the shell that submits it; whether compute nodes "
        "have a way to the internet cannot be seen from here.",
        2,
    )


def _caches(site: Site) -> Iterator[str]:
    home = site.home
    if home is not None:
        yield from comment(f"home: {_size(home)}; `quota` may tell a smaller limit", 2)
    caches = {
        name: path for name, path in site.folders.items() if name.endswith(("_CACHEDIR", "_TMPDIR", "HF_HOME"))
    }
    small = home is not None and home.total is not None and home.total < _SMALL_HOME
    place = next(
        (site.folders[name] for name in ("SCRATCH", "WORK", "PROJECT", "DATA") if name in site.folders), None
    )
    if caches:
        yield from comment("caches: " + ", ".join(f"{name}={path}" for name, path in caches.items()), 2)
    if not any(name.endswith("_CACHEDIR") for name in caches) or "HF_HOME" not in caches:
        told = "it is small, and " if small else ""
        yield from comment(
            f"{told}caches of images and models lie in it unless APPTAINER_CACHEDIR (SINGULARITY_CACHEDIR) and "
            f"HF_HOME say otherwise{f', e.g. folders of {place}' if place else ''}",
            2,
        )


def _size(folder: Folder) -> str:
    kind = folder.kind or "unknown file system"
    if folder.total is None or folder.free is None:
        return f"{folder.path} on {kind}"
    return f"{folder.path} on {kind}, {folder.free // _GIB} of {folder.total // _GIB} GiB free"
