"""Nothing of a job is left behind: real supervisors that are killed, and files in /dev/shm."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import wait_until

from launch.supervisor import processes, shared_memory
from launch.supervisor.processes import Component

ROOT = Path(processes.__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

# A supervisor with two parts, of which one has a child that is tied to it as `ray start --block` ties its own.
SUPERVISOR = """
import os, sys, threading, time
from pathlib import Path
from launch.supervisor.processes import Component, adopt_orphans
adopt_orphans()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
child = '''
import os, subprocess, sys, time
sys.path.insert(0, os.environ["PYTHONPATH"])
from launch.supervisor.processes import Component
from pathlib import Path
own = Component("own", ["sleep", "600"], Path("log"), dict(os.environ), Path("."))
Path("own").write_text(str(own.pid))
time.sleep(600)
'''
env = dict(os.environ)
parts = [
    Component("ray", [sys.executable, "-c", child], Path("log"), env, Path(".")),
    Component("trainer", ["sleep", "600"], Path("log"), env, Path(".")),
]
while not (Path("own").exists() and Path("own").read_text()):
    time.sleep(0.02)
print(*(part.pid for part in parts), Path("own").read_text(), flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_its_supervisor(tmp_path: Path, number: int):
    """Outside Slurm nobody else would end them; the supervisor has a second thread, as the real one."""
    command = [sys.executable, "-c", SUPERVISOR]
    with subprocess.Popen(command, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(alive, pids))
        supervisor.send_signal(number)
    wait_until(lambda: not any(map(alive, pids)), "end of all")


def test_a_part_is_the_command_itself(tmp_path: Path):
    """Same process, session of its own, its environment and folder as given, its exit code its own."""
    code = "import os; print(os.getpid(), os.getsid(0), os.getcwd(), sorted(os.environ)); raise SystemExit(42)"
    env = {"A": "1", "LC_ALL": "C"}
    part = Component("part", [sys.executable, "-c", code], tmp_path / "log", env, tmp_path)
    wait_until(lambda: part.poll() is not None, "end of the part")
    told = (tmp_path / "log").read_text().split()
    assert part.exit_code == 42
    assert told[:3] == [str(part.pid), str(part.pid), str(tmp_path)]
    assert "PYTHONPATH" not in told


@pytest.mark.parametrize("command", ["no-such-command", "/no/such/command", "./not-executable"])
def test_a_command_that_there_is_not_is_an_error_at_once(tmp_path: Path, command: str):
    (tmp_path / "not-executable").write_text("")
    with pytest.raises(FileNotFoundError, match=command):
        Component("part", [command], tmp_path / "log", dict(os.environ), tmp_path)
    assert not (tmp_path / "log").exists()


def test_what_cannot_be_executed_says_so_in_its_log(tmp_path: Path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x7fELF nonsense")
    bad.chmod(0o755)
    part = Component("part", [str(bad)], tmp_path / "log", dict(os.environ), tmp_path)
    wait_until(lambda: part.poll() is not None, "end of the part")
    assert part.exit_code == 126
    assert "Exec format error" in (tmp_path / "log").read_text()


def test_a_parent_that_is_gone_already(tmp_path: Path):
    """Killed between fork and prctl: the command is not started at all."""
    shim = Path(processes.__file__).with_name("ends_with_parent.py")
    command = [sys.executable, "-I", "-S", str(shim), "1", "touch", str(tmp_path / "started")]
    assert subprocess.run(command, check=False).returncode == 143
    assert not (tmp_path / "started").exists()


# ---- /dev/shm

# A part of a job that leaves files: mapped without an open file, open only, and in a folder.
LEAVES = """
import mmap, os, sys, time
from pathlib import Path
name = sys.argv[1]
Path(f"/dev/shm/{name}-folder").mkdir()
keep = []
for path, how in ((f"{name}-mapped", "map"), (f"{name}-open", "open"), (f"{name}-folder/x", "map")):
    stream = open(f"/dev/shm/{path}", "wb+")
    stream.write(b"x" * 4096)
    stream.flush()
    if how == "map":
        keep.append(mmap.mmap(stream.fileno(), 4096))
        stream.close()
    else:
        keep.append(stream)
for path in sys.argv[2:]:
    keep.append(open(path, "ab+"))
Path(f"{name}-ready").write_text("")
time.sleep(600)
"""
JOB = """
import os, sys, time
from pathlib import Path
from launch.supervisor.node_folder import clean_up
from launch.supervisor.processes import Component, adopt_orphans, reap_orphans, stop
adopt_orphans()
name = sys.argv[1]
command = [sys.executable, "-c", os.environ["LEAVES"], *sys.argv[1:]]
part = Component("part", command, Path(f"{name}-log"), dict(os.environ), Path("."))
while not Path(f"{name}-ready").exists():
    assert part.poll() is None
    time.sleep(0.02)
print("ready", flush=True)
sys.stdin.readline()
if name.endswith("stop"):
    stop([part], 0.5)
if name.endswith("killed"):
    reap_orphans()
    os.kill(part.pid, 9)
    while part.poll() is None:
        time.sleep(0.02)
clean_up(Path(f"{name}-temp"), 0.5)
print("clean", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Of this test's files in /dev/shm."""
    prefix = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield prefix
    for file in sorted(Path("/dev/shm").glob(f"{prefix}*"), reverse=True):
        for inner in file.glob("*") if file.is_dir() else ():
            inner.unlink()
        file.rmdir() if file.is_dir() else file.unlink()


def start_job(name: str, folder: Path, *files: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", JOB, name, *map(str, files)]
    job = subprocess.Popen(command, cwd=folder, env={**ENV, "LEAVES": LEAVES}, stdin=-1, stdout=-1, text=True)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def end_job(job: "subprocess.Popen[str]") -> None:
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write("\n")
    job.stdin.flush()
    assert job.stdout.readline() == "clean\n"


def in_shared_memory(name: str) -> set[str]:
    tops = list(Path("/dev/shm").glob(f"{name}*"))  # other folders there may go while one looks into them
    files = [file for top in tops for file in (top, *top.rglob("*")) if file.is_file()]
    return {str(file.relative_to("/dev/shm")).removeprefix(name) for file in files}


@pytest.mark.parametrize("ending", ["stop", "end", "killed"])
def test_two_jobs_and_their_files(tmp_path: Path, name: str, ending: str):
    """Each takes its own away, also those of a part that was stopped or killed before; what was there before
    the job stays, and what a process of another job uses, too."""
    before, shared = Path(f"/dev/shm/{name}-dataset"), Path(f"/dev/shm/{name}-shared")
    before.write_text("the user's")
    first = start_job(f"{name}-1-{ending}", tmp_path, before, shared)
    second = start_job(f"{name}-2-{ending}", tmp_path, before, shared)
    theirs = {f"-{job}-{ending}-{what}" for job in "12" for what in ("mapped", "open", "folder/x")}
    assert in_shared_memory(name) == {"-dataset", "-shared", *theirs}
    end_job(first)
    assert in_shared_memory(name) == {"-dataset", "-shared", *(path for path in theirs if path.startswith("-2"))}
    end_job(second)
    assert in_shared_memory(name) == {"-dataset", "-shared"}
    for job in (first, second):
        job.communicate("\n")


def test_the_last_job_takes_a_shared_file_away(tmp_path: Path, name: str):
    shared = Path(f"/dev/shm/{name}-shared")
    first = start_job(f"{name}-1-end", tmp_path, shared)
    second = start_job(f"{name}-2-end", tmp_path, shared)
    end_job(second)
    assert "-shared" in in_shared_memory(name)
    end_job(first)
    assert in_shared_memory(name) == set()
    for job in (first, second):
        job.communicate("\n")


def test_a_file_that_took_the_place_of_another_stays(tmp_path: Path):
    path = tmp_path / "psm_1"
    path.write_text("of the job")
    with path.open("rb"):
        (found,) = shared_memory.files_of([os.getpid()], tmp_path)
        assert found.path == str(path)
    shared_memory.note_files([], tmp_path)
    shared_memory._noted.add(found)
    (tmp_path / "new").write_text("of somebody else")
    (tmp_path / "new").replace(path)
    assert shared_memory.remove_noted(tmp_path, since=0.0) == []
    assert path.read_text() == "of somebody else"


def test_looking_again_and_again_costs_nothing(tmp_path: Path):
    """Processes are looked at for new files only, and three times for one that is another job's."""
    looked = []

    def nobody() -> list[int]:
        looked.append(1)
        return []

    def look(times: int) -> int:
        looked.clear()
        for _ in range(times):
            shared_memory.note_new_files(nobody, tmp_path, since)
        return len(looked)

    (tmp_path / "old").write_text("")
    since = time.time() + 0.05
    assert look(3) == 0
    time.sleep(0.1)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "of-another-job").write_text("")
    assert look(9) == 3
    (tmp_path / "newer").write_text("")
    assert look(1) == 1
    with (tmp_path / "newer").open("rb"):
        shared_memory.note_new_files(lambda: [os.getpid()], tmp_path, since)
    assert look(9) == 0
    assert shared_memory.remove_noted(tmp_path, since) == [str(tmp_path / "newer")]
    assert (tmp_path / "folder" / "of-another-job").exists()


def test_a_file_without_a_name_needs_no_care(tmp_path: Path):
    path = tmp_path / "psm_1"
    with path.open("wb"):
        path.unlink()
        assert shared_memory.files_of([os.getpid()], tmp_path) == set()
