"""Folders of the host that the container must see."""

import os
from pathlib import Path

from launch.config import Job
from launch.toolkit import toolkit_folder


def _named_folders(job: Job, *, rehearse: bool, sample_data: bool) -> list[str]:
    """Folders that the job names, as it names them."""
    named = [job.output_dir]
    if not rehearse:
        named.append(job.model.path)
        if job.algorithm.estimator == "gae" and job.critic.path is not None:
            named.append(job.critic.path)
        if job.reward.kind == "server":
            named.append(job.reward.model)
            if job.reward.upstream_key_file is not None:
                named.append(job.reward.upstream_key_file)
    if not sample_data:
        named += [str(Path(file).parent) for file in (*job.data.train, *job.data.val)]
    if job.container.env_file is not None:
        named.append(job.container.env_file)
    if job.reward.function is not None:
        named.append(str(Path(job.reward.function).parent))
    if job.container.stage:
        named.append(job.container.stage_dir)  # launch/node.py removes the copy from inside
    return named


def bind_mounts(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> list[str]:
    """Project, toolkit (unless the image's own runs), what the job names outside of them, what links there point
    to, and `container.binds`.

    A folder below another one of the list is left out; the order is the one above, wherever the folders lie.
    """
    named = _named_folders(job, rehearse=rehearse, sample_data=sample_data)
    toolkit = [] if job.container.toolkit == "image" else [toolkit_folder(project)]
    folders = [project, *toolkit, *(Path(os.path.normpath(project / name)) for name in named)]
    # A link is followed inside the container, where its target must be, too.
    folders += [folder.resolve() for folder in folders]
    kept = [
        folder
        for folder in dict.fromkeys(folders)
        if not any(folder != other and folder.is_relative_to(other) for other in folders)
    ]
    return [*map(str, kept), *job.container.binds]
