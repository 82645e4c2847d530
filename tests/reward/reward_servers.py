"""Real reward servers in subprocesses, and a stub server with scripted replies."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
from other_processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
NAN_CHARACTER = "☢"
SERVER_QUEUE = 2048
GUARDED_QUEUE = 32
TOKEN = "s3cret-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


# Below the ports that the kernel gives away by itself and those of jobs (launch.supervisor.ports); each xdist
# worker has its own.
_PORTS_A_WORKER = 1000
_FIRST_PORT = 4000 + _PORTS_A_WORKER * int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
_offsets = itertools.count(os.getpid())


def free_port() -> int:
    """A free port that no other test and no kernel gives away before its server listens; another at each call."""
    while True:
        port = _FIRST_PORT + next(_offsets) % _PORTS_A_WORKER
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass
class RunningServer:
    """A server process and its log file."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def terminate(self, timeout: float = 60) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


def metric(server: RunningServer, name: str) -> float:
    """One value of the metrics page."""
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def labelled(server: RunningServer, name: str) -> Counter[str]:
    """The values of one metric by their labels, as written on the page."""
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    found = re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)
    return Counter({labels: int(float(value)) for labels, value in found})


def status_of(url: str) -> int:
    """HTTP status of a GET, 0 where nothing listens."""
    try:
        return requests.get(url, timeout=60).status_code
    except requests.ConnectionError:
        return 0


@contextmanager
def running_server(model: Path, log: Path, *options: str, ready: bool = True) -> Iterator[RunningServer]:
    """A real server in a subprocess, with one torch thread; killed at the end if it still runs."""
    port = free_port()
    command = [sys.executable, "-m", "reward.server", "--model", str(model), "--port", str(port), "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error:::reward"}
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output, env=environment)
    server = RunningServer(f"http://127.0.0.1:{port}", process, log)
    try:
        if ready:
            wait_until(
                lambda: process.poll() is not None or status_of(f"{server.url}/ready") == 200,
                f"/ready, see {log}",
            )
            assert process.poll() is None, log.read_text()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


Reply = tuple[int, dict[str, str], bytes] | float


@dataclass
class Stub:
    """A server that gives scripted replies; the last one repeats. A float is a pause before 200, in seconds.

    Pauses end with the server.

    With `crowd`, nobody is answered before that many requests have been there at once, and a little longer, in
    which those beyond a bound would show: `peak` is then the bound that callers keep, on any machine.
    """

    replies: list[Reply]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    crowd: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    crowded: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)


def reply(status: int, body: object = None, **headers: str) -> Reply:
    """A scripted JSON reply."""
    return status, headers, json.dumps(body).encode()


def scored(score: float) -> Reply:
    """A scripted 200 with a score."""
    return reply(200, {"score": score, "truncated": False, "tokens": 3})


@contextmanager
def stub_server(*replies: Reply, crowd: int = 0) -> Iterator[Stub]:
    """A threaded HTTP/1.1 server on a free port; at the end it has neither threads nor connections left."""
    stub = Stub(list(replies), crowd=crowd)
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with stub.lock:
                stub.requests.append(json.loads(body))
                stub.headers.append(dict(self.headers))
                script = stub.replies[min(len(stub.requests), len(stub.replies)) - 1]
                stub.in_flight += 1
                stub.peak = max(stub.peak, stub.in_flight)
                early = not stub.crowded.is_set()
                if stub.in_flight >= stub.crowd:
                    stub.crowded.set()
            try:
                if stub.crowd and early:
                    stub.crowded.wait(20)
                    time.sleep(0.2)
                if isinstance(script, float):
                    stub.closing.wait(script)
                    script = scored(1.0)
                assert isinstance(script, tuple)
                status, headers, content = script
                with stub.lock:
                    stub.in_flight -= 1
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client gave up on a reply that came too late

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = False  # these are joined

        def process_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().process_request(request, client_address)

    httpd = Server(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stub
    finally:
        httpd.shutdown()
        stub.closing.set()
        stub.crowded.set()
        for connection in connections:
            with suppress(OSError):  # closed by now
                connection.shutdown(socket.SHUT_RDWR)
        httpd.server_close()
        thread.join()
