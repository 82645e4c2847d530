"""Which checkpoint a job goes on from, with what Megatron and verl wrote, cut at each of its files."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from merge_jobs import Recorded

from converters.checkpoint.locate import TRACKER
from converters.checkpoint.whole import problems_of_step
from converters.resume import find, main, mend

MEGATRON = ["qwen3-v1_with_optimizer", "qwen3-tp2"]


def add_step(folder: Path, number: int, actor: Path, critic: bool = False) -> Path:
    """global_step_N as verl leaves it, with the files of `actor`."""
    step = folder / f"global_step_{number}"
    shutil.copytree(actor, step / "actor")
    if critic:
        shutil.copytree(actor, step / "critic")
    torch.save({"_snapshot": {"_snapshot_step": number}}, step / "data.pt")
    (folder / TRACKER).write_text(str(number))
    return step


def fsdp_step(folder: Path, number: int, actor: Path) -> Path:
    """With the optimizer's and RNG's files, which verl writes beside the model's."""
    step = add_step(folder, number, actor)
    for rank in range(2):
        for kind in ("optim", "extra_state"):
            torch.save({"state": torch.arange(64)}, step / "actor" / f"{kind}_world_size_2_rank_{rank}.pt")
    return step


def hf_step(folder: Path, number: int, model: Path) -> Path:
    actor = folder.parent / f"hf-{number}"
    shutil.copytree(model, actor / "huggingface")
    return add_step(folder, number, actor)


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def plain_fsdp(tmp_path: Path) -> Path:
    """An actor of two ranks; for whether its files are whole it does not matter how they are sharded."""
    actor = tmp_path / "plain_fsdp"
    actor.mkdir()
    for rank in range(2):
        torch.save({"w": torch.arange(64)}, actor / f"model_world_size_2_rank_{rank}.pt")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    return actor


