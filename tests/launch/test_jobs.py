"""Every ready job in jobs/ renders."""

from pathlib import Path

import pytest
import yaml

from launch.checks import check_job
from launch.config import load_job
from launch.rehearse import rehearse
from launch.script import RenderRequest, render_script

JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_a_ready_job_renders(file: Path, tmp_path: Path):
    job = rehearse(load_job(yaml.safe_load(file.read_text())["template"], file))
    broken = {finding.id for finding in check_job(job, tmp_path, rehearse=True, sample_data=False)}
    assert broken <= {"missing-file", "missing-image"}  # the data is made by another command
    text = render_script(RenderRequest(job, tmp_path, "run.sh", rehearse=True))
    assert f"#SBATCH --job-name={job.name}\n" in text


def test_there_are_ready_jobs():
    assert JOBS
