"""Files that must be there, and paths that the container program can bind."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from launch.binds import bind_mounts
from launch.config import Job
from launch.finding import Finding, error


def check_binds(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Paths that the container program cannot bind: it splits at ':' and ','."""
    chosen = set(job.container.binds)
    for folder in bind_mounts(job, project, rehearse=rehearse, sample_data=sample_data):
        if folder not in chosen and (":" in folder or "," in folder):
            yield error("bind-path", f"{folder!r}: a container bind cannot hold ':' or ','", "rename the folder")


def _named(section: BaseModel, field: str) -> bool:
    return field in section.model_fields_set


def check_files(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Files that must be there. A path that the user named and that is missing is an error; a default path that
    is missing is a warning, so that a first render shows the script."""
    wanted: list[tuple[str, str, bool]] = []
    if not sample_data:
        wanted += [("data.train", file, _named(job.data, "train")) for file in job.data.train]
        wanted += [("data.val", file, _named(job.data, "val")) for file in job.data.val]
    if job.reward.kind == "function":
        wanted.append(("reward.function", str(job.reward.function), True))
    if not rehearse:
        wanted.append(("model.path", job.model.path, _named(job.model, "path")))
        wanted.append(("container.image", job.container.image, _named(job.container, "image")))
        if job.reward.kind == "server":
            wanted.append(("reward.model", job.reward.model, _named(job.reward, "model")))
    for field, name, named in wanted:
        path = project / name
        if not path.exists():
            remedy = f"correct {field}; relative paths start from {project}"
            yield Finding("missing-file", "error" if named else "warning", f"{field}: no {path}", remedy)
    if rehearse and not (project / job.rehearsal.image).exists():
        yield Finding(
            "missing-image",
            "error" if _named(job.rehearsal, "image") else "warning",
            f"rehearsal.image: no {project / job.rehearsal.image}",
            "sbatch needs it; bash runs the rehearsal on this machine without it",
        )
