"""Drive the test cluster from Python: commands on nodes, jobs, and what they leave behind."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
IMAGE = "/scratch/img/verl-cpu.sif"
_FINAL = re.compile(r"COMPLETED|FAILED|CANCELLED.*|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE")
_GRACE_S = 10.0  # from the end of a job to the end of the last of its processes
Done = subprocess.CompletedProcess[str]
_USUAL: Mapping[str, str] = {}
UP_AGAIN_S = 180  # until Slurm calls a node that was booted again idle


@dataclass(frozen=True)
class Ended:
    """How a job ended, as sacct tells it: COMPLETED, FAILED...; exit code and signal of the batch script.

    `seen` is when sacct said so, in seconds of time.monotonic().
    """

    job_id: str
    state: str
    exit_code: int
    signal: int
    seen: float


class ClusterError(RuntimeError):
    """The cluster did not do what a test needs of it; the message holds what it said."""


def lab_dir() -> Path:
    """The folder with everything of this checkout's cluster."""
    return Path(_script("lib/lab_dir.sh").stdout.strip())


def _script(name: str, *arguments: str, timeout_s: float = 300, lab: Mapping[str, str] = _USUAL) -> Done:
    """Run a script of the cluster; raises ClusterError with its output when it fails."""
    done = _run([HERE / name, *arguments], timeout_s, lab)
    if done.returncode != 0:
        raise ClusterError(f"{name} {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def _run(words: Sequence[str | Path], timeout_s: float, lab: Mapping[str, str] = _USUAL) -> Done:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **lab},
    )


