"""Where the trainer finds its files: fixed paths for a job, paths in the run directory for a rehearsal."""

from dataclasses import dataclass
from pathlib import Path

from launch.config import Job
from launch.engines.hydra_text import Resolved, Value
from launch.toolkit import toolkit_folder


@dataclass(frozen=True)
class Inputs:
    """Values of path-like overrides. RUN_DIR is in the environment of every process of the job."""

    policy: Value
    policy_mcore: Value
    critic: Value
    train_files: Value
    val_files: Value
    reward_function: Value
    reward_function_name: str
    checkpoints: Value


def _in_run_dir(name: str) -> Resolved:
    return Resolved("${oc.env:RUN_DIR}/" + name)


def inputs_of(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Inputs:
    """Make every path absolute from `project`, the folder that relative paths of the job start from.

    In a rehearsal the policy, and with `sample_data` the data, are made in the run directory by the job.
    """
    if job.reward.kind == "server":
        function: Value = str(toolkit_folder(project) / "reward" / "client.py")
        if job.container.toolkit == "image":
            function = Resolved("${oc.env:LAUNCH_TOOLKIT}/reward/client.py")
        name = "compute_score"
    else:
        function = str(project / str(job.reward.function))
        name = job.reward.function_name
    train: Value = [str(project / file) for file in job.data.train]
    val: Value = [str(project / file) for file in job.data.val]
    if rehearse and sample_data:
        train = [_in_run_dir("rehearsal/data/train.parquet")]
        val = [_in_run_dir("rehearsal/data/test.parquet")]
    policy: Value = _in_run_dir("rehearsal/policy") if rehearse else str(project / job.model.path)
    return Inputs(
        policy=policy,
        policy_mcore=_in_run_dir("rehearsal/policy_mcore") if rehearse else None,
        critic=policy if rehearse or job.critic.path is None else str(project / job.critic.path),
        train_files=train,
        val_files=val,
        reward_function=function,
        reward_function_name=name,
        checkpoints=Resolved("${oc.env:CHECKPOINT_DIR}"),
    )
