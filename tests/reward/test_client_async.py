"""compute_score_async: the answers, the errors and the bounds of compute_score, on an event loop."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import inspect
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from other_processes import wait_until
from reward_servers import ROOT, Reply, RunningServer, free_port, reply, scored, stub_server

from reward.client import (
    RewardConfigError,
    RewardError,
    RewardOutageError,
    RewardReplyError,
    compute_score,
    compute_score_async,
)

Score = Callable[..., dict[str, float]]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REWARD_")]:
        monkeypatch.delenv(name)


def awaited(*args: Any, **keywords: Any) -> dict[str, float]:
    """compute_score_async in a loop of its own, which must leave nothing open. Not for threads (filters)."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = asyncio.run(compute_score_async(*args, **keywords))
        gc.collect(1)  # what this call left; all of the process' objects take a tenth of a second
    assert [str(warning.message) for warning in told] == []
    return result


BOTH = pytest.mark.parametrize("score", [compute_score, awaited], ids=["sync", "async"])


def unreachable() -> str:
    return f"http://127.0.0.1:{free_port()}"


def both(script: Reply) -> object:
    """The result without its time, or the error, which must be the same of both forms after one request each."""
    answers: list[object] = []
    with stub_server(script) as stub:
        for score in (compute_score, awaited):
            try:
                got = score("d", "<think>a</think>b", "g", server_url=stub.url, on_outage="penalty")
                answers.append({**got, "latency_s": 0})
            except RewardError as error:
                answers.append((type(error), str(error).replace(stub.url, "URL")))
        assert stub.requests == [{"prompt": "g", "response": "b"}] * 2
    by_thread, by_loop = answers
    assert by_thread == by_loop
    return by_thread


@pytest.mark.parametrize(("raw", "score"), [(1.5, 1.5), (3, 3.0), (1e6, 30.0), (-1e6, -40.0)])
def test_score_of_a_reply(raw: float, score: float) -> None:
    assert both(reply(200, {"score": raw, "truncated": True})) == {
        "score": score,
        "raw_score": float(raw),
        "status": 0.0,
        "clamped": float(score != raw),
        "truncated": 1.0,
        "attempts": 1.0,
        "latency_s": 0,
    }


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422, 500, 501])
def test_refusal_is_an_error_and_not_repeated(status: int) -> None:
    """C12 b; not even the policy `penalty` makes it a score."""
    got = both(reply(status, {"detail": "because"}, Location="/elsewhere"))
    assert isinstance(got, tuple)
    assert got[0] is RewardReplyError
    said, _, remedy = got[1].partition("; ")
    assert said == f"reward server URL: HTTP {status}: because"
    expected = {401: "no token was sent: set REWARD_SERVER_TOKEN_FILE", 404: "REWARD_SERVER_URL must be http://"}
    assert remedy.startswith(expected.get(status, ""))
    assert bool(remedy) == (status in expected)


@pytest.fixture
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends with its first failure, and has a minute to meet it."""
    monkeypatch.setattr("reward.verl_client.retries._FIRST_BACKOFF_S", 120.0)


@BOTH
@pytest.mark.usefixtures("_one_attempt")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens_in_the_same_words(score: Score, host: str) -> None:
    with pytest.raises(RewardOutageError) as error:
        score("d", "r", "g", server_url=f"http://{host}:{free_port()}", deadline=60)
    assert error.value.cause == "Connection refused (does the server run there?)"


def read_request(client: socket.socket) -> None:
    """All of it: a socket that is closed with bytes unread resets the connection, and its answer may be lost."""
    with client.makefile("rb") as stream:
        length = 0
        while (line := stream.readline()) not in (b"", b"\r\n"):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        stream.read(length)


@contextmanager
def hanging_up(greeting: bytes) -> Iterator[str]:
    """The URL of a server that sends a greeting, reads a request and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, suppress(ConnectionError):  # the client may be the first to hang up
                    client.sendall(greeting)
                    read_request(client)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@BOTH
