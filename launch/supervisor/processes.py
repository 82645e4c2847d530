"""Start the parts of a job as children with a log each, see them end, and leave none behind."""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Set

from launch.supervisor.shared_memory import note_files, note_new_files

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILL_S = 5.0
# Looking through /proc costs on a node with thousands of processes.
REAP_S = 5.0
# A cancelled job's signal reaches its processes within this time of each other.
SIGNAL_S = 1.5


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent died, so that they can be ended too.

    Raises:
        OSError: when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> Dict[int, List[int]]:
    """Parent process id -> child process ids, of all processes that /proc shows."""
    tree: Dict[int, List[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is another user's (hidepid)
        # "pid (name) state ppid ...": a name may hold spaces and brackets.
        parent = int(stat.rpartition(")")[2].split()[1])
        tree.setdefault(parent, []).append(int(entry.name))
    return tree


def descendants(root: int) -> Set[int]:
    """Process ids below `root`, zombies included."""
    tree = _children()
    found: Set[int] = set()
    waiting = [root]
    while waiting:
        for child in tree.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # ended in the meantime
        os.kill(pid, number)


# Children whose exit code their Component has not read yet: collecting them elsewhere would lose it, and
# subprocess then reports 0.
_uncollected: Set[int] = set()


def reap_orphans() -> None:
    """Collect adopted children that ended, and note what is new of the job in /dev/shm; for every few seconds."""
    _collect()
    note_new_files(lambda: descendants(os.getpid()))


def _collect() -> None:
    for pid in _children().get(os.getpid(), []):
        if pid not in _uncollected:
            with contextlib.suppress(ChildProcessError):  # collected by subprocess itself
                os.waitpid(pid, os.WNOHANG)


_STARTER = [sys.executable, "-I", "-S", str(Path(__file__).resolve().with_name("ends_with_parent.py"))]


def _findable(command: List[str], env: Dict[str, str], cwd: Path) -> None:
    """Raises FileNotFoundError for a command that there is not, before something is started that would."""
    name = command[0]
    place = str(cwd / name) if os.sep in name else name
    if shutil.which(place, path=env.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, "no such command, or it may not be run", name)


class Component:
    """One part of the job: a child process, its log, its exit code.

    It gets SIGTERM when the thread that made it ends, also when this process is killed by -9 (`ends_with_parent`):
    make it in the main thread. `listens`: it will be told something on its stdin. Raises OSError when it cannot
    be started.

    Attributes:
        name: as in the verdict, e.g. "trainer".
        log: file that takes stdout and stderr of the process.
        exit_code: None while it runs; 128 + n when signal n ended it.
    """

    def __init__(
        self, name: str, command: List[str], log: Path, env: Dict[str, str], cwd: Path, *, listens: bool = False
    ) -> None:
        self.name = name
        self.log = log
        self.exit_code: Optional[int] = None
        _findable(command, env, cwd)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [*_STARTER, str(os.getpid()), *command],
                stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        self.pid = self._process.pid
        _uncollected.add(self.pid)

    def tell(self, text: str) -> None:
        """Write to the stdin of a part that listens, and close it. One that is gone is noticed by `poll`."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(text.encode())
                self._process.stdin.close()

    def poll(self) -> Optional[int]:
        """The exit code, or None while the process runs."""
        code = self._process.poll()
        if code is not None:
            self.exit_code = code if code >= 0 else 128 - code
            _uncollected.discard(self.pid)
        return self.exit_code

    def send(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if self.poll() is None:
            _signal(self.pid, number)


def note_shared_memory() -> None:
    """Remember what the processes below this one have in /dev/shm, for `node_folder.clean_up` to remove."""
    note_files(descendants(os.getpid()))


def stop(parts: Sequence[Component], grace_s: float) -> None:
    """Ask the processes to end, all at once; kill those that run after `grace_s` seconds.

    One that not even SIGKILL ends within KILL_S seconds (it hangs in the kernel) is left. What the job has in
    /dev/shm is noted before (`shared_memory`).
    """
    if any(part.poll() is None for part in parts):
        note_shared_memory()
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        for part in parts:
            part.send(number)
        deadline = time.monotonic() + wait_s
        while any(part.poll() is None for part in parts) and time.monotonic() < deadline:
            time.sleep(0.05)


def end_descendants(grace_s: float, limit_s: float = 20.0) -> List[int]:
    """End every process below this one, politely first. Returns those that are left (none, as a rule).

    Only processes that this supervisor started, or adopted from one that it started, are below it.
    """
    deadline = time.monotonic() + limit_s
    kill_after = time.monotonic() + grace_s
    asked: Set[int] = set()
    while True:
        _uncollected.clear()  # nobody reads an exit code any more
        _collect()
        alive = descendants(os.getpid())
        if not alive or time.monotonic() > deadline:
            return sorted(alive)
        if time.monotonic() > kill_after:
            for pid in alive:
                _signal(pid, signal.SIGKILL)
        else:
            for pid in alive - asked:
                _signal(pid, signal.SIGTERM)
            asked |= alive
        time.sleep(0.05)
