from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from reward_servers import ROOT

from reward.verl_client.reward_log import RewardLog, reward_log


def numbers(*files: Path) -> list[int]:
    """The values of key n in all lines; every line must be whole."""
    return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    log = RewardLog(tmp_path / "a.jsonl", 2**30)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: log.write({"n": n, "pad": "x" * (n % 997)}), range(3200)))
    assert sorted(numbers(log.path)) == list(range(3200))


def _append(path: str, start: int) -> None:
    log = reward_log(path, 20_000)
    for n in range(start, start + 100):
        log.write({"n": n, "pad": "x" * 100})


def test_processes_share_one_jsonl_file_and_rotate_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "reward_logs.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(str(path), start)) for start in (0, 100, 200)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    files = list(path.parent.iterdir())
    assert {file.name for file in files} == {"reward_logs.jsonl", "reward_logs.1.jsonl"}
    found = numbers(*files)
    assert len(found) == len(set(found)) > 150
    assert all(file.stat().st_size <= 20_000 + 3 * 200 for file in files)


def test_rotation_keeps_one_older_file(tmp_path: Path) -> None:
    log = reward_log(str(tmp_path), 1000)
    for n in range(100):
        log.write({"n": n, "pad": ""})
    older = log.path.with_suffix(".1.jsonl")
    assert log.path.stat().st_size <= 1000
    assert older.stat().st_size <= 1000
    kept = numbers(older, log.path)
    assert kept == list(range(kept[0], 100))
    assert 50 < len(kept) < 100


def test_a_line_over_the_limit_is_still_whole(tmp_path: Path) -> None:
    log = RewardLog(tmp_path / "a.jsonl", 10)
    log.write({"n": 1, "pad": "x" * 100})
    log.write({"n": 2, "pad": "x" * 100})
    assert numbers(log.path.with_suffix(".1.jsonl"), log.path) == [1, 2]


def test_log_that_cannot_be_written_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    log = RewardLog(tmp_path / "file" / "a.jsonl", 1000)
    log.write({"n": 1})
    log.write({"n": 2})
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        RewardLog(tmp_path / "a.jsonl", 1000).write({"n": float("nan")})


@pytest.mark.parametrize("name", ["", "all.jsonl"])
def test_half_line_of_a_killed_process_is_ended(tmp_path: Path, name: str) -> None:
    log = reward_log(str(tmp_path / name), 1000)
    log.path.write_bytes(b'{"n": 1}\n{"n": 2, "prompt": "cut he')
    log.write({"n": 3})
    assert log.path.read_bytes() == b'{"n": 1}\n{"n": 2, "prompt": "cut he\n{"n": 3}\n'


def test_removed_file_is_written_anew(tmp_path: Path) -> None:
    log = reward_log(str(tmp_path / "log"), 1000)
    log.write({"n": 1})
    shutil.rmtree(tmp_path / "log")
    log.write({"n": 2})
    assert numbers(log.path) == [2]


def test_full_disk_takes_the_half_line_back(tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts a write as a full disk does; a child process has it, for limits last."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from reward.verl_client.reward_log import RewardLog\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "log = RewardLog(Path(sys.argv[1]), 10**6, shared=sys.argv[2] == 'shared')\n"
        "for n in range(3): log.write({'n': n, 'pad': 'x' * 60})"
    )
    for kind in ("shared", "own"):
        path = tmp_path / f"{kind}.jsonl"
        command = [sys.executable, "-c", script, str(path), kind]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("cannot be written") == 1
        assert numbers(path) == [0]


def test_failure_on_a_full_disk_is_marked_all_the_same(tmp_path: Path) -> None:
    """With an empty file, until one can be written."""
    script = (
        "import resource, signal, sys; from reward.verl_client.reward_log import mark_failure\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for limit in (0, 1000, 1000):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "    mark_failure(sys.argv[1], {'error': limit})\n"
        "    print([file.read_text() for file in __import__('pathlib').Path(sys.argv[1]).iterdir()])"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["['']", *["['{\"error\": 1000}\\n']"] * 2], done.stderr
    assert done.stderr.count("cannot be written") == 1


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock as Lustre answers it where it is mounted without: no other part is replaced."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    log = reward_log(str(tmp_path / "all.jsonl"), 100)
    for n in range(20):
        log.write({"n": n})
    assert numbers(log.path)[-1] == 19
    assert log.path.with_suffix(".1.jsonl").exists()


def test_process_that_stopped_with_the_turn_holds_no_one_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward.verl_client.reward_log._LONGEST_TURN_S", 0.3)
    path = tmp_path / "all.jsonl"
    log = reward_log(str(path), 10_000)
    log.write({"n": 0})
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        started = time.monotonic()
        for n in range(1, 100):
            log.write({"n": n})
        assert 0.3 <= time.monotonic() - started < 15  # 30 if each of them waited
    assert numbers(path) == list(range(100))


@pytest.mark.parametrize("name", ["", "all.jsonl"])
def test_log_goes_on_after_a_file_handle_went_stale(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ESTALE of a shared file system: the handle is closed behind the log's back."""
    log = reward_log(str(tmp_path / name), 1000)
    log.write({"n": 1})
    os.close(log._fd)
    log.write({"n": 2})
    log.write({"n": 3})
    assert numbers(log.path) == [1, 3]
    assert capsys.readouterr().err.count("cannot be written") == 1