@pytest.mark.usefixtures("_one_attempt")
def test_connection_that_is_closed_unanswered(score: Score) -> None:
    """What either library says of it, without classes of sockets and pools."""
    with hanging_up(b"") as url, pytest.raises(RewardOutageError) as error:
        score("d", "r", "g", server_url=url, deadline=60)
    assert "closed connection" in error.value.cause or "disconnected" in error.value.cause
    assert "HTTPConnection" not in error.value.cause


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1",
        b"[]",
        b"{}",
        b"not json",
        b"\xff\xfe",
        b'{"scores": [1.0]}',
        b'{"score": null}',
        b'{"score": true}',
        b'{"score": "1"}',
        b'{"score": [1.0]}',
        b'{"score": NaN}',
        b'{"score": -Infinity}',
        b'{"score": 1e999}',
        b'{"score": 1' + b"0" * 400 + b"}",
        b'{"score": ' + b"1" * 5000 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
def test_reply_without_a_finite_score_is_an_error(body: bytes) -> None:
    """C12 e."""
    got = both((200, {}, body))
    assert isinstance(got, tuple)
    assert got[0] is RewardReplyError
    assert "URL" in got[1]
    assert len(got[1]) < 500


@BOTH
@pytest.mark.parametrize("statuses", [(429, 503), (502,), (504,)])
def test_busy_then_a_score(score: Score, statuses: tuple[int, ...]) -> None:
    """C12 a."""
    with stub_server(*(reply(status) for status in statuses), scored(4.0)) as stub:
        result = score("d", "r", "g", server_url=stub.url)
    expected = len(statuses) + 1
    assert (result["score"], result["attempts"], len(stub.requests)) == (4.0, expected, expected)


@BOTH
def test_retry_after_is_honoured(score: Score) -> None:
    with stub_server(reply(429, None, Retry_After="1"), scored(1.0)) as stub:
        assert 1 <= score("d", "r", "g", server_url=stub.url)["latency_s"] < 30


@BOTH
def test_outage_policies(score: Score) -> None:
    url = unreachable()
    with pytest.raises(RewardOutageError, match=rf"{url} gave no score within 2 s") as error:
        score("d", "r", "g", server_url=url, deadline=2)
    assert error.value.attempts >= 2
    result = score("d", "r", "g", server_url=url, deadline=0.3, on_outage="penalty")
    assert (result["score"], result["status"]) == (-40, 2)
    with pytest.raises(RewardOutageError, match=r"within 0\.7 s"):
        score("d", "r", "g", server_url=url, deadline=60, on_outage="wait:0.7")


@BOTH
def test_server_that_comes_back(score: Score) -> None:
    port = free_port()
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        timer = threading.Timer(0.3, _answer_late, [late, port])
        timer.start()
        result = score("d", "r", "g", server_url=f"http://127.0.0.1:{port}", deadline=60)
        timer.join()
    assert result["score"] == 2.0
    assert result["attempts"] > 1


def _answer_late(late: socket.socket, port: int) -> None:
    """Listen at last; the first client gets half a reply, the second one a score."""
    late.bind(("127.0.0.1", port))
    late.listen()
    first, _ = late.accept()
    read_request(first)
    first.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"sco')
    first.close()
    second, _ = late.accept()
    read_request(second)
    body = b'{"score": 2.0}'
    second.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    second.close()


@BOTH
def test_what_speaks_no_http_is_an_outage(score: Score) -> None:
    with hanging_up(b"220 mail.example.org ESMTP\r\n") as url, pytest.raises(RewardOutageError):
        score("d", "r", "g", server_url=url, deadline=0.5)


@BOTH
def test_hanging_server(score: Score) -> None:
    with stub_server(600.0) as stub:
        started = time.monotonic()
        with pytest.raises(RewardOutageError, match=r"last cause: no answer within 0\.\d+ s"):
            score("d", "r", "g", server_url=stub.url, timeout=0.2, deadline=2)
        assert time.monotonic() - started < 60
        wait_until(lambda: len(stub.requests) >= 2, "second request")


@BOTH
def test_proxy_of_the_environment_is_not_used(score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, unreachable())
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with stub_server(scored(1.0)) as stub:
        assert score("d", "r", "g", server_url=stub.url, deadline=20)["score"] == 1.0


