"""Nodes that died before they joined, asked on real sockets of loopback addresses."""

import socket
import time

import pytest

from launch.supervisor import missing_nodes
from launch.supervisor.missing_nodes import MissingNodes, answers


@pytest.fixture
def silent_port():
    """A port that neither accepts nor refuses, as a machine that is off: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        filling = [socket.socket() for _ in range(4)]
        for client in filling:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield port
        for client in filling:
            client.close()


def test_a_machine_answers_also_with_a_refusal(silent_port: int):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert answers("127.0.0.1", server.getsockname()[1])
    assert answers("127.0.0.2", 1)
    assert not answers("127.0.0.1", silent_port, 0.2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, silent_port: int):
    for name, value in (("_FIRST_S", 0.0), ("_EVERY_S", 0.02)):
        monkeypatch.setattr(missing_nodes, name, value)
    monkeypatch.setattr(
        missing_nodes,
        "answers",
        lambda name: answers("127.0.0.1", silent_port if name.startswith("off") else 1, 0.1),
    )
    monkeypatch.setattr(missing_nodes, "addresses_of", lambda names: [] if names == ["nameless"] else names)


def dead_after(joined: list[str], missing: list[str], seconds: float) -> list[str]:
    asked = MissingNodes()
    deadline = time.monotonic() + seconds
    while not (dead := asked.dead(joined, missing)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return dead


def test_a_silent_node_is_dead_where_another_answers(quick: None):
    assert dead_after(["on"], ["off", "on too", "nameless"], 60.0) == ["off"]


@pytest.mark.parametrize(
    ("joined", "missing"),
    [
        ([], ["off"]),  # nobody to compare with
        # A firewall on the network of the names, which need not be the job's: those that live are silent as well.
        (["off too"], ["off"]),
        (["on"], ["on too", "nameless"]),  # slow, but alive
    ],
)
def test_nothing_is_concluded_from_silence_alone(quick: None, joined: list[str], missing: list[str]):
    assert dead_after(joined, missing, 1.0) == []


def test_a_name_server_that_is_down_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words: time.sleep(600) or [])
    started = time.monotonic()
    assert missing_nodes.addresses_of(["a", "b"], limit_s=0.2) == []
    assert time.monotonic() - started < 60.0
