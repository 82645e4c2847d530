"""The output folder: shards, index, and that it is whole or not there."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from merge_helpers import assert_same_tensors, load, snapshot
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.hf import hf_model
from converters.lora import lora_folder
from converters.lora.adapters import Adapter, Pair
from converters.merge import main, merge
from converters.planning.steps import Output, Step, whole
from converters.storage.row_reader import Reader
from converters.storage.tensors import Words
from converters.writing import journal as journals
from converters.writing import progress, run_plan
from converters.writing.hf_writer import SafetensorsWriter, parse_size
from converters.writing.progress import Progress
from converters.writing.target_folder import target

ROOT = Path(__file__).parents[2]


def test_shards_are_bounded_and_the_index_counts_bytes(unpacked: Recorded, tmp_path: Path) -> None:
    result = merge(unpacked.run, tmp_path / "out", max_shard_bytes=8000)
    assert_same_tensors(unpacked.hf, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors = load(tmp_path / "out")
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values()) == result.total_bytes
    shards = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == shards
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    from safetensors import safe_open

    for shard in shards:
        with safe_open(tmp_path / "out" / shard, "np") as file:
            names = list(file.keys())
            assert file.metadata() == {"format": "pt"}
        assert sum(tensors[name].nbytes for name in names) <= 8000 or len(names) == 1
        assert all(index["weight_map"][name] == shard for name in names)


def test_many_shards_load_in_transformers(unpacked: Recorded, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    merge(unpacked.run, tmp_path / "out", max_shard_bytes=1)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 25
    _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("17", 17), ("2 kb", 2000), ("1TB", 10**12), ("1tib", 2**40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "5TBx", "GB", "1.5GB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


def test_writer_refuses_what_is_not_planned(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path, [Output("a", (2, 2), "BF16"), Output("b", (1,), "F32")], 10**9)
    with pytest.raises(ConvertError, match="not in the plan"):
        writer.write("c", 0, np.zeros((2, 2), "<u2"))
    with pytest.raises(ConvertError, match="the plan says"):
        writer.write("a", 0, np.zeros((2, 3), "<u2"))
    with pytest.raises(ConvertError, match="the plan says"):
        writer.write("a", 0, np.zeros((2, 2), "<u4"))
    writer.write("a", 0, np.zeros((1, 2), "<u2"))
    with pytest.raises(ConvertError, match="a: 1 of 2 rows"):
        writer.complete("a")
    writer.write("a", 1, np.zeros((1, 2), "<u2"))
    writer.complete("a")
    with pytest.raises(ConvertError, match="written twice"):
        writer.write("a", 0, np.zeros((2, 2), "<u2"))
    with pytest.raises(ConvertError, match="not written: b"):
        writer.finish()


def test_target_that_exists(unpacked: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    merge(unpacked.run, out)  # an empty folder is fine
    with pytest.raises(ConvertError, match="--force"):
        merge(unpacked.run, out)
    merge(unpacked.run, out, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    (out / "merge_manifest.json").unlink()
    with pytest.raises(ConvertError, match="not made by this command"):
        merge(unpacked.run, out, force=True)


def test_what_somebody_put_beside_a_result_is_not_removed(unpacked: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(unpacked.run, out)
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").touch()
    (out / "data").symlink_to(tmp_path)
    with pytest.raises(ConvertError, match=r"out: holds what no merge wrote: data, notes/mine\.txt\. Move that"):
        merge(unpacked.run, out, force=True)
    assert (out / "notes" / "mine.txt").exists()


def test_results_whose_record_names_no_files(unpacked: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(unpacked.run, out)
    told = json.loads((out / "merge_manifest.json").read_text())
    assert told.pop("files") == sorted(path.name for path in out.iterdir())
    (out / "merge_manifest.json").write_text(json.dumps(told))
    merge(unpacked.run, out, force=True)
    (out / "merge_manifest.json").write_text(json.dumps(told))
    (out / "thesis.tex").touch()
    with pytest.raises(ConvertError, match=r"no merge wrote: thesis\.tex\."):
        merge(unpacked.run, out, force=True)


@pytest.mark.parametrize("told", ["{}", "[]", "", '{"made_by": "other"}'])
def test_a_record_of_something_else_is_none(tmp_path: Path, told: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "merge_manifest.json").write_text(told)
    with pytest.raises(ConvertError, match="not made by this command"), target(tmp_path / "out", 0, force=True):
        pass
    assert (tmp_path / "out" / "merge_manifest.json").exists()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("", "hf"),
        ("", "global_step_3/merged"),
        ("global_step_3", "global_step_3/merged"),
        ("global_step_3/actor", "global_step_3/actor/huggingface/x"),
        ("global_step_3/actor/dist_ckpt", "global_step_3/actor/dist_ckpt/x"),
    ],
)
def test_target_in_the_checkpoint_is_refused(unpacked: Recorded, given: str, place: str) -> None:
    before = snapshot(unpacked.run)
    with pytest.raises(ConvertError, match="lies in the checkpoint"):
        merge(unpacked.run / given, unpacked.run / place)
    assert snapshot(unpacked.run) == before


@pytest.mark.parametrize("place", ["hf", "global_step_3/merged"])
def test_target_beside_what_was_given(recorded: Recorded, place: str) -> None:
    """As scripts for verl's own merger do it."""
    merge(recorded.actor, recorded.run / place)
    assert_same_tensors(recorded.hf, recorded.run / place)