@BOTH
def test_rotated_token_is_read_again(score: Score, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with stub_server(scored(1.0), reply(401), scored(2.0), reply(401)) as stub:
        keywords = {"server_url": stub.url, "server_token_file": str(token)}
        score("d", "r", "g", **keywords)
        token.write_text("second")
        assert score("d", "r", "g", **keywords)["score"] == 2.0
        with pytest.raises(RewardReplyError, match="HTTP 401"):
            score("d", "r", "g", **keywords)
    words = ("first", "first", "second", "second")
    assert [headers["Authorization"] for headers in stub.headers] == [f"Bearer {word}" for word in words]


@BOTH
def test_log_and_mark(score: Score, tmp_path: Path) -> None:
    with stub_server(scored(50.0), reply(422, {"detail": "no"})) as stub:
        keywords = {"server_url": stub.url, "log_path": str(tmp_path)}
        score("math", "<think>r</think>72", "q", **keywords)
        with pytest.raises(RewardReplyError):
            score("math", "r", "q", **keywords)
        score("code", "<think>", "q", **keywords)
    with pytest.raises(RewardConfigError):
        score("math", "r", "q", log_path=str(tmp_path), server_url="nowhere")
    (file,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["status"], line["score"]) for line in lines] == [("ok", 30), ("error", None), ("penalty", -40)]
    (mark,) = tmp_path.glob("failure-*.json")
    assert "HTTP 422" in json.loads(mark.read_text())["error"]


@BOTH
def test_an_error_that_no_one_foresaw_is_no_score(score: Score, tmp_path: Path) -> None:
    """A bug must not pass as a sample that failed (0.9.1's V1 trainer drops those and goes on)."""

    class Hostile:
        def tolist(self) -> object:
            raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError):
        score("d", "r", Hostile(), server_url="http://127.0.0.1:1", log_path=str(tmp_path), on_outage="penalty")
    (mark,) = tmp_path.glob("failure-*.json")
    assert "ZeroDivisionError: inside" in json.loads(mark.read_text())["error"]


def gathered(calls: list[Awaitable[dict[str, float]]]) -> list[dict[str, float]]:
    async def all_calls() -> list[dict[str, float]]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(all_calls())


def test_calls_at_once_stay_in_their_bound() -> None:
    """C12 d: neither the server nor the file descriptors see more than the bound."""
    with stub_server(scored(1.0), crowd=16) as stub:
        results = gathered(
            [compute_score_async("d", "r", str(n), server_url=stub.url, max_in_flight=16) for n in range(800)]
        )
    assert [result["score"] for result in results] == [1.0] * 800
    assert [result["attempts"] for result in results] == [1.0] * 800
    assert len(stub.requests) == 800
    assert stub.peak == 16


def by_threads(count: int, **keywords: Any) -> list[object]:
    """The results or errors of calls from as many threads."""
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(compute_score, "d", "r", "g", **keywords) for _ in range(count)]
        return [call.exception() or call.result() for call in calls]


