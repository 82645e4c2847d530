"""What a call of the client costs beside the HTTP request itself, against a server that answers at once."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import requests
from systems import HERE, Pair

from reward.client import compute_score, compute_score_async

_CALLS = 1000
_THREADS = 64


@contextmanager
def _instant_server() -> Iterator[str]:
    popen = subprocess.Popen([sys.executable, str(HERE / "instant_server.py")], stdout=subprocess.PIPE)
    try:
        assert popen.stdout is not None
        yield f"http://127.0.0.1:{int(popen.stdout.readline())}"
    finally:
        popen.terminate()
        popen.wait()


def _microseconds(call: Callable[[int], object], count: int = _CALLS) -> float:
    """Median of single calls, one after the other."""
    for number in range(50):
        call(number)
    times = [time.perf_counter()]
    for number in range(count):
        call(number)
        times.append(time.perf_counter())
    return 1e6 * statistics.median(after - before for before, after in pairwise(times))


def client_overhead(pair: Pair) -> dict[str, float]:
    """Microseconds a call: of requests alone, and of each form of the client."""
    prompt, response = pair
    with _instant_server() as url, tempfile.TemporaryDirectory() as log, requests.Session() as session:
        session.trust_env = False
        plain = {"server_url": url, "log_path": ""}
        logged = {"server_url": url, "log_path": os.path.join(log, "rewards.jsonl")}  # noqa: PTH118

        def threads() -> float:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda _: compute_score("b", response, prompt, **plain), range(_THREADS * 4)))
                started = time.perf_counter()
                list(pool.map(lambda _: compute_score("b", response, prompt, **plain), range(_CALLS * 2)))
                return 1e6 * (time.perf_counter() - started) / (_CALLS * 2)

        async def tasks() -> float:
            async def some(count: int) -> None:
                for _ in range(count):
                    await compute_score_async("b", response, prompt, **plain)

            await asyncio.gather(*(some(2) for _ in range(_THREADS)))
            started = time.perf_counter()
            await asyncio.gather(*(some(_CALLS * 2 // _THREADS) for _ in range(_THREADS)))
            return 1e6 * (time.perf_counter() - started) / (_CALLS * 2 // _THREADS * _THREADS)

        body = {"prompt": prompt, "response": response}
        return {
            "requests alone": _microseconds(lambda _: session.post(f"{url}/score", json=body, timeout=9).json()),
            "compute_score": _microseconds(lambda _: compute_score("b", response, prompt, **plain)),
            "compute_score, with its log": _microseconds(lambda _: compute_score("b", response, prompt, **logged)),
            f"compute_score in {_THREADS} threads": threads(),
            f"compute_score_async, {_THREADS} tasks": asyncio.run(tasks()),
        }
