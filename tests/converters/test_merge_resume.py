"""A merge that was killed goes on with --resume; what it left is believed only where its checksum says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from merge_jobs import Recorded

from converters import compare
from converters.errors import ConvertError
from converters.merge import main, merge
from converters.writing import hf_writer, journal, target_folder
from converters.writing.earlier_result import MANIFEST
from converters.writing.target_folder import target

ROOT = Path(__file__).parents[2]
# 25 tensors: the first, some in the middle, the last, and when all of them are written.
PLACES = (0, 7, 24, 25)

_STOPPING = """
import signal, sys, time
from converters.writing import hf_writer
from converters import merge
from converters.command_line import run
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
    if last == 25: time.sleep(600)
hf_writer.SafetensorsWriter.complete = stopping
hf_writer.SafetensorsWriter.finish = stopping_at_the_end
signal.signal(signal.SIGTERM, merge._end)
sys.exit(run(merge.main))
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
        return process.wait(60), process.stderr.read()


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
    with pytest.raises(ConvertError, match=f"{journal.NAME}: damaged.*Start without --resume"):
        merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000, resume=True)
    merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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


def _adapter(folder: Path) -> Path:
    """A LoRA adapter of one module, and bases A and B that differ in its weight alone."""
    from safetensors.numpy import save_file

    config = {"architectures": ["NoTable"], "tie_word_embeddings": False}
    for number, base in enumerate("AB"):
        (folder / base).mkdir()
        save_file({"x.weight": np.full((4, 6), number, np.float32)}, folder / base / "model.safetensors")
        (folder / base / "config.json").write_text(json.dumps(config))
    adapter = folder / "adapter"
    adapter.mkdir()
    matrices = {"A": np.ones((2, 6), np.float32), "B": np.ones((4, 2), np.float32)}
    names = {f"base_model.model.x.lora_{letter}.weight": matrix for letter, matrix in matrices.items()}
    save_file(names, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["x"]})
    )
    return adapter


@pytest.mark.parametrize("changed", ["base_model", "base", "adapter"])
def test_an_adapter_on_another_base_is_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Tensors of two bases have the same names and shapes."""
    adapter, out = _adapter(tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(hf_writer.SafetensorsWriter, "finish", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            merge(adapter, out, base_model=tmp_path / "A")
    if changed != "base_model":
        os.utime(
            tmp_path / "A" / "model.safetensors" if changed == "base" else adapter / "adapter_model.safetensors"
        )
    base = tmp_path / ("B" if changed == "base_model" else "A")
    with pytest.raises(ConvertError, match="Start without --resume"):
        merge(adapter, out, base_model=base, resume=True)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


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


@pytest.mark.parametrize("finished", [False, True])
def test_resume_with_force_goes_on_where_it_can(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], written: list[str], finished: bool
) -> None:
    """What the script of a job asks for: it does not know what an earlier attempt left."""
    out = tmp_path / "out"
    _kill(unpacked.run, out, 20)
    if finished:
        out.mkdir()
        (out / MANIFEST).write_text(_told("old"))
    merge(unpacked.run, out, max_shard_bytes=8000, resume=True, force=True)
    _assert_whole(out, whole)
    assert len(written) < 10


def test_resume_with_force_begins_anew_where_it_cannot(
    unpacked: Recorded, tmp_path: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    _left(out, "of another plan")
    merge(unpacked.run, out, max_shard_bytes=8000, resume=True, force=True)
    assert "out.partial: was begun from another checkpoint or with other options" in capsys.readouterr().err
    _assert_whole(out, whole)
    merge(unpacked.run, out, max_shard_bytes=8000, resume=True, force=True)
    _assert_whole(out, whole)


def _told(text: str) -> str:
    """A record of a merge."""
    return json.dumps({"made_by": "converters.merge", "text": text, "files": [MANIFEST]})


def _left(out: Path, plan: str) -> None:
    """What a signal leaves."""
    with pytest.raises(KeyboardInterrupt), target(out, 0, plan):
        raise KeyboardInterrupt


def test_nothing_to_resume_because_it_is_whole(unpacked: Recorded, tmp_path: Path) -> None:
    merge(unpacked.run, tmp_path / "out")
    with pytest.raises(ConvertError, match=r"out: is whole, .*--verify compares"):
        merge(unpacked.run, tmp_path / "out", resume=True)


_KILLED = """
import os, sys
from pathlib import Path
from converters.writing import target_folder
out, place = Path(sys.argv[1]), sys.argv[2]
rename = Path.rename
def killed(self, to):
    if self.name == "out.partial": os._exit(9)
    return rename(self, to)
