"""jobs/README.md: its tables are those of the job files, its commands run in a folder as it describes one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launch.config import Job, load_job
from singularity.stack import load_stack

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "launch"))
from model_folders import QWEN3_4B, QWEN3_30B_A3B, QWEN3_REWARD, model_folder  # noqa: E402

README = (ROOT / "jobs" / "README.md").read_text(encoding="utf-8")
JOBS = {file.name: file for file in sorted((ROOT / "jobs").glob("*.yaml"))}
NAMES = sorted(JOBS)
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
# What needs a registry, a cluster or minutes: an image, a model, a training.
NOT_RUN = ("hf download", "sbatch ", "bash rehearse.sh", "python -m singularity.build")


def job_of(name: str) -> Job:
    return load_job(yaml.safe_load(JOBS[name].read_text())["template"], JOBS[name])


def rows(table: int) -> dict[str, list[str]]:
    """Cells after the first of each row, by the job file that it names."""
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)
    found = {}
    for line in tables[table].splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[re.search(r"`([^`]+)`", name)[1]] = cells
    return found


def test_the_tables_have_every_job():
    assert sorted(rows(0)) == NAMES
    assert sorted(rows(1)) == [name for name in NAMES if name != "demo.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_job_is_stands_in_the_table(name: str):
    job = job_of(name)
    cluster, precision = job.cluster, "fp8" if job.actor.fp8 else "bf16"
    assert rows(0)[name][1:] == [
        " ".join(filter(None, (f"{cluster.nodes} x {cluster.gpus_per_node}", cluster.gpu))),
        f"{job.engine.verl}, {job.engine.mode}",
        job.rollout.engine,
        f"{job.actor.strategy}, {precision}",
        cluster.time,
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "demo.yaml"])
def test_what_a_job_expects_stands_in_the_table(name: str):
    job = job_of(name)
    image, stack, model, reward, step = (cell.strip("`") for cell in rows(1)[name])
    assert (image, model, reward) == (job.container.image, job.model.path, job.reward.model)
    assert int(step) == job.data.train_batch_size
    assert load_stack(stack).verl == job.engine.verl
    assert job.container.stack == stack
    # Else the check would compare the stack's CUDA with the job's.
    assert job.container.cuda is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "demo.yaml"])
def test_the_stack_of_a_job_can_do_what_the_job_asks_for(name: str):
    job = job_of(name)
    can = load_stack(job.container.stack).can
    assert getattr(can, job.rollout.engine).able
    assert getattr(can, job.actor.strategy).able
    assert can.one_step_off.able or job.engine.mode == "sync"
    assert can.fp8_training.able or not job.actor.fp8


def test_all_but_the_demo_write_to_wandb():
    assert [name for name in NAMES if "wandb" not in job_of(name).logging.loggers] == ["demo.yaml"]


def test_each_job_is_checked_or_rehearsed_by_a_command():
    named = {word.removeprefix("jobs/") for command in COMMANDS for word in command.split() if "jobs/" in word}
    assert sorted(named) == NAMES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page says to put there: models in name and shape, images as unpacked and empty ones."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    model_folder(folder / "models/Qwen3-4B-Thinking-2507", QWEN3_4B)
    model_folder(folder / "models/Qwen3-30B-A3B", QWEN3_30B_A3B)
    model_folder(folder / "models/Unsafe-Reward-Qwen3-1.7B", QWEN3_REWARD)
    for name in ("verl-0.9.1", "verl-0.6.1", "verl-cpu"):
        (folder / f"images/{name}.sif/.singularity.d").mkdir(parents=True)
    return folder


@pytest.mark.engine
def test_the_commands_run_one_after_another(folder: Path):
    """`&&`: the shell of a reader would stop at the first that fails, too."""
    commands = [command for command in COMMANDS if not command.startswith(NOT_RUN)]
    assert len(commands) == 10
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"WANDB_API_KEY": "0" * 40}
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "error:" not in done.stderr, command
        assert "missing-file" not in done.stderr, command
        assert "data-style" not in done.stderr, command
    for script in ("rehearse.sh", "run_grpo.sh", "demo.sh"):
        assert (folder / script).read_text().startswith("#!/bin/bash")


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.startswith("python -m singularity.build")]
)
def test_the_images_are_those_of_stacks(command: str):
    """The definition is made; the test cluster builds one (tests/cluster/test_image.py)."""
    words = shlex.split(command)
    printed = subprocess.run(
        [sys.executable, *words[1:-2], "--print-def"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert printed.returncode == 0, printed.stderr
    stack = load_stack(words[words.index("--stack") + 1])
    assert f"verl=={stack.verl}" in printed.stdout or stack.device == "cpu"
    assert words[-1] in {job_of("grpo.yaml").container.image, job_of("grpo.yaml").rehearsal.image}
