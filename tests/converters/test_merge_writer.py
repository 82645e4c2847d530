"""The output folder: shards, index, and that it is whole or not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from merge_helpers import assert_same_tensors, load
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.hf_writer import SafetensorsWriter, parse_size, target
from converters.merge import main, merge
from converters.plan import Output

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
    ("text", "size"), [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("17", 17), ("2 kb", 2000)]
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
    writer.write("a", 0, np.zeros((2, 2), "<u2"))
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
    (out / "mine.txt").touch()
    merge(unpacked.run, out, force=True)
    assert not (out / "mine.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    (out / "merge_manifest.json").unlink()
    with pytest.raises(ConvertError, match="not made by this command"):
        merge(unpacked.run, out, force=True)


def test_target_in_the_checkpoint_is_refused(recorded: Recorded) -> None:
    for out in (recorded.run / "hf", recorded.actor / "huggingface" / "x"):
        with pytest.raises(ConvertError, match="lies in the checkpoint"):
            merge(recorded.run, out)
        assert not out.exists()


def test_target_that_is_a_file_or_cannot_be_made(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/out")):
        assert main(["--local_dir", str(unpacked.run), "--target_dir", str(out)]) == 1
        assert str(out.parent) in capsys.readouterr().err


def test_read_only_target(unpacked: Recorded) -> None:
    """As a user who may not write there: root may write anywhere, and becomes another user first."""
    code = (
        "import os, sys; from pathlib import Path; from converters.merge import merge\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: merge(Path('.'), Path(sys.argv[1]))\n"
        "except PermissionError as error: print(error)"
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
        assert done.stdout.startswith("[Errno 13] Permission denied")
        assert f"{locked}/out" in done.stdout
        assert not list(Path(locked).iterdir())


def test_disk_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="bytes free"), target(tmp_path / "out", 10**18):
        pass
    assert not list(tmp_path.iterdir())


_SLOW = (
    "import sys, time; from converters import merge, hf_writer; write = hf_writer.SafetensorsWriter.write\n"
    "def slow(self, name, first_row, rows):\n"
    "    write(self, name, first_row, rows); print(name, flush=True); time.sleep(60 if 'layers.1' in name else 0)\n"
    "hf_writer.SafetensorsWriter.write = slow\n"
    "import signal; signal.signal(signal.SIGTERM, merge._end); sys.exit(merge.main(sys.argv[1:]))"
)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_while_writing(unpacked: Recorded, tmp_path: Path, how: signal.Signals) -> None:
    command = [
        sys.executable,
        "-c",
        _SLOW,
        "--local_dir",
        str(unpacked.run),
        "--target_dir",
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "layers.1" in line:
                break
        process.send_signal(how)
        assert process.wait(20) == (128 + how if how == signal.SIGTERM else -how)
    left = list(tmp_path.iterdir())
    if how == signal.SIGTERM:
        assert not left
    else:
        assert [p.name for p in left] == [f"out.partial-{process.pid}"]
        assert not (left[0] / "config.json").exists()
    assert main(["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out")]) == 0


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
    assert "File too large" in done.stderr
    assert not list(tmp_path.iterdir())


def test_peak_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """64 MB of tensors of 1 MB each through a process that may hold 40 MB more than when it began."""
    import torch
    from safetensors.torch import save_file

    source = tmp_path / "hf"
    source.mkdir()
    save_file(
        {f"t{i}": torch.full((512, 1024), i, dtype=torch.int16) for i in range(64)}, source / "model.safetensors"
    )
    (source / "config.json").write_text('{"architectures": ["NoTable"]}')
    code = (
        "import resource, sys; from converters.merge import main; "
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak(); "
        "code = main(sys.argv[1:]); print(peak() - before); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "--local_dir", str(source), "--target_dir", str(tmp_path / "out")]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 40_000, f"KiB, in {time.monotonic() - begin:.1f} s"
