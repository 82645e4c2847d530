"""What the README tells of the model: its commands, its families, its options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from merge_jobs import Recorded

from converters.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("\n## The model\n") : README.index("\n## The image\n")]


def test_the_commands(unpacked: Recorded, tmp_path: Path) -> None:
    """A recorded checkpoint has the place of the run; the model that it began with is the one to compare with."""
    shutil.copytree(unpacked.run, tmp_path / "outputs" / "my-grpo" / "checkpoints")
    shutil.copytree(unpacked.hf, tmp_path / "Qwen3-4B")
    (block,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    told = []
    for command in block.splitlines():
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "self_attn.q_proj.weight" in told[0]
    assert "byte for byte" in told[1]
    assert len(told) == 3


def test_every_family_is_in_the_table() -> None:
    named = re.findall(r"`(\w+ForCausalLM)`", SECTION)
    assert sorted(named) == sorted(name for name in FAMILIES if name.endswith("ForCausalLM"))
    ends = re.findall(r"`\.\.\.(For\w+)`", SECTION)
    stems = {name.removesuffix("ForCausalLM") for name in named}
    assert {stem + end for stem in stems for end in (*ends, "ForCausalLM")} == set(FAMILIES)


def test_every_option_it_names_is_one() -> None:
    command = [sys.executable, "-m", "converters.merge", "--help"]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    options = {option.replace("_", "-") for option in re.findall(r"--[a-z][a-z_-]+", SECTION)}
    assert options
    assert [option for option in options if option not in known] == []
