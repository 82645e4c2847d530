"""Servers that are stopped, killed, overrun, or asked by clients that are wrong, slow or gone."""

from __future__ import annotations

import asyncio
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from other_processes import wait_until
from raw_http import closed, connection, read_answer, request
from reward_servers import (
    AUTHORIZED,
    GUARDED_QUEUE,
    TOKEN,
    RunningServer,
    labelled,
    metric,
    running_server,
    status_of,
)

from reward.client import RewardOutageError, RewardReplyError, compute_score

PAIR = {"prompt": "p", "response": "r"}
# More than a tenth of a second of one core each with the slow model.
LONG_PAIR = {"prompt": "p", "response": "12 34 " * 300}
LONG = {"items": [LONG_PAIR] * GUARDED_QUEUE}


def in_flight(server: RunningServer, pool: ThreadPoolExecutor, body: object = LONG) -> Future[requests.Response]:
    """A request that a lane is scoring."""
    future = pool.submit(requests.post, f"{server.url}/score/batch", json=body, headers=AUTHORIZED, timeout=300)
    wait_until(lambda: metric(server, "reward_scoring_pairs") > 0, "pairs in a lane")
    assert not future.done()
    return future


def test_token(guarded: RunningServer, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "Bearer", TOKEN, f"Bearer {TOKEN}x", "Bearer é", f"Basic {TOKEN}"):
        headers = {} if value is None else {"Authorization": value.encode()}
        for path in ("/score", "/score/batch"):
            reply = requests.post(guarded.url + path, data=b"{", headers=headers, timeout=30)
            assert reply.status_code == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
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
    errors = labelled(guarded, "reward_errors_total")
    assert errors['reason="too_large"'] >= 2


def test_the_client_waits_for_room_in_a_full_queue(guarded: RunningServer, token_file: Path) -> None:
    def ask(number: int) -> dict[str, float]:
        return compute_score("d", "r", "p", server_url=guarded.url, server_token_file=token_file)

    with ThreadPoolExecutor(16) as pool:
        first = in_flight(guarded, pool)
        refused = requests.post(f"{guarded.url}/score/batch", json=LONG, headers=AUTHORIZED, timeout=30)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        results = list(pool.map(ask, range(15)))
        assert all(result["status"] == 0 for result in results)
        assert max(result["attempts"] for result in results) > 1
        assert first.result().status_code == 200


def test_pairs_of_a_client_that_hangs_up_are_not_scored(guarded: RunningServer) -> None:
    async def hang_up() -> None:
        async with connection(guarded) as (_, writer):
            writer.write(request(LONG, "/score/batch", **AUTHORIZED))
            await asyncio.to_thread(
                wait_until, lambda: metric(guarded, "reward_scoring_pairs") > 0, "pairs in a lane"
            )

    scored, dropped = metric(guarded, "reward_scores_total"), metric(guarded, "reward_dropped_total")
    gone = labelled(guarded, "reward_requests_total")['endpoint="/score/batch",status="499"']
    asyncio.run(hang_up())
    wait_until(
        lambda: metric(guarded, "reward_scoring_pairs") + metric(guarded, "reward_queue_depth") == 0, "rest"
    )
    more_dropped = metric(guarded, "reward_dropped_total") - dropped
    assert more_dropped > GUARDED_QUEUE / 2
    assert metric(guarded, "reward_scores_total") - scored + more_dropped == GUARDED_QUEUE
    assert labelled(guarded, "reward_requests_total")['endpoint="/score/batch",status="499"'] == gone + 1


def test_slow_clients(guarded: RunningServer) -> None:
    """Heads and bodies that do not come, all at once; the server answers others meanwhile."""
    head = request(PAIR, **AUTHORIZED)[:60]

    async def nothing() -> bytes:
        async with connection(guarded) as (reader, _):
            return await closed(reader)

    async def drop_by_drop() -> bytes:
        async with connection(guarded) as (reader, writer):
            end = asyncio.create_task(closed(reader))
            for byte in head * 10:
                if end.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.1)
            assert end.done()
            return await end

    async def half_a_second_head() -> bytes:
        async with connection(guarded) as (reader, writer):
            writer.write(request(PAIR, **AUTHORIZED))
            assert (await read_answer(reader)).status == 200
            writer.write(head)
            return await closed(reader)

    async def huge_head() -> bytes:
        async with connection(guarded) as (reader, writer):
            writer.write(b"POST /score HTTP/1.1\r\nX: " + b"x" * 200_000)
            return await closed(reader)

    async def half_a_body() -> tuple[int, bytes]:
        async with connection(guarded) as (reader, writer):
            writer.write(request(PAIR, **AUTHORIZED)[:-5])
            answer = await read_answer(reader)
            return answer.status, await closed(reader)

    async def main() -> None:
        slow = asyncio.gather(nothing(), drop_by_drop(), half_a_second_head(), huge_head(), half_a_body())
        while not slow.done():
            assert time.monotonic() - started < 120
            async with connection(guarded) as (reader, writer):
                writer.write(request(PAIR, **AUTHORIZED))
                assert (await asyncio.wait_for(read_answer(reader), 60)).status == 200
            await asyncio.sleep(0.2)
        ends = await slow
        assert list(ends[:3]) == [b"", b"", b""]
        assert ends[3] == b"" or ends[3].startswith(b"HTTP/1.1 400")
        assert ends[4] == (408, b"")

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started > 1.5
    errors = labelled(guarded, "reward_errors_total")
    assert errors['reason="slow_head"'] >= 3
    assert errors['reason="slow_body"'] >= 1


