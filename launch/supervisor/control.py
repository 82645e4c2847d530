"""The line between the head node and the others: who is there, who failed, and the end of the job.

JSON lines over TCP, one connection from each node to the head, both ends polled. A node that is silent for
SILENCE_S seconds, or whose connection breaks, is lost; a power cut needs the first, a dead process the second.

Beats come from a thread, since a shared file system may hold up everything else for longer than that; they stop
when nobody has polled for STUCK_S seconds, so that a supervisor that hangs for good does not look alive.
"""

import contextlib
import hmac
import json
import select
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

BEAT_S = 2.0
SILENCE_S = 15.0
STUCK_S = 300.0
_LINE_LIMIT = 65536
# Connections that have not said hello; nodes say it at once.
_STRANGERS = 64

Message = Dict[str, Any]


class ControlError(RuntimeError):
    """The other side speaks wrongly or is gone."""


@dataclass
class _Wire:
    """One connection: bytes in, whole messages out."""

    sock: socket.socket
    heard: float = field(default_factory=time.monotonic)
    _buffer: bytes = b""
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: Message) -> None:
        """Send one message; raises OSError when the connection is broken or stuck."""
        with self._sending:
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> List[Message]:
        """Messages that have arrived; raises ControlError at the end of the connection or on nonsense."""
        try:
            data = self.sock.recv(_LINE_LIMIT)
        except OSError as error:
            raise ControlError(f"connection broken: {error}") from error
        if not data:
            raise ControlError("connection closed")
        self.heard = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > _LINE_LIMIT:
            raise ControlError(f"a message of more than {_LINE_LIMIT} bytes")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:  # anybody on the network may send anything
            raise ControlError(f"not JSON: {error}") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ControlError("a message that is not an object")
        return [message for message in messages if message.get("type") != "beat"]


class _Beats:
    """Says on each wire every BEAT_S seconds that this process is alive, from a thread of its own."""

    def __init__(self, wires: Callable[[], Iterable[_Wire]]) -> None:
        self._wires = wires
        self._polled = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def polled(self) -> None:
        """The main thread still turns."""
        self._polled = time.monotonic()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            if time.monotonic() - self._polled > STUCK_S:
                continue
            for wire in self._wires():
                # A broken connection is the main thread's to notice.
                with contextlib.suppress(OSError):
                    wire.send({"type": "beat"})


