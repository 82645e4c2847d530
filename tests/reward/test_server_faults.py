"""Servers that are stopped, killed, overrun or asked by the wrong client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from reward_servers import RunningServer, metric, running_server, status_of, wait_until

from reward.client import RewardOutageError, RewardReplyError, compute_score

TOKEN = "s3cret-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
QUEUE = 32
# A second or two of one core.
LONG = {"items": [{"prompt": "p", "response": "12 34 " * 600}] * (QUEUE // 2)}


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def guarded(model_dir: Path, token_file: Path) -> Iterator[RunningServer]:
    """A server with a token, a small queue and a limit of 200,000 bytes a request."""
    options = ("--token-file", str(token_file), "--queue", str(QUEUE), "--max-request-bytes", "200000")
    with running_server(model_dir, token_file.parent / "log", *options) as server:
        yield server


def in_flight(server: RunningServer, pool: ThreadPoolExecutor) -> Future[requests.Response]:
    """A request that a lane is scoring."""
    future = pool.submit(requests.post, f"{server.url}/score/batch", json=LONG, headers=AUTHORIZED, timeout=60)
    wait_until(lambda: metric(server, "reward_scoring_pairs") > 0, "pairs in a lane")
    assert not future.done()
    return future


def test_token(guarded: RunningServer, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "Bearer", TOKEN, f"Bearer {TOKEN}x", "Bearer é", f"Basic {TOKEN}"):
        headers = {} if value is None else {"Authorization": value.encode()}
        for path in ("/score", "/score/batch"):
            reply = requests.post(guarded.url + path, data=b"{", headers=headers, timeout=30)
            assert reply.status_code == 401
    # Readiness is asked by those who have no token.
    assert status_of(f"{guarded.url}/ready") == status_of(f"{guarded.url}/health") == 200

    wrong = tmp_path / "wrong"
    wrong.write_text("another-token")
    monkeypatch.setenv("REWARD_SERVER_URL", guarded.url)
    monkeypatch.setenv("REWARD_SERVER_TOKEN_FILE", str(wrong))
    with pytest.raises(RewardReplyError, match="HTTP 401"):
        compute_score("d", "r", "p")
    monkeypatch.setenv("REWARD_SERVER_TOKEN_FILE", str(token_file))
    assert compute_score("d", "r", "p")["status"] == 0
    assert TOKEN not in guarded.log.read_text()


def test_request_size_limit(guarded: RunningServer) -> None:
    def post(body: object) -> int:
        reply = requests.post(f"{guarded.url}/score", headers=AUTHORIZED, timeout=30, **body)  # type: ignore[arg-type]
        return reply.status_code

    assert post({"json": {"prompt": "p" * 100_000, "response": "r"}}) == 200
    assert post({"json": {"prompt": "p" * 200_000, "response": "r"}}) == 413
    # Without Content-Length the bytes themselves are counted.
    assert post({"data": iter([b'{"prompt": "', b"p" * 300_000, b'", "response": "r"}'])}) == 413


def test_full_queue_is_429_and_the_client_waits_for_room(guarded: RunningServer, token_file: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = in_flight(guarded, pool)
        second = pool.submit(
            requests.post, f"{guarded.url}/score/batch", json=LONG, headers=AUTHORIZED, timeout=60
        )
        wait_until(
            lambda: metric(guarded, "reward_queue_depth") + metric(guarded, "reward_scoring_pairs") > QUEUE // 2,
            "a full queue",
        )
        pair = {"prompt": "p", "response": "r"}
        refused = requests.post(f"{guarded.url}/score", json=pair, headers=AUTHORIZED, timeout=30)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        result = compute_score("d", "r", "p", server_url=guarded.url, server_token_file=token_file)
        assert result["attempts"] > 1
        assert first.result().status_code == second.result().status_code == 200


def test_sigterm_finishes_what_was_accepted(guarded: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = in_flight(guarded, pool)
        assert status_of(f"{guarded.url}/health") == 200
        assert guarded.terminate(60) == 0, guarded.log.read_text()
        assert len(future.result().json()["scores"]) == QUEUE // 2
    assert status_of(f"{guarded.url}/health") == 0
    assert "Traceback" not in guarded.log.read_text()


def test_sigterm_while_loading(model_dir: Path, tmp_path: Path) -> None:
    with running_server(model_dir, tmp_path / "log", ready=False) as server:
        wait_until(lambda: status_of(f"{server.url}/health") == 200, "/health")
        assert server.terminate() == 0, server.log.read_text()


def test_killed_in_a_batch(model_dir: Path, tmp_path: Path) -> None:
    with running_server(model_dir, tmp_path / "log") as server, ThreadPoolExecutor(2) as pool:
        future = in_flight(server, pool)
        waiting = pool.submit(compute_score, "d", "r", "p", server_url=server.url, deadline=2)
        wait_until(lambda: metric(server, "reward_queue_depth") == 1 or waiting.done(), "the call")
        server.process.kill()
        with pytest.raises(requests.ConnectionError):
            future.result()
        with pytest.raises(RewardOutageError, match="ConnectionError") as error:
            waiting.result()
    assert server.url in str(error.value)
    assert error.value.attempts > 1