def test_an_answer_before_the_body_has_come_can_be_read(guarded: RunningServer) -> None:
    """A refused body is read to its end (within limits), so that the answer is not lost with the connection."""

    async def send_for_ever(writer: asyncio.StreamWriter) -> None:
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            await writer.drain()

    async def main() -> None:
        async with connection(guarded) as (reader, writer):
            writer.write(request({"prompt": "p" * 300_000, "response": "r"}, **AUTHORIZED))
            assert (await read_answer(reader)).status == 413
            writer.write(request(PAIR, **AUTHORIZED))
            assert (await read_answer(reader)).status == 200
            # But not without end.
            writer.write(b"POST /score HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000\r\n\r\n")
            assert (await read_answer(reader)).status == 401
            with pytest.raises(ConnectionError):
                await send_for_ever(writer)

    asyncio.run(main())


def test_sigterm_finishes_what_was_accepted(slow_model_dir: Path, tmp_path: Path) -> None:
    with (
        running_server(slow_model_dir, tmp_path / "log", "--calibrate-seconds", "0", "--log-texts") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        future = in_flight(server, pool, {"items": [LONG_PAIR] * 8})
        assert status_of(f"{server.url}/health") == 200
        assert server.terminate(60) == 0, server.log.read_text()
        assert len(future.result().json()["scores"]) == 8
        assert status_of(f"{server.url}/health") == 0
        log = server.log.read_text()
        assert "Traceback" not in log
        assert log.count("prompt 'p', response '12 34 12") == 8  # --log-texts


def test_a_second_sigint_does_not_wait(slow_model_dir: Path, tmp_path: Path) -> None:
    with (
        running_server(slow_model_dir, tmp_path / "log", "--calibrate-seconds", "0") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        future = in_flight(server, pool, {"items": [LONG_PAIR] * 500})
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: status_of(f"{server.url}/health") == 0, "end of listening")
        assert not future.done()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0, server.log.read_text()  # not -6: torch was at work
        assert (future.result().status_code, future.result().json()["reason"]) == (503, "shutting_down")
        assert int(future.result().headers["Retry-After"]) >= 1


def test_sigterm_while_loading(model_dir: Path, tmp_path: Path) -> None:
    with running_server(model_dir, tmp_path / "log", ready=False) as server:
        wait_until(lambda: status_of(f"{server.url}/health") == 200, "/health")
        refused = requests.post(f"{server.url}/score", json=PAIR, timeout=30)
        if refused.status_code != 200:  # it may be ready by now
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["reason"] == "not_ready"
        assert server.terminate() == 0, server.log.read_text()


def test_killed_in_a_batch(slow_model_dir: Path, tmp_path: Path) -> None:
    with (
        running_server(
            slow_model_dir, tmp_path / "log", "--calibrate-seconds", "0", "--truncate", "error"
        ) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        refused = requests.post(f"{server.url}/score", json={"prompt": "p", "response": "1 " * 9000}, timeout=30)
        assert (refused.status_code, refused.json()["reason"]) == (422, "too_long")
        future = in_flight(server, pool)
        server.process.send_signal(signal.SIGSTOP)  # so that the call is on its way and not answered
        waiting = pool.submit(compute_score, "d", "r", "p", server_url=server.url, deadline=5)
        time.sleep(0.3)
        server.process.kill()
        with pytest.raises(requests.ConnectionError):
            future.result()
        with pytest.raises(RewardOutageError, match="no score within 5 s") as error:
            waiting.result()
    assert server.url in str(error.value)
    assert error.value.attempts > 1
