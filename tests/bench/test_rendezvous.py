"""The bench of the rendezvous, on two simulated nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("rendezvous.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="simulated nodes have namespaces of their own, which needs root")
def test_two_simulated_nodes_meet() -> None:
    command = [sys.executable, BENCH, "--nodes", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)
    assert row["nodes"] == 2
    assert 0 < row["first_ray_s"] <= row["last_ray_s"] <= row["trainer_s"] <= row["end_s"]