if place == "between": Path.rename = killed
else: setattr(target_folder, place, lambda *_: os._exit(9))
with target_folder.target(out, 0, "plan", force=True) as partial:
    (partial.folder / "merge_manifest.json").write_text(sys.argv[3])
"""


@pytest.mark.parametrize("place", ["_rename", "between", "_tidy", "_sync_tree"])
def test_killed_in_the_last_moment(tmp_path: Path, place: str) -> None:
    """Either the earlier result is there and the new one can be resumed, or the new one is there."""
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(_told("old"))
    done = subprocess.run([sys.executable, "-c", _KILLED, str(out), place, _told("new")], cwd=ROOT, check=False)
    assert done.returncode == 9
    with pytest.raises(ConvertError, match="Add --force"), target(out, 0, "plan"):
        pass
    assert (out / MANIFEST).read_text() == _told("new" if place == "_tidy" else "old")
    assert not (out / journal.NAME).exists()
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("out", "out.partial")] == []
    with target(out, 0, "plan", force=True, resume=True) as partial:
        assert (partial.folder / MANIFEST).exists() == (place != "_tidy")
        (partial.folder / MANIFEST).write_text(_told("newest"))
    assert (out / MANIFEST).read_text() == _told("newest")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["old", "partial", "sync"])
def test_what_is_replaced_comes_back_when_renaming_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, what: BaseException, when: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(_told("old"))
    rename, sync = Path.rename, target_folder._sync
    raised: list[str] = []

    def failing(at: str, done: Callable[[], object]) -> None:
        if at != step or raised:
            done()
            return
        raised.append(at)
        if when == "after":
            done()
        raise what

    def renaming(self: Path, to: Path) -> None:
        at = "old" if ".old-" in to.name else "partial" if self.name == "out.partial" else ""
        failing(at, lambda: rename(self, to))

    monkeypatch.setattr(Path, "rename", renaming)
    monkeypatch.setattr(
        target_folder, "_sync", lambda path: failing("sync" if path == tmp_path else "", lambda: sync(path))
    )
    with pytest.raises(type(what)), target(out, 0, "plan", force=True) as partial:
        (partial.folder / MANIFEST).write_text(_told("new"))
    assert raised == [step]
    assert (out / MANIFEST).read_text() == _told("old")
    kept = isinstance(what, KeyboardInterrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", *["out.partial"] * kept]
    with target(out, 0, "plan", force=True, resume=True) as partial:
        assert (partial.folder / MANIFEST).exists() == kept
        (partial.folder / MANIFEST).write_text(_told("new"))
    assert (out / MANIFEST).read_text() == _told("new")


def test_what_cannot_be_removed_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def failing(path: Path, ignore_errors: bool = False) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    for number in range(2):
        with monkeypatch.context() as patch, target(out, 0, force=True) as partial:
            patch.setattr(target_folder.shutil, "rmtree", failing)
            (partial.folder / MANIFEST).write_text(_told(str(number)))
    assert (out / MANIFEST).read_text() == _told("1")
    assert "out is whole; not removed: [Errno 16] Device or resource busy" in capsys.readouterr().err
    with target(out, 0, force=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_left_overs_of_dead_processes_of_this_host_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host, out = target_folder._host(), tmp_path / "out"
    dead = [f"out.{kind}-{host}-{gone.pid}{end}" for kind in ("partial", "old") for end in ("", "-removed")]
    kept = [
        f"out.old-{host}-{os.getppid()}",
        f"out.old-elsewhere-{gone.pid}",
        f"out.old-{host}-{gone.pid}-mine",
        f"out.olds-{host}-{gone.pid}",
        f"other.old-{host}-{gone.pid}",
    ]
    out.mkdir()
    (out / MANIFEST).write_text(_told("old"))
    for name in (*dead, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with target(out, 0, force=True):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", *kept])


def test_a_journal_in_the_result_is_no_part_of_it(unpacked: Recorded, tmp_path: Path) -> None:
    """A kill between renaming and the removal of the journal."""
    for name in ("out", "other"):
        merge(unpacked.run, tmp_path / name)
    (tmp_path / "out" / journal.NAME).write_text("{}\n")
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out")]
    assert main([*arguments, "--verify"]) == 0
    assert compare.main([str(tmp_path / "out"), str(tmp_path / "other")]) == 0
    assert main(arguments) == 1
    assert not (tmp_path / "out" / journal.NAME).exists()
