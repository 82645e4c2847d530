"""The parts of the benchmark that could tell a wrong number."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from closed_loop import answer_all, measure, request_bytes
from cpu_share import cpu_times, share_of_others
from memory_curve import MemoryCurve
from speed import LIMIT, Measured
from speed_report import as_json, check_targets, draw, noise, quantile, table
from systems import SYSTEMS, request_body

SPIN = [sys.executable, "-c", "while True: pass"]


class Slow(asyncio.Protocol):
    """Answers each request after 10 ms; the third request of a connection with 503."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.count = transport, 0

    def data_received(self, data: bytes) -> None:
        self.count += 1
        asyncio.get_running_loop().call_later(0.01, self.answer, 503 if self.count == 3 else 200)

    def answer(self, status: int) -> None:
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % status)  # type: ignore[attr-defined]


def test_the_load_counts_what_ends_in_its_window() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Slow, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        request = request_bytes("/score", b"{}")
        load = await measure(port, 4, 0.5, [request], warm_up=0.2)
        assert load.refused == 4  # one a connection
        assert 4 * 0.5 / 0.01 * 0.3 < len(load.latencies) <= 4 * 0.5 / 0.01
        assert load.rate == len(load.latencies) / 0.5
        assert 0.01 <= min(load.latencies) < 0.2
        told: list[int] = []
        statuses = await answer_all(port, 2, iter([request] * 20), told.append)
        assert statuses == {200: 18, 503: 2}
        assert sorted(told) == list(range(1, 21))
        server.close()

    asyncio.run(run())


def test_quantiles() -> None:
    values = [float(value) for value in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values[:1], 0.99)) == (50, 99, 0)


def made_up(ours: float = 90.0, noise: float = 1.0) -> dict[str, dict[int, Measured]]:
    def cell(rate: float) -> Measured:
        return Measured([rate, rate * noise, rate], [1 / rate] * 10, [0.01, 0.02, 0.03])

    rates = {"ours": ours, "seed-like": 40.0, "infinity": 25.0, "vllm": 85.0}
    results = {name: {n: cell(rate) for n in (64, 8, 1)} for name, rate in rates.items()}
    return {**results, LIMIT: {0: Measured([45.0, 45.0 * noise, 45.0], [], [0.0, 0.0, 0.0])}}


def test_targets_are_ratios_within_a_round() -> None:
    assert [reached for _, reached in check_targets(made_up(noise=0.1))] == [True] * 5
    missed = [line for line, reached in check_targets(made_up(ours=50.0)) if not reached]
    assert [line.split(":")[0] for line in missed] == [
        "MISSED   ours / seed-like at 64",
        "MISSED   ours / vllm at 64",
    ]
    partly = {name: cells for name, cells in made_up().items() if name in ("ours", "vllm")}
    assert len(check_targets(partly)) == 1


def test_report(tmp_path: Path) -> None:
    results = made_up()
    assert table(results).count("vllm") == 3
    assert json.loads(json.dumps(as_json(results)))["ours"]["64"]["pairs_per_s"] == [90.0, 90.0, 90.0]
    draw(results, tmp_path / "a.png", "made up")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_noise_is_told() -> None:
    results = made_up()
    assert noise(results) == "CPU used by others: median 2.0 %, most 3.0 % of the cores"
    for cells in results.values():
        for cell in cells.values():
            cell.others = [0.3]
    assert noise(results).endswith("measure again on a quiet machine")


def test_each_system_is_asked_for_the_same_pair() -> None:
    for system in SYSTEMS.values():
        body = request_body(system, ("a question", "its answer")).decode()
        assert "a question" in body
        assert "its answer" in body
    assert SYSTEMS["vllm"].score({"data": [{"score": -0.5}]}) == -0.5
    assert SYSTEMS["infinity"].score({"results": [{"relevance_score": 2}]}) == 2


def test_the_share_of_others_knows_our_own() -> None:
    (core,) = cores = sorted(os.sched_getaffinity(0))[:1]
    spinning = subprocess.Popen(["taskset", "-c", str(core), *SPIN], start_new_session=True)
    try:
        before = cpu_times(cores, []), cpu_times(cores, [spinning.pid])
        time.sleep(1.0)
        after = cpu_times(cores, []), cpu_times(cores, [spinning.pid])
    finally:
        spinning.kill()
        spinning.wait()
    stranger, own = (share_of_others(*pair, cores) for pair in zip(before, after, strict=True))
    spun = stranger - own
    assert 0.05 < spun <= 1.1
    assert math.isclose(spun, after[1].own - before[1].own, abs_tol=0.15)


@pytest.mark.parametrize(
    ("memory", "growth"), [([300, 350, 350, 351, 352, 352], 2), ([300, 310, 320, 330, 340, 350], 40)]
)
def test_growth_counts_from_a_fifth_on(memory: list[float], growth: float) -> None:
    curve = MemoryCurve([100, 200, 400, 600, 800, 1000], memory, {200: 1000})
    assert curve.growth_mib == growth
