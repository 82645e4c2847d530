"""A pipe that is named as a file is refused at once: without a writer it would be waited for without an end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["pipe", "link"])
@pytest.mark.parametrize("command", ["inspect", "sample", "validate"])
def test_a_pipe_is_refused(command: str, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    done = subprocess.run(
        [sys.executable, "-m", f"data_prep.{command}", "--json", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {name}: ")
    assert done.stderr.endswith("not a regular file\n") or done.stderr.endswith("not a regular file.\n")
    assert done.stderr.count("\n") == 1
    assert "not a regular file" in json.dumps(json.loads(done.stdout))
