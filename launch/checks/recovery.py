"""What a job that ends before its time has to go on from: time for a last checkpoint, and a checkpoint to find."""

import os
from collections.abc import Iterator
from pathlib import Path

from launch.checks.files import local_root
from launch.config import Job
from launch.engines.raw_values import raw_value
from launch.finding import Finding, error, warning
from launch.sizing.slurm_time import time_seconds

# More than this of the time limit goes to waiting for its end.
_MUCH = 1 / 3
# A step of a large model with long responses takes minutes, and writes one line.
_PLAUSIBLE_STEP_S = 300.0
# What the trainer goes on from (verl/utils/checkpoint/checkpoint_manager.py: load_contents is save_contents).
_NEEDED = ("model", "optimizer", "extra")
_SHARED_TYPES = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "pvfs2", "orangefs", "afs",
    "cifs", "smb3", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "9p", "virtiofs",
)  # fmt: skip
_MOUNTS = Path("/proc/mounts")


def check_recovery(job: Job, project: Path, *, rehearse: bool) -> Iterator[Finding]:
    """Checkpoint before the time limit, requeue, hung jobs, and the node's copy of the image.

    Args:
        rehearse: its checkpoints are in its run directory, and its steps are short.
    """
    yield from _before_end(job, rehearse=rehearse)
    if job.recovery.requeue:
        yield from _goes_on(job)
        if not rehearse:
            yield from _finds_checkpoint(job, project)
    if rehearse:
        return
    stalled = job.recovery.stalled_s
    if stalled is not None and stalled < _PLAUSIBLE_STEP_S:
        yield warning(
            "stalled",
            f"recovery.stalled_s={stalled:g}: a job without a new line in the trainer's log for that long is "
            f"ended, and one step, or loading a model, can take {_PLAUSIBLE_STEP_S:g} s",
            "set recovery.stalled_s=3600, or null: never",
        )
    yield from _stage_dir(job, project)


def _before_end(job: Job, *, rehearse: bool) -> Iterator[Finding]:
    margin, limit = job.checkpoint.before_end_s, time_seconds(job.cluster.time)
    field = "rehearsal.time" if rehearse else "cluster.time"
    told = f"checkpoint.before_end_s={margin:g} of {field}={job.cluster.time} ({limit} s)"
    if not limit or not margin:
        return
    if margin >= limit:
        yield error(
            "before-end",
            f"{told} leaves no time: the job would end before its first step",
            f"set a longer {field}, or checkpoint.before_end_s (default: 300) to what one step and a save take",
        )
    elif margin > _MUCH * limit and not rehearse:
        yield warning(
            "before-end",
            f"{told} keeps more than a third of the time free for the last checkpoint",
            "set it to what a step and a checkpoint take together",
        )


def _goes_on(job: Job) -> Iterator[Finding]:
    mode = raw_value(job.overrides, "trainer.resume_mode")
    if mode is not None and mode != "auto":
        why = "each start would begin at step 0" if mode == "disable" else "each start would go on from one place"
        yield error(
            "requeue-resume",
            f"overrides: trainer.resume_mode={mode} with recovery.requeue=true: {why} and repeat the same steps",
            "leave it out, or set recovery.requeue=false",
        )
    missing = [part for part in _NEEDED if job.checkpoint.contents and part not in job.checkpoint.contents]
    if missing:
        yield error(
            "requeue-resume",
            f"checkpoint.contents={job.checkpoint.contents} has no {', '.join(missing)}, and with "
            "recovery.requeue=true the job must go on from its checkpoints",
            "set checkpoint.contents=null, or recovery.requeue=false",
        )


def _finds_checkpoint(job: Job, project: Path) -> Iterator[Finding]:
    path = project / job.output_dir
    root = local_root(path)
    inside = not Path(job.output_dir).is_absolute() and path.resolve().is_relative_to(project.resolve())
    if root is not None and not inside:
        yield error(
            "requeue-checkpoint",
            f"checkpoint.dir: {path} is below {root} of the compute node, and a job that is started again may get "
            "another node",
            "choose a folder on a file system that all nodes share, or set recovery.requeue=false",
        )


def _stage_dir(job: Job, project: Path) -> Iterator[Finding]:
    """The copy is to take load off the shared file system."""
    if not job.container.stage:
        return
    folder = Path(job.container.stage_dir)
    shared = _shared_place(folder, project, project / job.output_dir)
    if shared is not None:
        yield warning(
            "stage-dir",
            f"container.stage_dir={folder} is {shared}: every node would write a copy of the image there",
            "name a folder on the nodes' own disks, as /tmp",
        )


def _shared_place(folder: Path, project: Path, output: Path) -> str | None:
    """Why `folder` is the same on all nodes, as far as this machine knows; None where nothing says so."""
    home = os.environ.get("HOME", "")
    for what, place in (("the project folder", project), ("checkpoint.dir", output), ("your home", Path(home))):
        if place.is_absolute() and place != Path("/") and folder.is_relative_to(place):
            return f"in {what}, {place}"
    kind = _file_system(folder)
    return f"on {kind}, a shared file system, on this machine" if kind in _SHARED_TYPES else None


def _file_system(folder: Path) -> str | None:
    """Type of the file system at `folder`, by the longest mount point that it is below."""
    try:
        lines = [line.split() for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return None
    # A space in a mount point is written \\040.
    mounts = [(words[1].replace("\\040", " "), words[2]) for words in lines if len(words) > 2]
    found = [(len(place), kind) for place, kind in mounts if folder.is_relative_to(place)]
    return max(found)[1] if found else None
