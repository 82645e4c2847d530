"""Whether a reward server is ready, asked of servers that behave badly."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launch.supervisor.reward_server import Readiness


@contextmanager
def serving(answer: bytes, each_s: float = 0.0) -> Iterator[str]:
    """A server that gives every connection the same bytes, one each `each_s` seconds."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def speak(client: socket.socket) -> None:
        with client:
            client.recv(4096)
            for byte in answer if each_s else [answer]:
                try:
                    client.sendall(bytes([byte]) if isinstance(byte, int) else byte)
                except OSError:
                    return
                if over.wait(each_s):
                    return

    def serve() -> None:
        while not over.is_set():
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=speak, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        server.close()


def ready_within(url: str, seconds: float) -> bool:
    readiness = Readiness()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        begun = time.monotonic()
        if readiness.of(url):
            return True
        assert time.monotonic() - begun < 10, "it blocked"
        time.sleep(0.05)
    return False


def test_a_ready_server():
    with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url:
        assert ready_within(url, 60.0)


LOADING = b"HTTP/1.1 503 loading\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("answer", [LOADING, b"nonsense\r\n", b"", b"HTTP/1.1 200\xff\r\nA" + b"b" * 70000])
def test_no_ready_server(answer: bytes):
    with serving(answer) as url:
        assert not ready_within(url, 0.6)


def test_a_server_that_answers_a_byte_a_second_holds_nobody_up():
    with serving(b"HTTP/1.1 503 loading for a long time\r\n", each_s=1.0) as url:
        assert not ready_within(url, 3.0)
