"""Run a program that takes long, or one that must answer in time; what it started ends with it.

Standard library only, Python 3.9 and later: `launch.init` asks a site's programs with it.
"""

import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

_TAIL = 64 * 1024  # bytes of output that are kept
_GRACE_S = 20.0  # for a build to clean up after SIGTERM
_LEFT_S = 2.0  # for what a program left running
_QUIET_S = 0.2  # without output after the end of the program: nothing more comes
_HIDDEN = b"****"


class Finished(NamedTuple):
    """Exit code, and the end of what the program said on both of its streams."""

    code: int
    said: str


class _Relay:
    """Copies output to standard error without the secrets; a secret may be cut in two by a read."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = [os.fsencode(secret) for secret in sorted(secrets, key=len, reverse=True)]
        self._waiting = b""
        self.tail = b""

    def take(self, data: bytes) -> None:
        text = self._waiting + data
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        held = max((_begun(text, secret) for secret in self._secrets), default=0)
        self._waiting = text[len(text) - held :]
        self._pass(text[: len(text) - held])

    def end(self) -> None:
        self._pass(self._waiting)
        self._waiting = b""

    def _pass(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-_TAIL:]
        try:
            sys.stderr.flush()
            os.write(2, data)
        except OSError:  # a closed terminal is no reason to lose the build
            return


def _begun(text: bytes, secret: bytes) -> int:
    """How many bytes at the end of `text` may be the beginning of `secret`."""
    return next(
        (size for size in range(min(len(secret) - 1, len(text)), 0, -1) if text.endswith(secret[:size])), 0
    )


def run_program(
    words: Sequence[str], *, environ: Mapping[str, str], folder: Path, secrets: Collection[str] = ()
) -> Finished:
    """Run a program in a folder until it ends. Both streams go to standard error: a terminal stays one for it.

    Whatever raises here (Ctrl-C, SIGTERM as an exception) first ends the program and all that it started.
    """
    terminal = os.isatty(2)
    reading, writing = os.openpty() if terminal else os.pipe()
    relay = _Relay(secrets)
    try:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=dict(environ), cwd=folder,
            start_new_session=True,
        ) as program:  # fmt: skip
            os.close(writing)
            writing = -1
            try:
                while not _ended(program, reading) and (data := _read(reading)):
                    relay.take(data)
                code = program.wait()
            except BaseException:
                end_session(program, _GRACE_S)
                raise
            end_session(program, _LEFT_S)
        relay.end()
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    return Finished(code, relay.tail.decode("utf-8", "replace"))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError as error:
        if error.errno == errno.EIO:  # the other end of a terminal is closed
            return b""
        raise


def _ended(program: "subprocess.Popen[bytes]", reading: int) -> bool:
    """Whether the program ended and said all; waits for something to read. What it started may hold the pipe."""
    while not select.select([reading], [], [], _QUIET_S)[0]:
        # Asked in this order: what it said before its end is there by now.
        if program.poll() is not None and not select.select([reading], [], [], 0)[0]:
            return True
    return False


def drained(
    program: "subprocess.Popen[bytes]", deadline: float, full: Callable[[int, int], bool]
) -> "tuple[bytes, bytes, Literal['late', 'full'] | None]":
    """Standard output and error of a program until its end, and why it was not waited for. It is not ended here.

    Args:
        deadline: in seconds of time.monotonic(); after it the reason is "late".
        full: whether so many bytes of each are too many; then the reason is "full".
    """
    assert program.stdout is not None
    assert program.stderr is not None
    parts = {program.stdout.fileno(): bytearray(), program.stderr.fileno(): bytearray()}
    out, err = parts.values()
    why: Literal["late", "full"] | None = None
    with selectors.DefaultSelector() as selector:
        for pipe in parts:
            selector.register(pipe, selectors.EVENT_READ)
        # What the program started may hold the pipes after its end.
        while selector.get_map() and not (program.poll() is not None and not selector.select(_QUIET_S)):
            for key, _ in selector.select(max(0.0, min(_QUIET_S, deadline - time.monotonic()))):
                data = os.read(key.fd, 1 << 16)
                parts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if full(len(out), len(err)):
                why = "full"
            elif time.monotonic() > deadline:
                why = "late"
            if why:
                return bytes(out), bytes(err), why
    try:
        program.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        why = "late"
    return bytes(out), bytes(err), why


def end_session(program: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """SIGTERM to the program's session, SIGKILL to what is left of it after `patience_s` seconds."""
    try:
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + wait_s
            left = _signalled(program, number)
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = _signalled(program, 0)
            if not left:
                return
    except BaseException:  # a second Ctrl-C
        _signalled(program, signal.SIGKILL)
        raise


def _signalled(program: "subprocess.Popen[bytes]", number: int) -> bool:
    """Send a signal to all of it (0: none); False where nothing is left of it, or nothing of ours."""
    program.poll()
    try:
        os.killpg(program.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
