"""Run the site's programs: limited in time and in what is read, never with this terminal as input."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from launch.tokens import hide
from singularity.running import drained

TIMEOUT_S = 20.0
QUIET_S = 3.0
MOST_BYTES = 8 << 20
LOGIN_SHELL = ("bash", "-lc")
# Everything up to the last @ of a word that has a : before it: a password may hold a / or an @ itself.
_PASSWORD = re.compile(r"[^\s:=]*:[^\s]+@")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
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
    words: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    quiet_s: float = QUIET_S,
) -> Answer:
    """Run a program with everything that it starts; both end after `timeout_s` seconds, or 8 MiB of output.

    After `quiet_s` seconds standard error names what is waited for.
    """
    # What a user's own files print is not told: any word of it may be a secret.
    login = tuple(words[:2]) == LOGIN_SHELL
    shown = "the login shell" if login else shlex.join(words)
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
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        began, told = time.monotonic(), False

        def full(out: int, err: int) -> bool:
            nonlocal told
            if not told and time.monotonic() - began > quiet_s:
                told = True
                waits_for = shown if login else words[0]
                print(f"waiting for {waits_for}, {timeout_s:.0f} s at most", file=sys.stderr, flush=True)
            return out + err > MOST_BYTES

        texts = drained(process, began + timeout_s, full)
        _end(process)
    out, err = (text.decode("utf-8", "replace") for text in texts[:2])
    if texts[2] is not None:
        late = f"gave no answer in {timeout_s:.0f} s" if texts[2] == "late" else "did not stop printing"
        return Answer(out, err, f"{shown} {late}")
    if process.returncode != 0 and login:
        return Answer(out, err, f"{shown} ended with {process.returncode}")
    if process.returncode != 0:
        said = next((line.strip() for line in (err + "\n" + out).splitlines() if line.strip()), "it said nothing")
        return Answer(out, err, f"{shown} ended with {process.returncode}: {without_secrets(said[:4096])[:300]}")
    return Answer(out, err)


def without_secrets(text: str) -> str:
    """What a program printed, as it may be shown: without tokens, and without user names and passwords of URLs."""
    return _PASSWORD.sub(
        lambda found: (scheme[0] if (scheme := _SCHEME.match(found[0])) else "") + "***@", hide(text)
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a program's session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it may hang on a file system that does not answer
        process.wait(5)
