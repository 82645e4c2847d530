"""A merge that was killed goes on with --resume; what it left is believed only where its checksum says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.merge import main, merge
from converters.writing import hf_writer, journal
from converters.writing.target_folder import target

ROOT = Path(__file__).parents[2]
# 25 tensors: the first, some in the middle, the last, and when all of them are written.
PLACES = (0, 7, 24, 25)

_STOPPING = """
import signal, sys, time
from converters.writing import hf_writer
from converters import merge
count = [0]
last = int(sys.argv.pop(1))
def wait():
    count[0] += 1
    if count[0] > last:
        print("stopped", flush=True)
        while True: time.sleep(0.05)
complete, finish = hf_writer.SafetensorsWriter.complete, hf_writer.SafetensorsWriter.finish
def stopping(self, name):
    if last < 25: wait()
    complete(self, name)
def stopping_at_the_end(self):
    finish(self)
    print("stopped", flush=True)
    if last == 25: time.sleep(60)
hf_writer.SafetensorsWriter.complete = stopping
hf_writer.SafetensorsWriter.finish = stopping_at_the_end
signal.signal(signal.SIGTERM, merge._end)
sys.exit(merge.main(sys.argv[1:]))
"""


@contextmanager
def _stopped(run: Path, out: Path, after: int) -> Iterator[subprocess.Popen[str]]:
    """A merge that stands still after so many tensors."""
    command = [sys.executable, "-c", _STOPPING, str(after), "--local_dir", str(run), "--target_dir", str(out)]
    command += ["--workers", "1", "--max-shard-size", "8000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        try:
            yield process
        finally:
            process.kill()


def _kill(run: Path, out: Path, after: int, how: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
    with _stopped(run, out, after) as process:
        process.send_signal(how)
        assert process.stderr is not None
        return process.wait(20), process.stderr.read()


@pytest.fixture(scope="module")
def whole(unpacked: Recorded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the result."""
    out = tmp_path_factory.mktemp("whole") / "out"
    merge(unpacked.run, out, max_shard_bytes=8000)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that this process writes."""
    names: list[str] = []
    write = hf_writer.SafetensorsWriter.complete

    def noting(self: hf_writer.SafetensorsWriter, name: str) -> None:
        names.append(name)
        write(self, name)

    monkeypatch.setattr(hf_writer.SafetensorsWriter, "complete", noting)
    return names


def _assert_whole(out: Path, whole: dict[str, bytes]) -> None:
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize("after", PLACES)
def test_killed_and_resumed(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], written: list[str], after: int
) -> None:
    out = tmp_path / "out"
    assert _kill(unpacked.run, out, after)[0] == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    assert not (tmp_path / "out.partial" / "config.json").exists()
    merge(unpacked.run, out, max_shard_bytes=8000, resume=True)
    _assert_whole(out, whole)
    # Steps are repeated whole: at most the two other outputs of the step of q, k and v.
    assert 25 - after <= len(written) <= 27 - after


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_what_is_there(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], how: signal.Signals
) -> None:
    code, said = _kill(unpacked.run, tmp_path / "out", 7, how)
    assert code == 128 + how
    assert f"{tmp_path / 'out.partial'} is kept: --resume goes on from there" in said
    assert main(["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out"), "--resume",
                 "--max-shard-size", "8000"]) == 0  # fmt: skip
    _assert_whole(tmp_path / "out", whole)


def test_without_resume_it_begins_anew(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], written: list[str]
) -> None:
    _kill(unpacked.run, tmp_path / "out", 20)
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000)
    _assert_whole(tmp_path / "out", whole)
    assert len(written) == 25


def test_resume_with_nothing_to_resume(unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes]) -> None:
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    _assert_whole(tmp_path / "out", whole)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"F16" ', 1))


@pytest.mark.parametrize("damage", [_flip, _cut, _other_header, Path.unlink])
def test_damaged_tensors_are_written_again(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], written: list[str], damage: object
) -> None:
    """After a power cut a file may have holes that the journal does not know of."""
    _kill(unpacked.run, tmp_path / "out", 25)
    assert callable(damage)
    damage(tmp_path / "out.partial" / "model-00002-of-00004.safetensors")
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    _assert_whole(tmp_path / "out", whole)
    assert 0 < len(written) < 25


def test_what_lies_there_besides_is_removed(unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes]) -> None:
    _kill(unpacked.run, tmp_path / "out", 25)
    (tmp_path / "out.partial" / "model-00006-of-00006.safetensors").touch()
    (tmp_path / "out.partial" / "additional").mkdir()
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    _assert_whole(tmp_path / "out", whole)


def test_a_cut_line_of_the_journal_counts_for_nothing(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], written: list[str]
) -> None:
    _kill(unpacked.run, tmp_path / "out", 25)
    path = tmp_path / "out.partial" / journal.NAME
    path.write_bytes(path.read_bytes()[:-10])
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    _assert_whole(tmp_path / "out", whole)
    assert len(written) == 1


def test_a_damaged_journal_is_an_error(unpacked: Recorded, tmp_path: Path) -> None:
    _kill(unpacked.run, tmp_path / "out", 7)
    path = tmp_path / "out.partial" / journal.NAME
    path.write_bytes(path.read_bytes().replace(b'"crc32"', b'"crc33"'))
    with pytest.raises(ConvertError, match=f"{journal.NAME}: damaged"):
        merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)


@pytest.mark.parametrize("what", ["options", "checkpoint"])
def test_another_plan_is_an_error(recorded: Recorded, tmp_path: Path, what: str) -> None:
    out = tmp_path / "new" / "out"
    _kill(recorded.run, out, 7)
    if what == "checkpoint":
        os.utime(recorded.actor / "dist_ckpt" / "__0_0.distcp")
    with pytest.raises(ConvertError, match="Start without --resume"):
        merge(recorded.run, out, max_shard_bytes=8000 if what == "checkpoint" else 9000, resume=True)
    merge(recorded.run, out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_writer_that_lives_is_left_alone(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], resume: bool
) -> None:
    with _stopped(unpacked.run, tmp_path / "out", 7) as process:
        with pytest.raises(ConvertError, match=f"another merge writes here .process {process.pid} on "):
            merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=resume)
        assert process.poll() is None
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    _assert_whole(tmp_path / "out", whole)


def test_a_file_system_without_locks_goes_by_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(journal.fcntl, "flock", no_locks)
    with target(tmp_path / "out", 0) as partial:
        with pytest.raises(ConvertError, match="another merge writes here"), target(tmp_path / "out", 0):
            pass
        head, *_ = partial.journal.path.read_text().splitlines()
    (tmp_path / "out.partial").mkdir()
    left = tmp_path / "out.partial" / journal.NAME
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left.write_text(json.dumps(json.loads(head) | {"host": "elsewhere"}) + "\n")
    with pytest.raises(ConvertError, match="on elsewhere"), target(tmp_path / "out", 0):
        pass
    left.write_text(json.dumps(json.loads(head) | {"pid": gone.pid}) + "\n")
    with target(tmp_path / "out", 0, resume=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_somebody_else_is_not_touched(unpacked: Recorded, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine").touch()
    with pytest.raises(ConvertError, match="not made by this command"):
        merge(unpacked.run, tmp_path / "out")
    assert (tmp_path / "out.partial" / "mine").exists()


def test_an_error_of_a_resumed_merge_leaves_nothing(recorded: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    shard = recorded.actor / "dist_ckpt" / "__1_1.distcp"
    times = shard.stat().st_mtime_ns
    _kill(recorded.run, out, 2)
    data = bytearray(shard.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(times, times))
    with pytest.raises(ConvertError):
        merge(recorded.run, out, max_shard_bytes=8000, resume=True)
    assert not list(out.parent.iterdir())
