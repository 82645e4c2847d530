"""The parts of the job on a node: started with a log each, watched or run to their end."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, TextIO

from launch.supervisor.processes import Component
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, find_evidence

# sys.exit(-1) is 255: no signal has a number above that of SIGRTMAX.
_LAST_SIGNAL = 64


def say(settings: Settings, text: str, to: Optional[TextIO] = None) -> None:
    """One line of progress on stdout, which is the job's log. A log that takes nothing any more is no failure."""
    stream = to or sys.stdout
    line = f"[{time.strftime('%H:%M:%S')} {settings.node}] {text}"
    encoding = stream.encoding or "utf-8"
    with contextlib.suppress(OSError, ValueError):
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def failure_of(part: Component, node: str, exit_code: int) -> Failure:
    """The failure of a part that ended, with the telling line of its log."""
    ended = f"ended with {part.exit_code}"
    if part.exit_code is not None and 128 < part.exit_code <= 128 + _LAST_SIGNAL:
        ended = f"killed by signal {part.exit_code - 128}"
    evidence = None
    with contextlib.suppress(OSError):  # the file system of the logs may be what failed
        evidence = find_evidence(part.log)
    return Failure(part.name, node, ended, exit_code, evidence)


class Parts:
    """Starts components of this node.

    Attributes:
        watched: must run as long as they are in this list.
        aside: nobody waits for them, and their end is no failure.
        logs: of all that were started, for their limit.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.watched: List[Component] = []
        self.aside: List[Component] = []
        self.logs: List[Path] = []

    def start(self, name: str, command: List[str], env: Dict[str, str]) -> Component:
        """Start a part that may end; raises JobFailed when it cannot be started."""
        log = self._settings.log(name)
        if log not in self.logs:
            self.logs.append(log)
        try:
            return Component(name, command, log, env, self._settings.run_dir)
        except OSError as error:
            cause, code = f"cannot be started: {error}", EXIT_CODES.get(name, 127)
            raise JobFailed(Failure(name, self._settings.node, cause, code)) from error

    def watch(self, name: str, command: List[str], env: Dict[str, str]) -> Component:
        """Start a part whose end is the job's failure."""
        part = self.start(name, command, env)
        self.watched.append(part)
        return part

    def start_aside(self, name: str, command: List[str], env: Dict[str, str]) -> None:
        """Start a part that the job can do without."""
        try:
            self.aside.append(self.start(name, command, env))
        except JobFailed as error:
            say(self._settings, f"warning: {error.failure.line()}; the job goes on without")

    def collect(self) -> None:
        """Leave no zombies of parts that ended by themselves."""
        self.aside = [part for part in self.aside if part.poll() is None]

    def replace(self, old: Component, new: Component) -> None:
        """Watch `new` in the place of `old`."""
        self.watched[self.watched.index(old)] = new
