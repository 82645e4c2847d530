"""The watcher of the reward server: silence is a hang, a late answer is not. Real processes, real HTTP."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launch.supervisor import reward_watch

SERVER = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(float(sys.argv[1]))
        self.send_response(int(sys.argv[2]))
        self.end_headers()
        os.write(1, b".")
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def serving(late_s: float = 0.0, status: int = 200) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVER, str(late_s), str(status)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server, f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.communicate()


def await_answers(server: subprocess.Popen[str], watch: subprocess.Popen[str], count: int) -> None:
    """Wait until the server has answered that many more questions; the watcher must not end meanwhile."""
    assert server.stdout is not None
    while count > 0:
        assert watch.poll() is None
        if select.select([server.stdout], [], [], 0.1)[0]:
            count -= len(os.read(server.stdout.fileno(), count))


@contextmanager
def watching(url: str, limit_s: float, **env: str) -> Iterator[subprocess.Popen[str]]:
    command = reward_watch.command(url, limit_s)
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})
    try:
        yield watch
    finally:
        if watch.poll() is None:
            watch.kill()
        watch.communicate()


def test_a_stopped_server_hangs_and_is_named():
    """It still accepts connections: the kernel does that for it."""
    with serving() as (server, url), watching(url, 3.0) as watch:
        await_answers(server, watch, 2)
        server.send_signal(signal.SIGSTOP)
        before = time.monotonic()
        out, _ = watch.communicate(timeout=60)
        assert time.monotonic() - before > 1
        assert watch.returncode == 1
        assert out.count("\n") == 1
        assert f"reward server at {url} hangs: no answer to GET /health for 3 s" in out
        server.send_signal(signal.SIGCONT)


def test_nobody_there_is_no_answer_either():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with watching(url, 2.0) as watch:
            out, _ = watch.communicate(timeout=60)
    assert (watch.returncode, "Connection refused" in out) == (1, True)


def test_a_late_answer_is_an_answer():
    """Under load each takes a good part of the limit, for several times the limit; whatever it says. No proxy
    is asked."""
    proxy = {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": ""}
    with serving(1.0, 500) as (server, url), watching(url, 3.0, **proxy) as watch:
        await_answers(server, watch, 8)


def test_a_suspended_job_is_no_hang():
    """scontrol suspend stops all processes: the time that nobody ran is not the server's."""
    with serving() as (server, url), watching(url, 4.0) as watch:
        await_answers(server, watch, 2)
        for process in (watch, server):
            process.send_signal(signal.SIGSTOP)
        time.sleep(5.0)
        for process in (watch, server):
            process.send_signal(signal.SIGCONT)
        await_answers(server, watch, 2)


def test_one_lost_connection_is_not_a_hang():
    """The first question is never answered, those after it are."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if len(seen) == 1:
                over.wait(60)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        watch = reward_watch.RewardWatch(f"http://127.0.0.1:{server.server_address[1]}", 3.0)
        until = time.monotonic() + 4
        while time.monotonic() < until or len(seen) < 2:
            assert watch.turn()
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("words", [[], ["http://h:1"], ["http://h", "1"], ["ftp://h:1", "1"], ["http://h:1", "x"]])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert reward_watch.main(words) == 2
    assert "usage: reward_watch.py URL SECONDS" in capsys.readouterr().err


def test_it_starts_without_the_toolkit(tmp_path: Path):
    """By its path, in any folder, with nothing but the standard library."""
    file = Path(reward_watch.__file__)
    done = subprocess.run([sys.executable, "-I", "-S", str(file)], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 2
