"""Files that must be there, and folders that every node can use."""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from launch.binds import bind_mounts
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.toolkit import toolkit_folder

# Each node has its own, and what lies there goes with the job or the next reboot.
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local", "/localscratch", "/scratch/local", "/scratch-local")
_LOCAL_VARIABLES = ("TMPDIR", "SLURM_TMPDIR", "LOCAL_SCRATCH", "SCRATCH_LOCAL")
_FILES = ("data.train", "data.val", "reward.function", "reward.upstream_key_file")
_UNBOUND = re.compile(r"[:,\x00-\x1f\x7f]")
_LITTLE_SPACE = 20 * 2**30
_LONGEST_PATH = 4096 - 256  # PATH_MAX, less what the run adds below a folder


def _fields(job: Job, *, rehearse: bool, sample_data: bool) -> Iterator[tuple[str, str]]:
    """(field, path) of every path that the job's script uses."""
    yield "checkpoint.dir", job.output_dir
    if not sample_data:
        yield from (("data.train", name) for name in job.data.train)
        yield from (("data.val", name) for name in job.data.val)
    if job.reward.kind == "function" and job.reward.function is not None:
        yield "reward.function", job.reward.function
    if job.container.env_file is not None:
        yield "container.env_file", job.container.env_file
    if rehearse:
        yield "rehearsal.image", job.rehearsal.image
        return
    yield "model.path", job.model.path
    if job.algorithm.estimator == "gae" and job.critic.path is not None:
        yield "critic.path", job.critic.path
    yield "container.image", job.container.image
    if job.reward.kind == "server":
        yield "reward.model", job.reward.model
        if job.reward.upstream_key_file is not None:
            yield "reward.upstream_key_file", job.reward.upstream_key_file


