"""The canary: one known request by the trainer's way, on real servers and on ones that go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests
from reward_servers import ROOT, RunningServer, free_port, labelled, reply, scored, stub_server

from launch.supervisor.reward_watch import RewardWatch
from reward import canary


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REWARD_")]:
        monkeypatch.delenv(name)


def run(monkeypatch: pytest.MonkeyPatch, *words: str, **env: str) -> int:
    for name, value in env.items():
        monkeypatch.setenv(f"REWARD_{name}", value)
    return canary.main(words)


def test_the_real_server_and_a_wrong_token(
    guarded: RunningServer,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a process, as the supervisor runs it; then with a token that the server does not know."""
    other, log = tmp_path / "other", tmp_path / "reward_log"
    other.write_text("another")
    refused = labelled(guarded, "reward_requests_total")['endpoint="/score",status="401"']
    env = {
        "REWARD_SERVER_URL": guarded.url,
        "REWARD_SERVER_TOKEN_FILE": str(token_file),
        "REWARD_LOG_PATH": str(log),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "reward.canary", "--json"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["token"], told["clamped"]) == (True, True, False)
    assert told["score"] == pytest.approx(told["again"])
    assert all(0 < seconds < 30 for seconds in told["latency_s"])
    assert not log.exists()  # it is no sample of the training
    code = run(monkeypatch, SERVER_URL=guarded.url, SERVER_TOKEN_FILE=str(other), LOG_PATH=str(log))
    assert code == canary.EXIT_CODES["unauthorized"]
    assert str(other) in capsys.readouterr().err
    assert not log.exists()  # nor a failure of the training
    assert labelled(guarded, "reward_requests_total")['endpoint="/score",status="401"'] == refused + 2


def test_a_server_that_takes_any_token(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token of the job means nothing there: it is not the job's server."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    assert run(monkeypatch, SERVER_URL=server.url) == 0
    assert "score" in capsys.readouterr().out
    assert run(monkeypatch, SERVER_URL=server.url, SERVER_TOKEN_FILE=str(token)) == canary.EXIT_CODES["open"]
    assert "HTTP 200, not 401" in capsys.readouterr().err


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code = run(monkeypatch, "--json", SERVER_URL=url, DEADLINE="0.5", ON_OUTAGE="penalty")
    assert code == canary.EXIT_CODES["unreachable"]
    told = capsys.readouterr()
    assert json.loads(told.out) == {"ok": False, "kind": "unreachable", "exit_code": 4, "error": told.err[7:-1]}
    assert url in told.err
    assert "Connection refused" in told.err


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, {"choices": [{"text": "42"}]}),  # a language model's server
        reply(200, {"score": None}),
        reply(200, {"score": float("nan")}),
        (200, {}, b"<html>It works!</html>"),
        reply(404, {"detail": "Not Found"}),
        reply(500, {"detail": "NaN", "reason": "non_finite"}),
    ],
)
def test_no_answer_of_a_reward_model(
    answer: tuple[int, dict[str, str], bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stub_server(answer) as stub:
        assert run(monkeypatch, SERVER_URL=stub.url) == canary.EXIT_CODES["reply"]
        assert len(stub.requests) == 1
    error = capsys.readouterr().err
    assert stub.url in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("second", "code"), [(1.001, 0), (1.5, 7)])
def test_the_same_pair_has_the_same_score(second: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_server(scored(1.0), scored(second)) as stub:
        assert run(monkeypatch, SERVER_URL=stub.url) == code
    assert [set(sent) for sent in stub.requests] == [{"prompt", "response"}] * 2


def test_a_score_outside_of_the_limits_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stub_server(scored(900.0)) as stub:
        assert run(monkeypatch, SERVER_URL=stub.url, MAX_SCORE="30") == 0
    told = capsys.readouterr().out
    assert "score 30 in" in told
    assert "warning: the raw score 900 is outside" in told


@pytest.mark.parametrize(
    "env", [{}, {"SERVER_URL": "head:8000"}, {"SERVER_URL": "http://h:1", "SERVER_TOKEN_FILE": "/no/token"}]
)
def test_settings_that_are_missing_or_wrong(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, **env) == canary.EXIT_CODES["settings"]
    assert capsys.readouterr().err.startswith("error: REWARD_SERVER_")


def test_help_tells_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        canary.main(["--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(f"{code} {kind}" in told for kind, code in canary.EXIT_CODES.items())


def test_health_is_answered_while_a_long_batch_is_scored(server: RunningServer) -> None:
    """What the watcher of hangs relies on: the model has a thread of its own, and tokenizers and torch let go of
    the interpreter's lock."""
    long = "Natalia sold clips to 48 of her friends in April. " * 40
    items = [{"prompt": f"{number} {long}", "response": long} for number in range(80)]
    answers: list[int] = []
    load = threading.Thread(
        target=lambda: answers.append(
            requests.post(f"{server.url}/score/batch", json={"items": items}, timeout=120).status_code
        )
    )
    watch = RewardWatch(server.url, 20.0)
    load.start()
    times: list[float] = []
    started = time.monotonic()
    while load.is_alive():
        asked = time.monotonic()
        assert requests.get(f"{server.url}/health", timeout=30).status_code == 200
        times.append(time.monotonic() - asked)
        assert watch.turn()
    load.join()
    whole = time.monotonic() - started
    assert answers == [200]
    assert len(times) > 4
    assert max(times) < max(3, whole / 4)
