"""The real source of each verl version for the tests: installed, or fetched once into the checkout's own cache."""

import functools
import os
from pathlib import Path

from launch.config import Job, load_job
from launch.engines.command import TrainerCommand, trainer_command
from launch.engines.source import Source, find_source

VERSIONS = ("0.6.1", "0.8.0", "0.9.1")
CHECKOUT = Path(__file__).resolve().parents[2]
os.environ.setdefault("LAUNCH_CACHE", str(CHECKOUT / ".cache" / "verl"))


@functools.cache
def source(version: str) -> Source:
    return find_source(version)


def job(version: str = "0.9.1", *assignments: str, template: str = "grpo") -> Job:
    mode = "sync" if version == "0.6.1" else "one_step_off"
    return load_job(template, None, [f"engine.verl={version}", f"engine.mode={mode}", *assignments])


def command(of: Job, *overrides: str) -> TrainerCommand:
    """The job's command with more overrides behind its own."""
    made = trainer_command(of, Path("/project"), rehearse=False, sample_data=False)
    return TrainerCommand(made.module, made.config_name, (*made.overrides, *overrides))
