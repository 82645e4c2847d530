"""The job model: one typed, validated description of a training job, and how it is read from YAML and --set."""

from launch.config.job import Job
from launch.config.load import load_job
from launch.config.problems import JobError

__all__ = ["Job", "JobError", "load_job"]