class Hub:
    """The head's end. `nodes` are those that said hello with the job's token, by rank."""

    def __init__(self, address: str, port: int, token: str) -> None:
        """Listen on `address`:`port`; raises OSError when it cannot."""
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((address, port), backlog=512)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._strangers: Dict[socket.socket, _Wire] = {}
        self._members: Dict[socket.socket, "tuple[int, _Wire]"] = {}
        self.nodes: Dict[int, Message] = {}
        self._beats = _Beats(lambda: [wire for _, wire in list(self._members.values())])

    def poll(self, wait_s: float) -> List[Message]:
        """What happened within `wait_s` seconds.

        Each event is a message of a node with its `rank` added; the hub adds {"type": "hello"} for a new node
        and {"type": "lost", "why": ...} for one that is gone.
        """
        events: List[Message] = []
        self._beats.polled()
        deadline = time.monotonic() + wait_s
        while True:
            left = deadline - time.monotonic()
            ready = [key.fileobj for key, _ in self._selector.select(max(0.0, left))]
            for sock in ready:
                if isinstance(sock, socket.socket) and sock is not self._listener:
                    events += self._read(sock)
            if self._listener in ready:  # after the others, which make room by saying hello
                self._accept()
            if events or left <= 0:  # beats, of which hundreds of nodes send one every few milliseconds, are none
                return events + self._silent()

    def _accept(self) -> None:
        while len(self._strangers) < _STRANGERS:  # the others wait in the kernel until one of these said hello
            try:
                sock, _peer = self._listener.accept()
            except OSError:
                return  # no more, or it hung up before we answered, or there are no descriptors left just now
            sock.settimeout(5.0)
            self._strangers[sock] = _Wire(sock)
            self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> List[Message]:
        rank, wire = self._members.get(sock) or (None, self._strangers[sock])
        try:
            messages = wire.receive()
        except ControlError as error:
            return self._drop(sock, str(error))
        events: List[Message] = []
        for message in messages:
            if rank is None:
                rank = self._admit(sock, wire, message)
                if rank is None:
                    return events
                events.append({**message, "type": "hello", "token": None, "rank": rank})
            else:
                events.append({**message, "rank": rank})
        return events

    def _admit(self, sock: socket.socket, wire: _Wire, hello: Message) -> Optional[int]:
        rank, token = hello.get("rank"), hello.get("token")
        given = token.encode(errors="surrogatepass") if isinstance(token, str) else b""
        known = hmac.compare_digest(given, self._token.encode())
        if not known or not isinstance(rank, int) or rank in self.nodes:
            self._drop(sock, "stranger")  # another job, or no job at all: no answer
            return None
        self._members[sock] = (rank, wire)
        del self._strangers[sock]
        ports = hello.get("ports")
        self.nodes[rank] = {
            "node": str(hello.get("node")),
            "address": str(hello.get("address")),
            "ports": ports if isinstance(ports, dict) else {},
        }
        return rank

    def _drop(self, sock: socket.socket, why: str) -> List[Message]:
        self._selector.unregister(sock)
        sock.close()
        self._strangers.pop(sock, None)
        member = self._members.pop(sock, None)
        return [] if member is None else [{"type": "lost", "why": why, "rank": member[0]}]

    def _silent(self) -> List[Message]:
        events: List[Message] = []
        now = time.monotonic()
        for sock, (_, wire) in list(self._members.items()):
            if now - wire.heard > SILENCE_S:
                events += self._drop(sock, f"not heard for {SILENCE_S:.0f} s")
        for sock, wire in list(self._strangers.items()):
            if now - wire.heard > SILENCE_S:
                self._drop(sock, "said nothing")
        return events

    def tell(self, message: Message) -> None:
        """Send a message to every node; one that is gone is noticed by `poll`."""
        for _, wire in list(self._members.values()):
            with contextlib.suppress(OSError):
                wire.send(message)

    def end(self, exit_code: int, limit_s: float) -> List[int]:
        """Tell every node that the job is over, also one that joins meanwhile, and wait until each has hung up.

        Returns:
            The ranks that did not within `limit_s` seconds.
        """
        told: Set[socket.socket] = set()
        deadline = time.monotonic() + limit_s
        while True:
            for sock, (_, wire) in list(self._members.items()):
                if sock in told:
                    continue
                told.add(sock)
                try:
                    wire.send({"type": "end", "exit_code": exit_code})
                except OSError:
                    self._drop(sock, "gone")  # it is over for that node already
            if not self._members or time.monotonic() > deadline:
                break
            self.poll(0.1)
        return sorted(rank for rank, _ in self._members.values())

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        self._beats.stop()
        for sock in [*self._members, *self._strangers]:
            self._drop(sock, "over")
        self._selector.close()
        self._listener.close()


class Link:
    """A worker node's end."""

    def __init__(
        self, address: str, port: int, hello: Message, limit_s: float, cancelled: Callable[[], Optional[int]]
    ) -> None:
        """Connect to the head and say hello.

        Raises:
            ControlError: when the head does not answer within `limit_s` seconds, or `cancelled` says to stop.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                sock = socket.create_connection((address, port), timeout=5.0)
                break
            except OSError as error:
                if time.monotonic() > deadline or cancelled() is not None:
                    raise ControlError(
                        f"no answer from the head at {address}:{port} within {limit_s:.0f} s: {error}"
                    ) from error
                time.sleep(0.2)
        self._wire = _Wire(sock)
        try:
            self._wire.send({"type": "hello", **hello})
        except OSError as error:
            raise ControlError(f"connection broken: {error}") from error
        self._beats = _Beats(lambda: [self._wire])

    def poll(self, wait_s: float) -> List[Message]:
        """Messages of the head within `wait_s` seconds; raises ControlError when the head is gone."""
        self._beats.polled()
        readable, _, _ = select.select([self._wire.sock], [], [], wait_s)
        messages = self._wire.receive() if readable else []
        if time.monotonic() - self._wire.heard > SILENCE_S:
            raise ControlError(f"the head was not heard for {SILENCE_S:.0f} s")
        return messages

    def report(self, failure: Message) -> None:
        """Tell the head what failed on this node."""
        self.tell({"type": "failed", "failure": failure})

    def tell(self, message: Message) -> None:
        """Send the head a message."""
        try:
            self._wire.send(message)
        except OSError as error:
            raise ControlError(f"connection broken: {error}") from error

    def close(self) -> None:
        """Hang up; the head takes it as: this node has cleaned up."""
        self._beats.stop()
        self._wire.sock.close()