def check_binds(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Paths that the container program cannot bind: it splits at ':' and ','; it prints a list, a line each."""
    chosen = set(job.container.binds)
    named = list(_fields(job, rehearse=rehearse, sample_data=sample_data))
    for folder in bind_mounts(job, project, rehearse=rehearse, sample_data=sample_data):
        if folder not in chosen and _UNBOUND.search(folder):
            fields = [field for field, name in named if _below(project / name, Path(folder))]
            whose = (
                "the project folder" if project == Path(folder) else ", ".join(dict.fromkeys(fields)) or "a link"
            )
            yield error(
                "bind-path",
                f"{whose}: {folder!r}: a container bind cannot hold ':', ',' or a control character",
                "rename the folder",
            )
    for bind in job.container.binds:
        source = bind.partition(":")[0]
        if not Path(source).exists():
            yield warning(
                "bind-source",
                f"container.binds: no {source} on this machine",
                "it must be on every compute node, or the job ends there before it starts",
            )


def _below(path: Path, folder: Path) -> bool:
    return folder in (path, *path.parents) or folder in (path.resolve(), *path.resolve().parents)


def _named(section: BaseModel, field: str) -> bool:
    return field in section.model_fields_set


def _is_named(job: Job, field: str) -> bool:
    section, name = field.split(".")
    return _named(getattr(job, section), name)


def check_files(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Files that must be there. A path that the user named and that is missing is an error; a default path that
    is missing is a warning, so that a first render shows the script."""
    fields = list(_fields(job, rehearse=rehearse, sample_data=sample_data))
    unexpanded = [finding for field, name in fields for finding in _check_written(field, name, project)]
    yield from unexpanded
    if unexpanded:
        return
    for field, name in fields:
        if field in ("checkpoint.dir", "container.env_file"):
            continue
        yield from _check_there(job, field, name, project)
    yield from _check_output(job, project, rehearse=rehearse)
    yield from _check_places(job, project, rehearse=rehearse)


def _check_written(field: str, name: str, project: Path) -> Iterator[Finding]:
    """`~` and `$HOME` are for a shell; YAML and this program take them as they stand."""
    expanded = os.path.expandvars(name)
    if name.startswith("~"):
        with contextlib.suppress(RuntimeError):  # no such user: a name that starts with ~
            expanded = str(Path(expanded).expanduser())
    if expanded != name and not (project / name).exists():
        yield error(
            "unexpanded-path",
            f"{field}={name} is taken as it stands, and there is no {project / name}",
            f"write {field}={expanded}",
        )
    elif len(os.fsencode(project / name)) > _LONGEST_PATH:
        yield error(
            "path-length",
            f"{field} has {len(os.fsencode(project / name))} bytes as an absolute path; Linux takes 4096 in all",
            "choose a shorter path",
        )


def _check_there(job: Job, field: str, name: str, project: Path) -> Iterator[Finding]:
    path = project / name
    if "://" in name and field.endswith(".image"):
        return  # reported by check_image
    if not path.exists():
        remedy = f"correct {field}; relative paths start from {project}"
        id_ = "missing-file"
        if field == "rehearsal.image":
            build = f"python3 -m singularity.build --stack cpu -o {shlex.quote(str(path))}"
            id_ = "missing-image"
            remedy = f"sbatch needs it (in the toolkit's folder: {build}); bash runs the rehearsal here without it"
        yield Finding(id_, "error" if _is_named(job, field) else "warning", f"{field}: no {path}", remedy)
    elif not os.access(path, os.R_OK):
        yield error("unreadable-file", f"{field}: {path} cannot be read by you", f"run: chmod u+r {path}")
    elif field in _FILES and not path.is_file():
        yield error("file-type", f"{field}: {path} is not a file", f"name a file in {field}")
    elif field in ("model.path", "critic.path", "reward.model") and not path.is_dir():
        yield error("file-type", f"{field}: {path} is not a directory", "name the model's Hugging Face directory")


def local_root(path: Path) -> str | None:
    """The node-local folder that `path` is in, by its usual name or a variable here; None for another."""
    roots = [*_LOCAL, *(os.environ.get(name, "") for name in _LOCAL_VARIABLES)]
    for place in (path, path.resolve()):
        for root in roots:
            if root.startswith("/") and root != "/" and place.is_relative_to(root):
                return root
    return None


def _check_output(job: Job, project: Path, *, rehearse: bool) -> Iterator[Finding]:
    """checkpoint.dir can be made and written, has space, and is nothing else's."""
    path = project / job.output_dir
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        yield error(
            "checkpoint-dir", f"checkpoint.dir: {there} is a file, so {path} cannot be made", "move it away"
        )
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield error("checkpoint-dir", f"checkpoint.dir: {there} cannot be written by you", "choose another folder")
        return
    if rehearse:
        return
    inputs = {"model.path": job.model.path, "critic.path": job.critic.path, "reward.model": job.reward.model}
    for field, name in inputs.items():
        if name is None:
            continue
        folder = project / name
        if folder.exists() and _below(path, folder):
            yield error(
                "checkpoint-dir",
                f"checkpoint.dir: {path} is {field} or below it, and the job would write into that model",
                "choose another folder",
            )
    latest = path / "checkpoints" / "latest_checkpointed_iteration.txt"
    if latest.is_file():
        yield warning(
            "resume",
            f"checkpoint.dir: {latest.parent} has checkpoints up to step "
            f"{latest.read_text(errors='replace').strip()[:20]}, and the job goes on from there",
            "for a new training choose another name or checkpoint.dir",
        )
    free = shutil.disk_usage(there).free
    if free < _LITTLE_SPACE:
        yield warning(
            "disk-space",
            f"checkpoint.dir: {there} has {free / 2**30:.1f} GiB free; one checkpoint of a model of 4 billion "
            f"parameters with its optimizer takes more than 50",
            "free some, or choose another folder",
        )


def _check_places(job: Job, project: Path, *, rehearse: bool) -> Iterator[Finding]:
    """Folders that all nodes, or the job tomorrow, cannot see."""
    path, nodes = project / job.output_dir, job.cluster.nodes
    root = local_root(path)
    if rehearse:
        return
    # A folder in the project lies where the project does, of which the warning below speaks; by a link or by `..`
    # a relative one may lie elsewhere.
    inside = not Path(job.output_dir).is_absolute() and path.resolve().is_relative_to(project.resolve())
    if root is not None and not inside:
        if nodes > 1:
            yield error(
                "checkpoint-dir",
                f"checkpoint.dir: {path} is below {root}, which each of the {nodes} nodes has for itself: the "
                f"shards of a checkpoint would be spread over them",
                "choose a folder on a file system that all nodes share",
            )
        else:
            yield warning(
                "checkpoint-dir",
                f"checkpoint.dir: {path} is below {root} of the compute node, and may be lost when the job ends",
                "choose a folder on a shared file system",
            )
    for what, folder in (("the project folder", project), ("the toolkit", toolkit_folder(project))):
        root = local_root(folder)
        if root is not None:
            yield warning(
                "local-folder",
                f"{what}, {folder}, is below {root}, which the compute nodes do not share with this machine",
                "work on a shared file system before sbatch",
            )
