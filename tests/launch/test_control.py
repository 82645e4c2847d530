"""The line between head and nodes, on real sockets."""

import json
import socket
import threading
import time

import pytest

from launch.supervisor import control
from launch.supervisor.control import ControlError, Hub, Link
from launch.supervisor.ports import free_plan

TOKEN = "t" * 64


@pytest.fixture
def hub():
    made = Hub("127.0.0.1", free_plan(4242).control, TOKEN)
    yield made
    made.close()


@pytest.fixture
def quick_hub(monkeypatch: pytest.MonkeyPatch):
    """A hub that beats often and expects to be answered soon."""
    monkeypatch.setattr(control, "SILENCE_S", 0.5)
    monkeypatch.setattr(control, "BEAT_S", 0.1)
    made = Hub("127.0.0.1", free_plan(4242).control, TOKEN)
    yield made
    made.close()


def port_of(hub: Hub) -> int:
    return hub._listener.getsockname()[1]


def link(hub: Hub, rank: int = 1, token: str = TOKEN) -> Link:
    hello = {"rank": rank, "node": f"n{rank}", "address": "10.0.0.2", "token": token}
    return Link("127.0.0.1", port_of(hub), hello, 5.0, lambda: None)


def poll_long(node: Link) -> None:
    for _ in range(50):
        node.poll(0.05)


def events(hub: Hub, kind: str, within_s: float = 5.0) -> list[dict]:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = [event for event in hub.poll(0.05) if event["type"] == kind]
        if found:
            return found
    return []


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
    assert hub.end(42, limit_s=5.0) == []
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
    assert hub.end(42, limit_s=10.0) == []
    server.join(10)
    assert heard == [2]
    assert time.monotonic() - begun < 5


def test_a_stranger_is_not_a_node(hub: Hub):
    stranger = link(hub, token="u" * 64)
    assert events(hub, "hello", 0.5) == []
    assert hub.nodes == {}
    with pytest.raises(ControlError):
        poll_long(stranger)


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
    link(hub)
    assert events(hub, "hello", 0.5) == []
    first.close()


def test_a_node_that_hangs_up_is_lost(hub: Hub):
    link(hub).close()
    found = events(hub, "lost")
    assert (found[0]["rank"], found[0]["why"]) == (1, "connection closed")


def test_a_silent_node_is_lost(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "SILENCE_S", 0.3)
    silent = link(hub)
    assert "not heard" in events(hub, "lost")[0]["why"]
    silent.close()


def test_beats_keep_both_sides_alive(quick_hub: Hub):
    node = link(quick_hub)
    until = time.monotonic() + 1.5
    seen: list[dict] = []
    while time.monotonic() < until:
        seen += quick_hub.poll(0.02)
        assert node.poll(0.02) == []
    assert [event["type"] for event in seen] == ["hello"]
    node.close()


def test_a_hiccup_of_the_file_system_loses_nobody(quick_hub: Hub):
    """Both sides hang for longer than the silence that is allowed: the beats of their threads have arrived."""
    node = link(quick_hub)
    assert events(quick_hub, "hello")
    node.poll(0.02)
    time.sleep(1.2)
    assert quick_hub.poll(0.02) == []
    assert node.poll(0.02) == []
    node.close()


def test_a_supervisor_that_hangs_for_good_falls_silent(quick_hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "STUCK_S", 0.3)
    node = link(quick_hub)  # and nobody polls it
    assert events(quick_hub, "hello")
    assert "not heard" in events(quick_hub, "lost", 5.0)[0]["why"]
    node.close()


def test_messages_of_two_threads_do_not_mix(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "BEAT_S", 0.0005)
    node = link(hub)
    assert events(hub, "hello")
    for number in range(300):
        hub.tell({"type": "nodes", "number": number, "addresses": ["10.0.0.1"] * 400})
    numbers: list[int] = []
    deadline = time.monotonic() + 10
    while len(numbers) < 300 and time.monotonic() < deadline:
        hub.poll(0.001)
        numbers += [message["number"] for message in node.poll(0.05)]
    assert numbers == list(range(300))
    node.close()


def test_no_head_is_an_error_with_the_address():
    port = free_plan(4343).control
    with pytest.raises(ControlError, match=rf"127\.0\.0\.1:{port}"):
        Link("127.0.0.1", port, {"rank": 1}, 0.5, lambda: None)


def test_the_head_that_dies_is_noticed():
    head = Hub("127.0.0.1", free_plan(4244).control, TOKEN)
    node = link(head)
    assert events(head, "hello")
    head.close()
    with pytest.raises(ControlError):
        poll_long(node)


def test_many_nodes(hub: Hub):
    nodes = [link(hub, rank) for rank in range(1, 65)]
    deadline = time.monotonic() + 10
    while len(hub.nodes) < 64 and time.monotonic() < deadline:
        hub.poll(0.05)
    assert sorted(hub.nodes) == list(range(1, 65))
    for node in nodes:
        node.close()


def test_beats_do_not_shorten_a_turn_of_the_head(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    """Each turn looks at shared files: hundreds of nodes would make it hundreds of looks a second."""
    monkeypatch.setattr(control, "BEAT_S", 0.002)
    nodes = [link(hub, rank) for rank in range(1, 5)]
    deadline = time.monotonic() + 10
    while len(hub.nodes) < 4 and time.monotonic() < deadline:
        hub.poll(0.05)
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
    deadline = time.monotonic() + 10
    while len(hub.nodes) < 32 and time.monotonic() < deadline:
        hub.poll(0.05)
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
