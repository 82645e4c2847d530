"""python -m reward.client: one pair by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reward_servers import ROOT, free_port, reply, scored, stub_server

from reward.verl_client import command
from reward.verl_client.settings import ClientSettings

PAIR = ("--prompt", "What is 6 * 7?", "--response", "<think>6 * 7</think>42")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REWARD_")]:
        monkeypatch.delenv(name)


def test_as_a_process_without_a_line_in_the_log(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    with stub_server(scored(41.5)) as stub:
        settings = {"REWARD_SERVER_URL": stub.url, "REWARD_SERVER_TOKEN_FILE": str(token)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "reward.client", *PAIR, "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "REWARD_LOG_PATH": str(tmp_path / "log"), **settings},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")
    got = json.loads(done.stdout)
    assert (got["score"], got["raw_score"], got["clamped"]) == (30.0, 41.5, 1.0)
    assert stub.requests == [{"prompt": "What is 6 * 7?", "response": "42"}]
    assert stub.headers[0]["Authorization"] == "Bearer s3cret"
    assert not (tmp_path / "log").exists()


def test_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(scored(41.5), reply(200, {"score": 1.5, "truncated": True})) as stub:
        assert command.main([*PAIR, "--url", stub.url]) == 0
        assert capsys.readouterr().out.startswith("score 30 (limited; the model gave 41.5) in 0.")
        assert command.main([*PAIR, "--url", stub.url]) == 0
        assert capsys.readouterr().out.endswith(" s; the pair was too long and was cut\n")
        assert command.main(["--prompt", "q", "--response", "<think>4", "--url", stub.url]) == 0
        assert capsys.readouterr().out.startswith("score -40: the minimum")


@pytest.mark.parametrize("kind", ["no server", "no token", "a path", "no URL"])
def test_errors_are_one_line_with_a_remedy(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(reply(401, {"detail": "who?"}) if kind == "no token" else reply(404)) as stub:
        url = f"http://127.0.0.1:{free_port()}" if kind == "no server" else stub.url
        words = [] if kind == "no URL" else ["--url", url]
        assert command.main([*PAIR, *words, "--deadline", "0.3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    expected = {
        "no server": "does the server run there?",
        "no token": "HTTP 401: who?; no token was sent: set REWARD_SERVER_TOKEN_FILE",
        "a path": "REWARD_SERVER_URL must be http://HOST:PORT",
        "no URL": "REWARD_SERVER_URL is not set",
    }
    assert expected[kind] in error


def test_help_has_an_example_and_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "python -m reward.client --url http" in shown
    assert "from reward.client import compute_score" in shown
    names = {"url": "server_url", "token_file": "server_token_file"}
    for field in ClientSettings.__dataclass_fields__:
        name = names.get(field, field)
        assert f" REWARD_{name.upper()} " in shown
