"""The line between head and nodes, on real sockets."""

import json
import select
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from launch.supervisor import control
from launch.supervisor.control import ControlError, Hub, Link

TOKEN = "t" * 64


@pytest.fixture
def hub():
    made = Hub("127.0.0.1", 0, TOKEN)
    yield made
    made.close()


class Clock:
    """The clock of both sides, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Beats are sent often, by the real clock."""
    monkeypatch.setattr(control, "BEAT_S", 0.1)
    made = Clock()
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=made.monotonic, sleep=time.sleep))
    return made


def port_of(hub: Hub) -> int:
    return hub._listener.getsockname()[1]


def link(hub: Hub, rank: int = 1, token: str = TOKEN) -> Link:
    hello = {"rank": rank, "node": f"n{rank}", "address": "10.0.0.2", "token": token}
    return Link("127.0.0.1", port_of(hub), hello, 60.0, lambda: None)


def events(hub: Hub, kind: str) -> list[dict]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [event for event in hub.poll(0.05) if event["type"] == kind]
        if found:
            return found
    return []


def refused(hub: Hub, node: Link) -> bool:
    """Whether the hub hangs up on a node without an event."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert hub.poll(0.02) == []
        try:
            node.poll(0.02)
        except ControlError:
            return True
    return False


def poll_on(node: Link) -> None:
    while True:  # a silent head is an error, too
        node.poll(0.05)


def join(hub: Hub, count: int) -> None:
    """Turn until that many nodes are there."""
    deadline = time.monotonic() + 60
    while len(hub.nodes) < count and time.monotonic() < deadline:
        hub.poll(0.05)


def beat_arrives(hub: Hub, node: Link) -> None:
    """Wait until each side has something to read that it did not ask for."""
    (member,) = hub._members
    for sock in (member, node._wire.sock):
        assert select.select([sock], [], [], 60)[0], "no beat"


def test_hello_failure_and_end(hub: Hub):
    node = link(hub)
    assert events(hub, "hello")[0]["rank"] == 1
    assert hub.nodes == {1: {"node": "n1", "address": "10.0.0.2", "ports": {}}}
    node.report({"component": "ray worker"})
    assert events(hub, "failed")[0]["failure"] == {"component": "ray worker"}

    def serve() -> None:
        while not any(message["type"] == "end" for message in node.poll(0.05)):
            pass
        node.close()

    server = threading.Thread(target=serve)
    server.start()
    assert hub.end(42, limit_s=60.0) == []
    server.join()


def test_a_node_that_joins_while_the_head_ends_is_told_so(hub: Hub):
    first, heard = link(hub), []
    assert events(hub, "hello")

    def serve() -> None:
        late = link(hub, rank=2)
        while not any(message["type"] == "end" for message in late.poll(0.05)):
            pass
        heard.append(2)
        late.close()
        first.close()

    server = threading.Thread(target=serve)
    server.start()
    begun = time.monotonic()
    assert hub.end(42, limit_s=120.0) == []
    server.join(60)
    assert heard == [2]
    assert time.monotonic() - begun < 60


def test_a_stranger_is_not_a_node(hub: Hub):
    assert refused(hub, link(hub, token="u" * 64))
    assert hub.nodes == {}


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"token": 3}\n',
        b'{"rank": "1", "token": "%s"}\n',
        b"\xff\n",
        b"[" * 60000 + b"\n",
        b'{"token": "\\ud800"}\n',
    ],
)
def test_nonsense_harms_nobody(hub: Hub, sent: bytes):
    node = link(hub)
    assert events(hub, "hello")
    with socket.create_connection(("127.0.0.1", port_of(hub))) as sock:
        sock.sendall(sent.replace(b"%s", TOKEN.encode()))
        for _ in range(10):
            assert hub.poll(0.02) == []
    assert list(hub.nodes) == [1]
    node.close()


def test_a_second_node_with_the_same_rank_is_refused(hub: Hub):
    first = link(hub)
    assert events(hub, "hello")
    assert refused(hub, link(hub))
    assert list(hub.nodes) == [1]
    first.close()


def test_a_node_that_hangs_up_is_lost(hub: Hub):
    link(hub).close()
    found = events(hub, "lost")
    assert (found[0]["rank"], found[0]["why"]) == (1, "connection closed")


def test_a_silent_node_is_lost(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    silent = link(hub)
    assert events(hub, "hello")
    monkeypatch.setattr(control, "SILENCE_S", 0.3)
    assert "not heard" in events(hub, "lost")[0]["why"]
    silent.close()


def test_beats_keep_both_sides_alive(clock: Clock, hub: Hub):
    """Nothing else is said in three times the silence that is allowed."""
    node = link(hub)
    assert events(hub, "hello")
    for _ in range(6):
        beat_arrives(hub, node)
        assert hub.poll(0.02) == []
        assert node.poll(0.02) == []
        clock.ahead += control.SILENCE_S / 2
    node.close()


def test_a_hiccup_of_the_file_system_loses_nobody(clock: Clock, hub: Hub):
    """Both sides hang for longer than the silence that is allowed: the beats of their threads have arrived."""
    node = link(hub)
    assert events(hub, "hello")
    node.poll(0.02)
    clock.ahead += 2 * control.SILENCE_S
    beat_arrives(hub, node)
    assert hub.poll(0.02) == []
    assert node.poll(0.02) == []
    node.close()


def test_a_supervisor_that_hangs_for_good_falls_silent(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    for name, seconds in (("BEAT_S", 0.1), ("STUCK_S", 0.3), ("SILENCE_S", 3.0)):
        monkeypatch.setattr(control, name, seconds)
    node = link(hub)  # and nobody polls it
    assert events(hub, "hello")
    assert "not heard" in events(hub, "lost")[0]["why"]
    node.close()


def test_messages_of_two_threads_do_not_mix(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "BEAT_S", 0.0005)
    node = link(hub)
    assert events(hub, "hello")
    for number in range(300):
        hub.tell({"type": "nodes", "number": number, "addresses": ["10.0.0.1"] * 400})
    numbers: list[int] = []
    deadline = time.monotonic() + 60
    while len(numbers) < 300 and time.monotonic() < deadline:
        hub.poll(0.001)
        numbers += [message["number"] for message in node.poll(0.05)]
    assert numbers == list(range(300))
    node.close()


def test_no_head_is_an_error_with_the_address():
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(ControlError, match=rf"127\.0\.0\.1:{port}"):
            Link("127.0.0.1", port, {"rank": 1}, 0.5, lambda: None)


def test_the_head_that_dies_is_noticed():
    head = Hub("127.0.0.1", 0, TOKEN)
    node = link(head)
    assert events(head, "hello")
    head.close()
    with pytest.raises(ControlError, match="connection"):
        poll_on(node)


def test_many_nodes(hub: Hub):
    nodes = [link(hub, rank) for rank in range(1, 65)]
    join(hub, 64)
    assert sorted(hub.nodes) == list(range(1, 65))
    for node in nodes:
        node.close()


def test_beats_do_not_shorten_a_turn_of_the_head(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    """Each turn looks at shared files: hundreds of nodes would make it hundreds of looks a second."""
    monkeypatch.setattr(control, "BEAT_S", 0.002)
    nodes = [link(hub, rank) for rank in range(1, 5)]
    join(hub, 4)
    begun = time.monotonic()
    assert hub.poll(0.3) == []
    assert time.monotonic() - begun > 0.25
    for node in nodes:
        node.close()


def test_all_that_wait_are_let_in_at_once(hub: Hub):
    nodes = [link(hub, rank) for rank in range(1, 33)]
    turns = 0
    while len(hub.nodes) < 32 and turns < 100:
        hub.poll(0.05)
        turns += 1
    assert turns <= 10
    for node in nodes:
        node.close()


def test_more_than_may_be_unknown_at_once_wait_for_their_turn(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "_STRANGERS", 3)
    nodes = [link(hub, rank) for rank in range(1, 33)]
    join(hub, 32)
    assert sorted(hub.nodes) == list(range(1, 33))
    for node in nodes:
        node.close()


def test_a_huge_line_is_refused(hub: Hub):
    with socket.create_connection(("127.0.0.1", port_of(hub))) as sock:
        sock.settimeout(5)
        try:
            for _ in range(40):
                sock.sendall(json.dumps({"x": "y" * 10000}).encode())
                hub.poll(0.01)
        except OSError:
            return
    pytest.fail("the hub kept reading a line without an end")
