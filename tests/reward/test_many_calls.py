"""Ten thousand connections at once, single calls beside a batch, and memory over thousands of calls."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPResponse

import pytest
import requests
from other_processes import wait_until
from raw_http import connection, read_answer, request
from reward_servers import SERVER_QUEUE, RunningServer, labelled, metric

CONNECTIONS = 10_000
PAIR = {"prompt": "What is 6 * 7?", "response": "It is 42."}


@pytest.fixture
def many_files() -> Iterator[None]:
    """One file for each connection, here; the server raises its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > CONNECTIONS + 500, f"the hard limit of open files is {hard}; raise it (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answer(client: socket.socket) -> tuple[int, bool]:
    """Status, and whether the answer says when to come again."""
    with HTTPResponse(client) as response:
        response.begin()
        assert ("score" in json.load(response)) == (response.status == 200)
        return response.status, int(response.headers.get("Retry-After", 0)) >= 1


@pytest.mark.usefixtures("many_files")
def test_ten_thousand_connections_at_once(server: RunningServer) -> None:
    scored, refused = metric(server, "reward_scores_total"), labelled(server, "reward_requests_total")
    address, message = ("127.0.0.1", int(server.url.rsplit(":", 1)[1])), request(PAIR)
    # All are open before the first asks, and have asked before the first is read.
    with ExitStack() as clients:
        opened = [clients.enter_context(socket.create_connection(address, 300)) for _ in range(CONNECTIONS)]
        for client in opened:
            client.sendall(message)
        answers = Counter(map(answer, opened))
    assert set(answers) <= {(200, False), (429, True)}
    assert sum(answers.values()) == CONNECTIONS
    assert answers[200, False] >= SERVER_QUEUE
    assert metric(server, "reward_scores_total") - scored == answers[200, False]
    counted = labelled(server, "reward_requests_total")
    counted.subtract(refused)
    assert counted['endpoint="/score",status="200"'] == answers[200, False]
    assert counted['endpoint="/score",status="429"'] == answers[429, True]
    assert metric(server, "reward_queue_depth") == metric(server, "reward_scoring_pairs") == 0


def test_single_calls_beside_a_batch_of_two_thousand(server: RunningServer) -> None:
    items = [{"prompt": "p", "response": f"{n} is the answer. " * 12} for n in range(2000)]

    def batch() -> float:
        reply = requests.post(f"{server.url}/score/batch", json={"items": items}, timeout=300)
        assert len(reply.json()["scores"]) == 2000
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(batch)
        wait_until(lambda: metric(server, "reward_scoring_pairs") > 0, "a batch under way")
        answered = []
        while not done.done():
            started = time.monotonic()
            requests.post(f"{server.url}/score", json=PAIR, timeout=30).raise_for_status()
            answered.append((time.monotonic(), time.monotonic() - started))
        end = done.result()
    in_time = [seconds for at, seconds in answered if at < end]
    whole = end - answered[0][0] + answered[0][1]
    assert len(in_time) >= 5
    assert sorted(in_time)[len(in_time) // 2] < whole / 10


def test_memory_is_flat(server: RunningServer) -> None:
    async def client(calls: int, number: int) -> None:
        async with connection(server) as (reader, writer):
            for call in range(calls):
                text = f"{number} {call} " * (1 + (number * 7 + call) % 20)
                writer.write(request({"prompt": text, "response": text}))
                assert (await read_answer(reader)).status == 200

    async def calls(of_each: int) -> float:
        await asyncio.gather(*(client(of_each, number) for number in range(20)))
        return metric(server, "process_resident_memory_bytes")

    early = asyncio.run(calls(25))
    late = asyncio.run(calls(125))
    assert late - early < 16e6, f"{early / 1e6:.0f} MB after 500 calls, {late / 1e6:.0f} MB after 3,000"
