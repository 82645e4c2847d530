"""Rules on a job, checked before the queue. Each finding has an id, a message with the numbers, a remedy."""

from pathlib import Path

from launch.checks.batch import check_batch
from launch.checks.capability import check_capability
from launch.checks.files import check_binds, check_files
from launch.checks.plan import check_gpus
from launch.checks.precision import check_precision
from launch.checks.reward_function import check_reward_function
from launch.checks.text import check_text
from launch.config import Job
from launch.finding import Finding


def check_job(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> list[Finding]:
    """Every broken rule of a job (of the shrunk job, for a rehearsal), errors first."""
    findings = [
        *check_capability(job, rehearse=rehearse),
        *check_gpus(job, rehearse=rehearse),
        *check_batch(job),
        *([] if rehearse else check_precision(job)),
        *check_text(job),
        *check_binds(job, project, rehearse=rehearse, sample_data=sample_data),
        *check_reward_function(job, project),
        *check_files(job, project, rehearse=rehearse, sample_data=sample_data),
    ]
    return sorted(findings, key=lambda finding: finding.severity)
