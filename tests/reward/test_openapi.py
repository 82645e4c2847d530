"""Schemathesis, as its users run it, against the OpenAPI page of a real server, with and without a token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from reward_servers import AUTHORIZED, TOKEN, RunningServer

SECONDS = 600


def schemathesis(server: RunningServer, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{server.url}/openapi.json",
        "--checks=all",
        "--phases=coverage,fuzzing",
        "--max-examples=20",
        "--seed=1",
        "--no-color",
        "--request-timeout=30",
        *options,
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_without_a_token(server: RunningServer, tmp_path: Path) -> None:
    run = schemathesis(server, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "6 selected / 6 total" in run.stdout


def test_with_a_token(guarded: RunningServer, tmp_path: Path) -> None:
    run = schemathesis(
        guarded, tmp_path, "--header", f"Authorization: Bearer {TOKEN}", "--include-path-regex", "score"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 selected / 6 total" in run.stdout
    assert TOKEN not in guarded.log.read_text()


def page(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    return found


@pytest.mark.parametrize("path", ["/score", "/score/batch"])
def test_names_every_status_and_the_token(server: RunningServer, guarded: RunningServer, path: str) -> None:
    statuses = {"200", "408", "413", "422", "429", "500", "502", "503"}
    free, closed = page(server)["paths"][path]["post"], page(guarded)["paths"][path]["post"]
    assert free["responses"].keys() == statuses
    assert closed["responses"].keys() == {*statuses, "401"}
    assert "security" not in free
    assert closed["security"] == [{"bearer": []}]
    assert page(guarded)["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert "Retry-After" in free["responses"]["429"]["headers"]


def test_a_reply_has_the_documented_fields(guarded: RunningServer) -> None:
    reply = requests.post(
        f"{guarded.url}/score", json={"prompt": "p", "response": "r"}, headers=AUTHORIZED, timeout=30
    )
    schema = page(guarded)["components"]["schemas"]["ScoreReply"]
    assert reply.json().keys() == set(schema["required"]) == {"score", "truncated", "tokens", "dropped_tokens"}
