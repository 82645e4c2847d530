"""What the README says is so: its commands run, its tables agree with the code."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from doc_shell import sections

from launch.config import load_job
from launch.supervisor.verdict import EXIT_CODES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")
RUN = ("On a cluster", "The image", "The parts")  # sections that tests/docs/test_docs_commands.py runs
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_make_targets_exist(command: str):
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_job_file_is_one(tmp_path: Path):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "job.yaml"
    file.write_text(block)
    assert load_job("grpo", file).name == "my-grpo"


def test_every_command_of_the_readme_is_one_that_a_test_runs():
    known = (
        "make ",
        "python -m converters.",  # tests/converters/test_readme_merge.py
        "python -m data_prep.",  # tests/data_prep/test_readme_data.py
        "python -m reward.",  # tests/reward/test_readme_rewards.py
    )
    named = {line.partition("  #")[0].strip() for heading in RUN for line in sections(PAGE)[heading].splitlines()}
    assert [command for command in COMMANDS if not command.startswith(known) and command not in named] == []


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_modules_have_help_with_an_example(module: str):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "example" in done.stdout.lower()


def test_the_table_of_exit_codes_is_the_codes():
    rows = dict(re.findall(r"^\| (\d+) \| ([\w ]+?) \|", README, re.MULTILINE))
    assert {name: int(code) for code, name in rows.items() if name != "usage"} == EXIT_CODES


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