@pytest.mark.parametrize("given", ["", "checkpoints", "checkpoints/global_step_3"])
def test_the_target_of_a_job_is_beside_its_checkpoints(recorded: Recorded, tmp_path: Path, given: str) -> None:
    job = tmp_path / "job"
    job.mkdir()
    recorded.run.rename(job / "checkpoints")
    merge(job / given, job / "hf_model")
    assert_same_tensors(recorded.hf, job / "hf_model")


def test_a_folder_that_somebody_keeps_a_step_in_is_no_run(recorded: Recorded, tmp_path: Path) -> None:
    (recorded.run / "global_step_3").rename(tmp_path / "global_step_3")
    merge(tmp_path / "global_step_3", tmp_path / "out")
    with pytest.raises(ConvertError, match="lies in the checkpoint"):
        merge(tmp_path, tmp_path / "other")


def test_a_target_that_holds_what_is_read_is_refused(unpacked: Recorded, tmp_path: Path) -> None:
    """An earlier result as checkpoint or base model, also under another name."""
    out = tmp_path / "out"
    merge(unpacked.run, out)
    before = snapshot(out)
    (tmp_path / "link").symlink_to(out)
    for checkpoint, base in (
        (out, None),
        (tmp_path / "link", None),
        (unpacked.run, out),
        (unpacked.run, tmp_path / "link"),
    ):
        for to in (out, out / "x", tmp_path):
            with pytest.raises(
                ConvertError, match=r"checkpoint or base model .* lies in it|lies in the checkpoint or base"
            ):
                merge(checkpoint, to, base_model=base, force=True)
    assert snapshot(out) == before


def test_a_target_that_holds_a_file_that_is_read_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(recorded.run, out)
    shard = recorded.actor / "dist_ckpt" / "__0_0.distcp"
    shard.rename(out / shard.name)
    shard.symlink_to(out / shard.name)
    with pytest.raises(ConvertError, match=r"__0_0\.distcp lies in it"):
        merge(recorded.run, out, force=True)
    assert (out / shard.name).exists()


