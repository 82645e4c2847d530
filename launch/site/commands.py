"""Run the site's programs: limited in time and in what is read, never with this terminal as input."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

TIMEOUT_S = 20.0
MOST_BYTES = 8 << 20
_CHANGING = ("SINFO_", "SACCTMGR_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_JSON", "SLURM_YAML")


@dataclass(frozen=True)
class Answer:
    """What a program said.

    Attributes:
        out: its standard output.
        err: its standard error.
        problem: why it is no answer (not installed, no answer in time, its exit code); None when it is one.
    """

    out: str = ""
    err: str = ""
    problem: str | None = None


Ask = Callable[[Sequence[str]], Answer]


def ask(
    words: Sequence[str], timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a program with everything that it starts; both end after `timeout_s` seconds, or 8 MiB of output."""
    shown = shlex.join(words)
    variables = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    # As users set them, they change what is printed.
    variables = {name: value for name, value in variables.items() if not name.startswith(_CHANGING)}
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(problem=f"{words[0]} is not in PATH")
    except OSError as wrong:
        return Answer(problem=f"{words[0]} cannot be run: {wrong.strerror}")
    out, err, late = _read(process, time.monotonic() + timeout_s)
    if late is not None:
        return Answer(out, err, f"{shown} {late.format(seconds=timeout_s)}")
    if process.returncode != 0:
        said = next((line.strip() for line in (err + "\n" + out).splitlines() if line.strip()), "it said nothing")
        return Answer(out, err, f"{shown} ended with {process.returncode}: {said[:300]}")
    return Answer(out, err)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str, str | None]:
    """Standard output and error, and what went wrong with a program that had to be ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    parts: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    late = None
    with selectors.DefaultSelector() as selector, process.stdout as out, process.stderr as err:
        names = (out.fileno(), err.fileno())
        for name in names:
            selector.register(name, selectors.EVENT_READ)
        # A child of the program may hold the pipes after its end.
        while selector.get_map() and not (process.poll() is not None and not selector.select(0.2)):
            left = deadline - time.monotonic()
            if left <= 0:
                late = "gave no answer in {seconds:.0f} s"
                break
            for key, _ in selector.select(min(left, 0.2)):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                parts[key.fd] += data
            if sum(map(len, parts.values())) > MOST_BYTES:
                late = "did not stop printing"
                break
        if late is None:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = "gave no answer in {seconds:.0f} s"
        _end(process)
    return parts[names[0]].decode("utf-8", "replace"), parts[names[1]].decode("utf-8", "replace"), late


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a program's session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it may hang on a file system that does not answer
        process.wait(5)
