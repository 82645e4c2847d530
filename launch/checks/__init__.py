"""Rules on a job, checked before the queue. Each finding has an id, a message with the numbers, a remedy."""

from pathlib import Path

from launch.checks.batch import check_batch
from launch.checks.capability import check_capability
from launch.checks.data import check_data
from launch.checks.files import check_binds, check_files
from launch.checks.image import check_image
from launch.checks.memory import check_memory
from launch.checks.model import check_model
from launch.checks.names import check_names
from launch.checks.plan import check_gpus
from launch.checks.precision import check_precision
from launch.checks.recovery import check_recovery
from launch.checks.reward_function import check_reward_function
from launch.checks.reward_model import check_reward_model
from launch.checks.reward_node import check_reward_node
from launch.checks.reward_server import check_reward_server
from launch.checks.secrets import check_env_file, check_secrets, check_wandb
from launch.checks.slurm import check_slurm
from launch.checks.stack import check_stack
from launch.checks.text import check_text
from launch.config import Job
from launch.finding import Finding
from launch.image_stack import JobImage, job_image, job_stack


def check_job(
    job: Job, project: Path, *, rehearse: bool, sample_data: bool, image: JobImage | None = None
) -> list[Finding]:
    """Every broken rule of a job (of the shrunk job, for a rehearsal), errors first.

    `project` is the folder that relative paths start from. A rehearsal has models of its own, and with
    `sample_data` data of its own, so that the job's are not looked at. `image` is looked at where it is not given.
    """
    image = image or job_image(job, project, rehearse=rehearse)
    said = job_stack(job, image, rehearse=rehearse)
    findings = [
        *check_stack(job, image, said, rehearse=rehearse),
        *check_image(job, image, said),
        *check_capability(job, said, rehearse=rehearse),
        *check_gpus(job, rehearse=rehearse, project=project),
        *check_batch(job),
        *check_text(job),
        *check_secrets(job),
        *check_env_file(job, project),
        *check_slurm(job, project, rehearse=rehearse),
        *check_recovery(job, project, rehearse=rehearse),
        *check_names(job, project, rehearse=rehearse, sample_data=sample_data),
        *check_binds(job, project, rehearse=rehearse, sample_data=sample_data),
        *check_files(job, project, rehearse=rehearse, sample_data=sample_data),
        *check_reward_function(job, project),
        *check_reward_node(job, rehearse=rehearse),
        *check_reward_server(job),
    ]
    if not rehearse:
        findings += check_precision(job, said)
        findings += check_wandb(job, project)
        findings += check_model(job, project)
        findings += check_reward_model(job, project)
        findings += check_memory(job, project)
    if not sample_data:
        findings += check_data(job, project)
    return sorted(findings, key=lambda finding: finding.severity)