def test_target_that_is_a_file_or_cannot_be_made(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/out")):
        assert main(["--local_dir", str(unpacked.run), "--target_dir", str(out)]) == 1
        assert str(out.parent) in capsys.readouterr().err


def test_target_that_is_a_link(unpacked: Recorded, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, to in (("out", "folder"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(to)
        with pytest.raises(ConvertError, match=f"{name}: is a link to {to}.*Give the folder itself"):
            merge(unpacked.run, tmp_path / name)


def test_all_of_it_is_flushed_to_disk(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has its name, and the folder that has the name after that."""
    templates = recorded.actor / "huggingface" / "additional_chat_templates"
    templates.mkdir()
    (templates / "tools.jinja").write_text("{{ messages }}")
    (templates.parent / "tokenizer.json").write_text("{}")
    fsync, flushed = os.fsync, list[tuple[int, bool]]()

    def noting(file: int) -> None:
        flushed.append((os.fstat(file).st_ino, (tmp_path / "new" / "out").exists()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noting)
    out = tmp_path / "new" / "out"
    merge(recorded.run, out, max_shard_bytes=8000)
    for path in (out, *out.rglob("*")):
        assert (path.stat().st_ino, False) in flushed, path
    assert (out / "additional_chat_templates" / "tools.jinja").is_file()
    assert (out.parent.stat().st_ino, True) in flushed


def test_read_only_target(unpacked: Recorded) -> None:
    """As a user who may not write there: root may write anywhere, and becomes another user first."""
    code = (
        "import os, sys; from pathlib import Path; from converters.merge import merge\n"
        "from converters.errors import ConvertError\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: merge(Path('.'), Path(sys.argv[1]))\n"
        "except ConvertError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as locked:
        Path(locked).chmod(0o555)
        # The recorded run lies below a folder that only its owner may enter: it is given as the current folder.
        done = subprocess.run(
            [sys.executable, "-c", code, f"{locked}/out"],
            cwd=unpacked.run,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{locked}/out: cannot be written: [Errno 13] Permission denied")
        assert not list(Path(locked).iterdir())


def test_disk_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="bytes free"), target(tmp_path / "out", 10**18):
        pass
    assert not list(tmp_path.iterdir())


def test_disk_that_is_full_halfway(unpacked: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else took the space that was free at the beginning."""
    write, count = os.pwrite, [0]

    def full(file: int, data: memoryview, at: int) -> int:
        count[0] += 1
        if count[0] > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    match = r"out: No space left on device after \d+ of 31456 bytes, which are removed again. Make room"
    with pytest.raises(ConvertError, match=match):
        merge(unpacked.run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_file_size_limit_as_a_full_disk(unpacked: Recorded, tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from converters.merge import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-B",
        "-c",
        code,
        "--local_dir",
        str(unpacked.run),
        "--target_dir",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert re.search(r"out: File too large after \d+ of \d+ bytes, which are removed again", done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [1, 3])
def test_peak_memory_does_not_grow_with_the_model(tmp_path: Path, workers: int) -> None:
    """One tensor of 64 MB and 64 of 1 MB through a process that may hold 30 MB more than when it began."""
    import torch
    from safetensors.torch import save_file

    source = tmp_path / "hf"
    source.mkdir()
    tensors = {f"t{i}": torch.full((512, 1024), i, dtype=torch.int16) for i in range(64)}
    tensors["large"] = torch.zeros((1 << 15, 1 << 10), dtype=torch.int16)
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text('{"architectures": ["NoTable"]}')
    # ru_maxrss begins with that of the process that forked: the high-water mark of the new program is in VmHWM.
    code = (
        "import re, sys; from converters.merge import main\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak(); code = main(sys.argv[1:]); print(peak() - before); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "--local_dir", str(source), "--target_dir", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--workers", str(workers)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 30_000, "KiB"


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_write_the_same(unpacked: Recorded, tmp_path: Path, workers: int) -> None:
    merge(unpacked.run, tmp_path / "out", workers=workers, max_shard_bytes=8000)
    merge(unpacked.run, tmp_path / "one", workers=1, max_shard_bytes=8000)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_a_kept_adapter_is_written_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding that was trained beside it may be the largest tensor of the model."""
    from safetensors.numpy import load_file, save_file

    matrices = {"A": np.ones((2, 6), np.float32), "B": np.arange(8, dtype=np.float32).reshape(4, 2)}
    save_file(matrices, tmp_path / "model.safetensors")
    stored = hf_model.read_index(tmp_path)
    pair = Pair(stored["A"], stored["B"], 2.0)
    adapter = Adapter({"x": pair}, {}, {"r": 2, "lora_alpha": 4, "peft_type": "LORA"}, tmp_path)

    def whole_in_memory(*_: object) -> None:
        raise AssertionError("read at once")

    monkeypatch.setattr(Reader, "whole", whole_in_memory)
    lora_folder.write_adapter(adapter, tmp_path / "adapter", ["x.weight"])
    lora_folder.check_written(adapter, tmp_path / "adapter", ["x.weight"])
    written = load_file(tmp_path / "adapter" / lora_folder.WEIGHTS)
    for letter, matrix in matrices.items():
        assert np.array_equal(written[f"base_model.model.x.lora_{letter}.weight"], matrix)


def _steps(folder: Path, count: int) -> list[Step]:
    """Tensors t0, t1, ... of 4 rows, in a safetensors file."""
    from safetensors.numpy import save_file

    save_file({f"t{i}": np.full((4, 8), i, np.float32) for i in range(count)}, folder / "in.safetensors")
    return [whole(tensor) for tensor in hf_model.read_index(folder).values()]


def test_first_error_stops_all_threads(tmp_path: Path) -> None:
    """No thread goes on for long after another has failed, and it is the first error that is raised."""
    steps = _steps(tmp_path, 200)
    seen: list[str] = []
    lock = threading.Lock()

    class Failing(SafetensorsWriter):
        def write(self, name: str, first_row: int, rows: Words, crc: int | None = None) -> None:
            with lock:
                seen.append(name)
                number = len(seen)
            if number == 5:
                raise ConvertError("the fifth")
            if number > 5:
                time.sleep(0.5)
            super().write(name, first_row, rows, crc)

    (tmp_path / "out").mkdir()
    writer = Failing(tmp_path / "out", [output for step in steps for output in step.outputs], 10**9)
    with pytest.raises(ConvertError, match="the fifth"):
        run_plan.copy(steps, writer, 3)
    assert len(seen) < 20
    with pytest.raises(ConvertError, match="not written"):
        writer.finish()


def test_a_thread_that_hangs_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor that is closed under it would be that of another file by the time that it writes."""
    monkeypatch.setattr(run_plan, "_PATIENCE_S", 0.05)
    steps, pwrite = _steps(tmp_path, 3)[1:], os.pwrite
    hangs, goes_on, done = threading.Event(), threading.Event(), threading.Event()
    first = threading.Lock()

    def hanging(file: int, data: memoryview, at: int) -> int:
        if not first.acquire(blocking=False):
            hangs.wait(60)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        hangs.set()
        goes_on.wait(60)
        try:
            return pwrite(file, data, at)
        finally:
            done.set()

    shard = tmp_path / "out" / "model.safetensors"
    shard.parent.mkdir()
    writer = SafetensorsWriter(shard.parent, [output for step in steps for output in step.outputs], 10**9)
    before = shard.read_bytes()
    monkeypatch.setattr(os, "pwrite", hanging)
    with pytest.raises(OSError, match="Input/output error"):
        run_plan.copy(steps, writer, 2)
    with (tmp_path / "other").open("w+b") as other:
        goes_on.set()
        assert done.wait(60)
        assert os.fstat(other.fileno()).st_size == 0
    assert shard.read_bytes() != before
    writer.close()


def test_no_line_is_written_by_a_journal_that_is_closed(tmp_path: Path) -> None:
    journal = journals.begin(tmp_path / "journal", "plan")
    journal.close()
    with (tmp_path / "other").open("w+b") as other:  # has the number of the descriptor that was closed
        with pytest.raises(ValueError, match="closed"):
            journal.add("a", 1)
        assert os.fstat(other.fileno()).st_size == 0


def test_a_journal_in_which_a_thread_hangs_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_PATIENCE_S", 0.05)
    journal = journals.begin(tmp_path / "journal", "plan")
    with journal._lock:
        journal.close()
    journal.add("a", 1)
    journal.close()
    assert "00000001" in (tmp_path / "journal").read_text()


def test_bytes_are_counted_once(tmp_path: Path) -> None:
    steps = _steps(tmp_path, 20)
    (tmp_path / "out").mkdir()
    writer = SafetensorsWriter(tmp_path / "out", [output for step in steps for output in step.outputs], 10**9)
    with Progress(writer.total_bytes, shown=False) as progress:
        run_plan.copy(steps, writer, 3, progress)
    assert progress.bytes == writer.total_bytes == 20 * 4 * 8 * 4


def test_large_steps_come_first_and_the_rest_in_order(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(
        {f"{i:02d}": np.zeros(1000 if i == 19 else 10, np.float32) for i in range(20)}, tmp_path / "a.safetensors"
    )
    steps = [whole(tensor) for tensor in sorted(hf_model.read_index(tmp_path).values(), key=lambda t: t.name)]
    names = [step.source.name for step in run_plan._in_order(steps, 2)]
    assert names == ["19", *(f"{i:02d}" for i in range(19))]
    assert run_plan._in_order(steps, 1) == steps


def test_progress_off_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    told, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Progress(4 * 10**9, stream=told) as bar:
        for _ in range(4):
            clock[0] += 6.0
            bar(10**9)
    assert told.getvalue() == "50 % of 4.0 GB, 167 MB/s, 12 s left\n100 % of 4.0 GB, 167 MB/s, 0 s left\n"
    with Progress(10, shown=False, stream=told) as bar:
        clock[0] += 60.0
        bar(10)
    assert told.getvalue().count("\n") == 2


def test_progress_on_a_terminal_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    told = Terminal()
    with Progress(10**6, stream=told) as bar:
        bar(10**6)
    assert "1.00M" in told.getvalue()
