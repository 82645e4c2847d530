"""What the README tells of rewards: its server command, its replies, its statistics."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from other_processes import wait_until
from reward_servers import ROOT, free_port, status_of

from reward.client import compute_score

README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_command(module: str) -> list[str]:
    """The README's command of that module, its interpreter being this one."""
    (line,) = re.findall(rf"^python -m {re.escape(module)} .*$", README, re.MULTILINE)
    return [sys.executable, *shlex.split(line)[1:]]


def test_from_the_server_to_the_statistics(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/my-reward-model").symlink_to(model_dir)
    port = str(free_port())
    command = [port if word == "8000" else word for word in readme_command("reward.server")]
    assert port in command
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    url = f"http://127.0.0.1:{port}"
    stats = readme_command("reward.stats")
    (log,) = [word for word in stats if word.startswith("outputs/")]
    with (tmp_path / "server.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or status_of(f"{url}/ready") == 200, "server")
        (told,) = re.findall(r"^POST /score .*->\s+(\{.*\})$", README, re.MULTILINE)
        reply = requests.post(f"{url}/score", json={"prompt": "What is 2 + 2?", "response": "4"}, timeout=30)
        assert reply.json().keys() == json.loads(told).keys()
        (example,) = re.findall(r"```python\n(from reward\.client .*?)```", README, re.DOTALL)
        assert "127.0.0.1:8000" in example
        exec(example.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), {})
        for answer in ("4", "<think>two and two</think>5", "no idea"):
            compute_score("gsm8k", answer, "What is 2 + 2?", server_url=url, log_path=str(tmp_path / log))
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    done = subprocess.run(stats, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gsm8k" in done.stdout
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")