class Cluster:
    """A running cluster: node `login` and compute nodes `n1`, `n2`, ...

    `scratch` and `home` are /scratch and alice's home as this machine sees them.

    Args:
        suite: a small cluster beside the ordinary one, of another Debian: Slurm without Apptainer and accounting.
        settings: variables of up.sh for it.
    """

    def __init__(self, nodes: int = 3, suite: str | None = None, **settings: str) -> None:
        self.lab, self._variables = lab_dir(), _USUAL
        if suite is not None:
            self.lab = self.lab / "suites" / suite
            self._variables = {**settings, "SMALL": "1", "SUITE": suite, "LAB": str(self.lab)}
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.scratch = self.lab / "shared" / "scratch"
        self.home = self.lab / "shared" / "home" / "alice"
        self.left: dict[str, list[str]] = {}
        self.since = time.time()  # of logs that report() shows

    def up(self) -> str:
        """Build what is missing and start what is not running; returns what the scripts said."""
        done = _script("up.sh", str(len(self.nodes)), timeout_s=3600, lab=self._variables)
        return done.stdout + done.stderr

    def is_up(self) -> bool:
        """Whether the login node runs."""
        return self.on("login", "true", user="root", check=False).returncode == 0

    def down(self) -> None:
        """End every node that up() or the user started for this checkout."""
        _script("down.sh", lab=self._variables)

    def on(
        self, node: str, *command: str | Path, user: str = "alice", check: bool = True, timeout_s: float = 300
    ) -> Done:
        """Run a command on a node in the user's home.

        Raises:
            ClusterError: with its output, when `check` and the exit code is not 0.
            subprocess.TimeoutExpired: after `timeout_s` seconds.
        """
        done = _run([HERE / "on", node, "-u", user, *command], timeout_s, self._variables)
        if check and done.returncode != 0:
            raise ClusterError(
                f"on {node} as {user}: {command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def in_image(self, node: str, *command: str | Path, folder: str = "/scratch", timeout_s: float = 900) -> Done:
        """Run a command as alice in the image, in a folder below /scratch, with the checkout on PYTHONPATH."""
        # torch leaves a cache folder in /tmp as soon as it is imported
        variables = f"PYTHONPATH={CHECKOUT},TORCHINDUCTOR_CACHE_DIR=/home/alice/.cache/torchinductor"
        options = ["--bind", f"{CHECKOUT},/scratch", "--env", variables, "--pwd", folder]
        return self.on(node, "singularity", "-q", "exec", *options, IMAGE, *command, timeout_s=timeout_s)

    def sbatch(self, script: str | Path, *options: str, folder: str | Path = "/home/alice") -> str:
        """Submit a script as alice from a folder of the login node; returns the job id."""
        words = ["sh", "-c", 'cd "$0" && exec sbatch --parsable "$@"', folder, *options, script]
        return self.on("login", *words).stdout.strip().split(";")[0]

    def state(self, job_id: str) -> Ended:
        """What sacct says about a job now; state PENDING while the database has not heard of it."""
        words = ["sacct", "-n", "-P", "-X", "-j", job_id, "-o", "State,ExitCode"]
        state, _, code = (self.on("login", *words).stdout.strip() or "PENDING|0:0").partition("|")
        exit_code, _, number = code.partition(":")
        return Ended(job_id, state, int(exit_code), int(number), time.monotonic())

    def wait_for_end(self, job_id: str, timeout_s: float) -> Ended:
        """Wait until sacct says how a job ended; Slurm may still hold its nodes.

        Raises:
            ClusterError: with the queue and the job's log, when it has not after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not _FINAL.fullmatch((now := self.state(job_id)).state):
            if time.monotonic() > deadline:
                raise ClusterError(f"job {job_id} has not ended after {timeout_s:.0f} s: {now}\n{self.report()}")
            time.sleep(0.25)
        return now

    def wait(self, job_id: str, timeout_s: float) -> Ended:
        """Wait until a job has ended and Slurm has let go of its nodes; what it left there goes to `left`.

        Raises:
            ClusterError: with the queue and the job's log, when it has not after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        ended = self.wait_for_end(job_id, timeout_s)
        while job_id in self.queue():
            if time.monotonic() > deadline:
                raise ClusterError(f"job {job_id} still holds nodes after {timeout_s:.0f} s\n{self.report()}")
            time.sleep(0.25)
        self.left |= self.left_after(_GRACE_S)
        return ended

    def wait_for_running(self, job_id: str, timeout_s: float) -> None:
        """Wait until a job has its nodes; raises ClusterError when it has not after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.on("login", "squeue", "-h", "-j", job_id, "-o", "%T").stdout.strip() != "RUNNING":
            if time.monotonic() > deadline:
                raise ClusterError(f"job {job_id} does not run after {timeout_s:.0f} s\n{self.report()}")
            time.sleep(0.1)

    def wait_for_text(self, path: Path, text: str, job_id: str, timeout_s: float) -> None:
        """Wait until a log holds `text`; raises ClusterError when the job ends or the time is up before."""
        deadline = time.monotonic() + timeout_s
        while True:
            if path.exists() and text in path.read_text(errors="replace"):
                return
            ended = self.state(job_id)
            if _FINAL.fullmatch(ended.state) or time.monotonic() > deadline:
                # What it told last may have come between the two looks.
                if path.exists() and text in path.read_text(errors="replace"):
                    return
                raise ClusterError(f"no {text!r} in {path}; {ended}\n{self.report()}")
            time.sleep(0.5)

    def kill(self, node: str, pattern: str, signal: str = "KILL", *, of: int = 1, which: int = 0) -> float:
        """Send a signal to alice's one process on a node whose command line matches a regular expression.

        Args:
            of: how many processes have to match.
            which: of these is meant, the oldest one is 0.

        Returns:
            When it was sent, in seconds of time.monotonic().

        Raises:
            ClusterError: when another number of them matches; it lists what runs there.
        """
        deadline = time.monotonic() + 20
        while True:
            pids = self.on(node, "pgrep", "-u", "alice", "-f", pattern, user="root", check=False).stdout.split()
            # A child that is forked and runs no program yet has the command line of its parent.
            if len(pids) == of or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if len(pids) != of:
            raise ClusterError(f"{pattern!r} matches {pids} on {node}: {self.processes(node)}")
        self.on(node, "kill", f"-{signal}", sorted(pids, key=int)[which], user="root")
        return time.monotonic()

    @contextlib.contextmanager
    def cut_off(self, node: str) -> Iterator[float]:
        """A node without power inside the `with`; gives when it was cut, and boots the node at the end."""
        self.power_off(node)
        try:
            yield time.monotonic()
        finally:
            self.power_on(node)
            self.wait_for_idle(UP_AGAIN_S)

    @contextlib.contextmanager
    def mounted(self, node: str, *words: str) -> Iterator[None]:
        """A mount on one node inside the `with`, by mount's words; the last one is the folder."""
        self.on(node, "mount", *words, user="root")
        try:
            yield
        finally:
            # Lazily: slurmd keeps a file of sbcast open for a while.
            self.on(node, "umount", "-l", words[-1], user="root")

    @contextlib.contextmanager
    def listening(self, node: str, ports: Sequence[int]) -> Iterator[None]:
        """Another user's server on each of these ports of a node inside the `with`."""
        code = (
            "import socket, sys\n"
            "held = [socket.create_server(('0.0.0.0', int(port))) for port in sys.argv[1:]]\n"
            "print(len(held), flush=True)\n"
            "sys.stdin.read()"
        )
        words = [HERE / "on", node, "-u", "root", "python3", "-c", code, *map(str, ports)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            if server.stdout.readline().split() != [str(len(ports))]:
                raise ClusterError(f"cannot listen on {ports} of {node}")
            yield
            server.stdin.close()

    @contextlib.contextmanager
    def slurmd_timeout(self, seconds: int) -> Iterator[None]:
        """Another SlurmdTimeout inside the `with`: how long Slurm waits for a node that says nothing."""
        file = self.lab / "etc" / "slurm" / "slurm.conf"
        usual = file.read_text(encoding="utf-8")
        assert usual.count("SlurmdTimeout=20\n") == 1
        try:
            file.write_text(usual.replace("SlurmdTimeout=20\n", f"SlurmdTimeout={seconds}\n"), encoding="utf-8")
            self._reconfigure(seconds)
            yield
        finally:
            file.write_text(usual, encoding="utf-8")
            self._reconfigure(20)

    def _reconfigure(self, slurmd_timeout: int) -> None:
        self.on("login", "scontrol", "reconfigure", user="root")
        shown = self.on("login", "scontrol", "show", "config").stdout
        if not re.search(rf"^SlurmdTimeout\s+= {slurmd_timeout} sec", shown, re.MULTILINE):
            raise ClusterError(f"Slurm did not take SlurmdTimeout={slurmd_timeout}:\n{shown}")

    def power_off(self, node: str) -> None:
        """End a node without a warning to what runs on it."""
        _script("node_kill.sh", node)

    def power_on(self, node: str) -> None:
        """Boot a node that was powered off."""
        _script("node_up.sh", node)

    def wait_for_idle(self, timeout_s: float) -> None:
        """Wait until Slurm says that every node is idle; raises ClusterError when time is up."""
        deadline = time.monotonic() + timeout_s
        wanted = f"{len(self.nodes)} idle"
        while (said := self.on("login", "sinfo", "-h", "-o", "%D %t").stdout.strip()) != wanted:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"waited {timeout_s:.0f} s for {wanted!r}, sinfo says {said!r}\n{self.report()}"
                )
            time.sleep(0.25)

    def processes(self, node: str) -> list[str]:
        """Processes of alice on a node: "PID ARGUMENTS"."""
        done = self.on(node, "ps", "-u", "alice", "-o", "pid=,args=", user="root", check=False)
        return [line.strip() for line in done.stdout.splitlines()]

    def leftovers(self, node: str) -> list[str]:
        """What a job should have taken away: processes, ports, image mounts, shared memory, temporary files."""
        files = "find /dev/shm /tmp /var/tmp -mindepth 1 -maxdepth 1 -user alice"
        mounts = "grep -E ' (fuse|squashfs)' /proc/mounts"
        ports = 'ss -Hltnpe | grep -w "uid:$(id -u alice)"'
        found = self.on(node, "sh", "-c", f"{files}; {mounts}; {ports}", user="root", check=False).stdout
        return self.processes(node) + found.splitlines()

    def left_after(self, grace_s: float) -> dict[str, list[str]]:
        """`leftovers` of each node that has any `grace_s` seconds from now."""
        deadline = time.monotonic() + grace_s
        while left := {node: found for node in ["login", *self.nodes] if (found := self.leftovers(node))}:
            if time.monotonic() > deadline:
                break
            time.sleep(0.25)
        return left

    def queue(self) -> list[str]:
        """Ids of the jobs that wait, run or are completing."""
        return self.on("login", "squeue", "-h", "-o", "%A").stdout.split()

    def cancel_all(self) -> None:
        """Cancel alice's jobs and wait until none is left in the queue."""
        self.on("login", "scancel", "--user=alice", user="root")
        deadline = time.monotonic() + 120
        while self.queue():
            if time.monotonic() > deadline:
                raise ClusterError(f"jobs are still there 120 s after scancel\n{self.report()}")
            time.sleep(0.5)

    def clear(self) -> None:
        """End and remove on all nodes whatever alice's jobs have there."""
        rest = "find /dev/shm /tmp /var/tmp -mindepth 1 -maxdepth 1 -user alice -exec rm -rf {} +"
        for node in ["login", *self.nodes]:
            self.on(node, "pkill", "-KILL", "-u", "alice", user="root", check=False)
            self.on(node, "sh", "-c", rest, user="root", check=False)

    def report(self, lines: int = 60) -> str:
        """The ends of the logs of Slurm, the nodes and the newest jobs, to show when a test fails."""
        texts = [self.on("login", "sh", "-c", "sinfo; squeue; sacct -X | tail -5", check=False).stdout]
        for pattern in ("nodes/*/console.log", "nodes/*/upper/var/log/slurm/*.log"):
            texts += [_tail(path, 8) for path in sorted(self.lab.glob(pattern))]
        job_logs = [*self.home.glob("*.out"), *self.scratch.glob("*/*.out")]
        job_logs += self.scratch.glob("*/outputs/*/run-*/logs*/*.log")
        for path in sorted(path for path in job_logs if path.stat().st_mtime > self.since):
            texts.append(_tail(path, lines))
        return "\n".join(text for text in texts if text)


def _tail(path: Path, lines: int) -> str:
    text = "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return f"--- {path}\n{text}" if text else ""
