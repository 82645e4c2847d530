"""The parts of the job on a node: started with a log each, watched or run to their end."""

from pathlib import Path
from typing import Dict, List

from launch.supervisor.processes import Component
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, find_evidence


def failure_of(part: Component, node: str, exit_code: int) -> Failure:
    """The failure of a part that ended, with the telling line of its log."""
    ended = f"ended with {part.exit_code}"
    if part.exit_code is not None and part.exit_code > 128:
        ended = f"killed by signal {part.exit_code - 128}"
    return Failure(part.name, node, ended, exit_code, find_evidence(part.log))


class Parts:
    """Starts components of this node.

    Attributes:
        watched: must run as long as they are in this list.
        logs: of all that were started, for their limit.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.watched: List[Component] = []
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

    def replace(self, old: Component, new: Component) -> None:
        """Watch `new` in the place of `old`."""
        self.watched[self.watched.index(old)] = new