def cut(path: Path) -> None:
    """As a save that ended in the middle leaves a file."""
    os.truncate(path, path.stat().st_size // 2)


def needed_files(step: Path) -> list[str]:
    """Files that verl reads to go on; the texts beside a model are the base model's, too."""
    found = [path.relative_to(step) for path in step.rglob("*") if path.is_file()]
    return sorted(
        str(path)
        for path in found
        if path.suffix in (".pt", ".distcp", ".safetensors")
        or path.name in (".metadata", "metadata.json", "ckpt_contents.json", "fsdp_config.json")
    )


@pytest.mark.engine
@pytest.mark.parametrize("name", [*MEGATRON, "qwen2_tied-pp2", "qwen3_odd-fsdp2", "llama-fsdp1"])
def test_what_verl_wrote_is_whole(written: dict[str, Path], steps: Path, name: str):
    step = add_step(steps, 20, written[name], critic=True)
    assert problems_of_step(step) == []
    assert find(steps).step == 20


def test_the_recorded_run_of_verl_0_6_1_is_whole(recorded: Recorded):
    step = recorded.run / "global_step_3"
    if not (step / "data.pt").exists():
        torch.save({}, step / "data.pt")
    assert problems_of_step(step) == []


@pytest.mark.engine
@pytest.mark.parametrize("name", [*MEGATRON, "fsdp"])
@pytest.mark.parametrize("how", ["cut", "gone", "empty"])
def test_a_written_step_with_any_file_short_or_missing_is_not_resumed(
    written: dict[str, Path], steps: Path, name: str, how: str
):
    for number in (10, 20):
        if name == "fsdp":
            newest = fsdp_step(steps, number, written["qwen3_odd-fsdp2"])
        else:
            newest = add_step(steps, number, written[name])
    _check_every_file(steps, newest, how)


@pytest.mark.parametrize("name", ["recorded", "fsdp", "hf"])
@pytest.mark.parametrize("how", ["cut", "gone", "empty"])
def test_a_step_with_any_file_short_or_missing_is_not_resumed(
    unpacked: Recorded, plain_fsdp: Path, steps: Path, name: str, how: str
):
    for number in (10, 20):
        if name == "fsdp":
            newest = fsdp_step(steps, number, plain_fsdp)
        elif name == "hf":
            newest = hf_step(steps, number, unpacked.hf)
        else:
            newest = add_step(steps, number, unpacked.actor)
    _check_every_file(steps, newest, how, weights_alone=name == "hf")


def _check_every_file(steps: Path, newest: Path, how: str, weights_alone: bool = False) -> None:
    """Each file in turn; the file is named, and the step before takes over."""
    files = needed_files(newest)
    assert len(files) >= 2
    for file in files:
        kept = (newest / file).read_bytes()
        if how == "gone":
            (newest / file).unlink()
        elif how == "empty":
            (newest / file).write_bytes(b"")
        else:
            cut(newest / file)
        found = find(steps)
        assert (found.step, found.changes) == (10, True), file
        gone = weights_alone and how == "gone" and file.startswith("actor")
        named = "no weights" if gone else Path(file).name
        assert any(named in line for line in found.problems[20]), (file, found.problems)
        (newest / file).write_bytes(kept)
    assert find(steps).step == 20


def test_an_index_and_its_shards_must_agree(unpacked: Recorded, steps: Path):
    step = hf_step(steps, 4, unpacked.hf)
    index = step / "actor" / "huggingface" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors, which is missing" in problems_of_step(step)[0]


def test_a_critic_counts(unpacked: Recorded, steps: Path):
    add_step(steps, 1, unpacked.actor, critic=True)
    step = add_step(steps, 2, unpacked.actor, critic=True)
    cut(next((step / "critic").rglob("*.distcp")))
    (problem,) = problems_of_step(step)
    assert problem.startswith("critic/dist_ckpt")
    assert "truncated" in problem
    assert find(steps).step == 1


def test_shards_of_an_earlier_world_size_do_not_count(plain_fsdp: Path, steps: Path):
    step = fsdp_step(steps, 2, plain_fsdp)
    (step / "actor" / "optim_world_size_4_rank_3.pt").write_bytes(b"")
    assert problems_of_step(step) == []


@pytest.mark.parametrize("marker", ["", "  \n", "20", "0", "abc", "\x00\x00", "9" * 5000, "-20", None])
def test_the_marker_names_the_newest_whole_step(unpacked: Recorded, steps: Path, marker: str | None):
    """verl: int() of the text, and a fresh start where the step is not there."""
    for number in (5, 10):
        add_step(steps, number, unpacked.actor)
    (steps / "global_step_20" / "actor").mkdir(parents=True)
    (steps / TRACKER).unlink()
    if marker is not None:
        (steps / TRACKER).write_text(marker)
    before = sorted(path.name for path in steps.rglob("*"))
    assert main([str(steps)]) == 0
    assert (steps / TRACKER).read_text() == "10"
    after = sorted(path.name for path in steps.rglob("*"))
    assert [name for name in after if name != TRACKER] == [name for name in before if name != TRACKER]


def test_a_whole_step_that_the_marker_names_stays(
    unpacked: Recorded, steps: Path, capsys: pytest.CaptureFixture[str]
):
    """Going back is done by writing the marker."""
    for number in (5, 10):
        add_step(steps, number, unpacked.actor)
    (steps / TRACKER).write_text("5\n")
    assert main([str(steps)]) == 0
    assert (steps / TRACKER).read_text() == "5\n"
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "resumes from global_step_5"
    assert "global_step_10 may be whole too" in out[0]


def test_without_a_whole_step_the_job_starts_from_the_beginning(
    unpacked: Recorded, steps: Path, capsys: pytest.CaptureFixture[str]
):
    step = add_step(steps, 20, unpacked.actor)
    shard = next((step / "actor").rglob("*.distcp"))
    size = shard.stat().st_size
    cut(shard)
    assert main([str(steps), "--dry-run"]) == 0
    assert (steps / TRACKER).exists()
    assert f"{TRACKER} would be removed" in capsys.readouterr().out
    assert main([str(steps)]) == 0
    assert not (steps / TRACKER).exists()
    assert step.is_dir()
    out = capsys.readouterr().out
    assert f"{shard.name}: {size // 2} bytes, .metadata needs" in out
    assert out.endswith("starts from the beginning\n")


@pytest.mark.engine
def test_verl_goes_on_from_the_step(unpacked: Recorded, steps: Path):
    """What verl itself reads of the marker that was mended."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    add_step(steps, 5, unpacked.actor)
    cut(add_step(steps, 10, unpacked.actor) / "data.pt")
    mend(find(steps))
    assert find_latest_ckpt_path(str(steps)) == str(steps / "global_step_5")


def test_nothing_of_a_checkpoint_is_executed(unpacked: Recorded, steps: Path, tmp_path: Path):
    class Harmful:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/executed",)

    add_step(steps, 5, unpacked.actor)
    step = add_step(steps, 10, unpacked.actor)
    next((step / "actor").rglob(".metadata")).write_bytes(pickle.dumps(Harmful()))
    found = find(steps)
    assert found.step == 5
    assert "refused" in found.problems[10][0]
    assert not (tmp_path / "executed").exists()


def test_a_step_that_cannot_be_read_just_now_is_no_cut_one(
    unpacked: Recorded, steps: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The marker stays; the fault of a disk is made here by hand."""
    add_step(steps, 5, unpacked.actor)
    (steps / TRACKER).write_text("5")

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("converters.checkpoint.whole.zipfile.ZipFile", fails)
    assert main([str(steps)]) == 1
    assert "Input/output error" in capsys.readouterr().err
    assert (steps / TRACKER).read_text() == "5"


def test_json_and_exit_codes(steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(steps), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["marker_changed"], told["not_whole"]) == (None, False, {})
    assert told["exists"]
    assert main([str(tmp_path / "nowhere"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told.pop("error")
    assert told == {"checkpoint_dir": f"{tmp_path}/nowhere", "exists": False}
    (steps / TRACKER).write_text("7")
    assert main([str(steps), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["marker"], told["marker_changed"]) == (None, "7", True)
    (steps / TRACKER).mkdir()
    assert main([str(steps)]) == 1
    assert "error: " in capsys.readouterr().err


def test_the_command_imports_no_torch(steps: Path):
    code = "import sys, converters.resume; sys.exit(sorted({'torch', 'transformers'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 1])
def test_a_world_size_of_many_ranks_is_told_in_few_lines(
    plain_fsdp: Path, steps: Path, capsys: pytest.CaptureFixture[str], ranks: int
):
    step = add_step(steps, 20, plain_fsdp)
    for rank in range(2):
        shard = step / "actor" / f"model_world_size_2_rank_{rank}.pt"
        shard.rename(shard.with_name(f"model_world_size_1000000_rank_{rank}.pt"))
        if rank >= ranks:
            shard.with_name(f"model_world_size_1000000_rank_{rank}.pt").unlink()
    (step / "actor" / "fsdp_config.json").write_text('{"world_size": 1000000}')
    assert main([str(steps)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 22
    assert f"rank_{ranks}.pt: missing" in out[0]
    assert out[19] == "global_step_20 is not whole: ... and more"


@pytest.mark.parametrize("world", ["0", "-1", "1e999", "1000000000", "true", "null", '"2"'])
def test_a_world_size_that_is_none_is_one_problem(plain_fsdp: Path, steps: Path, world: str):
    step = add_step(steps, 20, plain_fsdp)
    (step / "actor" / "fsdp_config.json").write_text(f'{{"world_size": {world}}}')
    (problem,) = problems_of_step(step)
    assert problem.startswith("actor/fsdp_config.json: world_size is ")


def test_a_folder_that_is_not_there_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A job makes it, and does not ask before there is a step in it."""
    (tmp_path / "fi\nle").write_text("")
    assert main([str(tmp_path / "nowhere")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {tmp_path}/nowhere: does not exist; {tmp_path} has fi\\nle\n"
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file")]) == 1
    assert f"{tmp_path}/file: Not a directory" in capsys.readouterr().err


def test_a_folder_without_a_step_is_told_as_such(steps: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(steps)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{steps} holds no global_step_N", "starts from the beginning"]


def test_a_run_folder_stands_for_its_checkpoints(
    plain_fsdp: Path, steps: Path, capsys: pytest.CaptureFixture[str]
):
    (fsdp_step(steps, 20, plain_fsdp) / "data.pt").unlink()
    assert main([str(steps.parent), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoint_dir"] == str(steps)
    assert list(told["not_whole"]) == ["global_step_20"]


def test_a_name_out_of_a_checkpoint_cannot_pass_for_another_line(
    steps: Path, plain_fsdp: Path, capsys: pytest.CaptureFixture[str]
):
    step = add_step(steps, 20, plain_fsdp)
    shutil.rmtree(step / "actor")
    (step / "actor").mkdir()
    named = {"directories": {"no\x1b[31m\nresumes from global_step_20": 1}}
    (step / "actor" / "ckpt_contents.json").write_text(json.dumps(named))
    assert main([str(steps)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nresumes" not in out