def by_loop(count: int, **keywords: Any) -> list[object]:
    """The results or errors of calls awaited together."""

    async def all_calls() -> list[object]:
        calls = [compute_score_async("d", "r", "g", **keywords) for _ in range(count)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(all_calls())


@pytest.mark.parametrize("together", [by_threads, by_loop])
def test_queue_before_a_silent_server_ends_with_the_deadline(together: Callable[..., list[object]]) -> None:
    """Not after a deadline for each turn of the queue, which would be 24 s."""
    with stub_server(600.0) as stub:
        started = time.monotonic()
        results = together(12, server_url=stub.url, max_in_flight=1, timeout=1, deadline=2)
        assert time.monotonic() - started < 20
    assert [type(result) for result in results] == [RewardOutageError] * 12


@pytest.mark.parametrize("together", [by_threads, by_loop])
def test_queue_that_moves_is_no_outage(together: Callable[..., list[object]]) -> None:
    with stub_server(0.25) as stub:
        results = together(12, server_url=stub.url, max_in_flight=1, deadline=2)
    assert [type(result) for result in results] == [dict] * 12


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_are_kept_alive_and_closed_with_the_loop() -> None:
    """Both ends of each connection are in this process; so a second connection would be two files more."""
    with stub_server(scored(1.0)) as stub:

        async def in_turn() -> tuple[int, int]:
            counts = []
            for _ in range(20):
                await compute_score_async("d", "r", "g", server_url=stub.url)
                counts.append(open_files())
            return counts[0], counts[-1]

        before = open_files()
        first, last = asyncio.run(in_turn())
        assert before < last <= first
    assert open_files() <= before


def test_loops_in_several_threads() -> None:
    with stub_server(scored(1.0)) as stub:
        results: list[dict[str, float]] = []
        threads = [
            threading.Thread(
                target=lambda: results.extend(gathered([compute_score_async("d", "r", "g", server_url=stub.url)]))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [result["score"] for result in results] == [1.0] * 8


def test_cancelled_call_is_in_the_log_and_frees_its_slot(tmp_path: Path) -> None:
    """verl's rate_limited manager (limited.py, 0.9.1) cancels after its own timeout and makes that 0.0."""
    with stub_server(600.0, scored(5.0)) as stub:
        keywords = {"server_url": stub.url, "log_path": str(tmp_path), "max_in_flight": 1}

        async def given_up() -> dict[str, float]:
            call = asyncio.create_task(compute_score_async("d", "r", "g", **keywords))
            await asyncio.to_thread(wait_until, lambda: bool(stub.requests), "request")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call, 0)
            return await compute_score_async("d", "r", "g", **keywords)

        assert asyncio.run(given_up())["score"] == 5.0
    (file,) = tmp_path.glob("*.jsonl")
    assert [json.loads(line)["status"] for line in file.read_text().splitlines()] == ["cancelled", "ok"]


def test_log_that_hangs_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the turn in a shared log: the call waits for it, the others go on."""
    monkeypatch.setattr("reward.verl_client.reward_log._LONGEST_TURN_S", 60.0)
    path = tmp_path / "all.jsonl"
    path.touch()

    async def beside(url: str) -> list[str]:
        ended = []

        async def call(name: str, **keywords: object) -> None:
            await compute_score_async("d", "r", "g", server_url=url, **keywords)
            ended.append(name)

        with path.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            logged = asyncio.create_task(call("logged", log_path=str(path)))
            for _ in range(10):
                await call("not logged")
            fcntl.flock(other, fcntl.LOCK_UN)
            await logged
        return ended

    with stub_server(scored(1.0)) as stub:
        assert asyncio.run(beside(stub.url)) == ["not logged"] * 10 + ["logged"]
    assert len(path.read_text().splitlines()) == 1


def test_scores_of_the_real_server(server: RunningServer) -> None:
    limits = {"min_score": -1e9, "max_score": 1e9, "server_url": server.url}
    by_loop = gathered([compute_score_async("d", f"{n} " * n, "q", **limits) for n in range(64)])
    by_thread = [compute_score("d", f"{n} " * n, "q", **limits) for n in range(64)]
    for one, other in zip(by_loop, by_thread, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert one.keys() == other.keys()
        assert all(type(value) is float and math.isfinite(value) for value in one.values())


def test_verl_sees_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(compute_score_async)
    assert inspect.signature(compute_score_async).parameters == inspect.signature(compute_score).parameters


def test_without_aiohttp_only_the_async_form_is_missing() -> None:
    script = (
        "import asyncio, sys; sys.modules['aiohttp'] = None\n"
        "from reward.client import RewardConfigError, RewardOutageError, compute_score, compute_score_async\n"
        "keywords = {'server_url': 'http://127.0.0.1:9', 'deadline': 0.1}\n"
        "try: compute_score('d', 'r', 'g', **keywords)\n"
        "except RewardOutageError: pass\n"
        "try: asyncio.run(compute_score_async('d', 'r', 'g', **keywords))\n"
        "except RewardConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert "install aiohttp, or name compute_score" in done.stdout, done.stderr
