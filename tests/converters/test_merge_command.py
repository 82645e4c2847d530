"""The command line: what it takes, what it refuses, what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from merge_helpers import assert_same_tensors, edit_json, snapshot
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.hf import hf_files
from converters.merge import main, merge
from converters.writing.earlier_result import MANIFEST

ROOT = Path(__file__).parents[2]
_COMMAND = f"{sys.executable} -m converters.merge"


def test_arguments_of_verls_merger(unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["merge", "--backend", "megatron", "--use_cpu_initialization", f"--local-dir={unpacked.actor}"]
    assert main([*arguments, f"--target_dir={tmp_path / 'out_with_dashes-and_underscores'}"]) == 0
    out = capsys.readouterr().out
    assert "25 tensors, " in out
    assert "step 3" in out
    assert (tmp_path / "out_with_dashes-and_underscores" / "config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--hf_upload_path", "me/model"], "uploaded"),
        (["--hf-upload-path", ""], "uploaded"),
        (["--target-dir", ""], "it is empty"),
        (["--base-model="], "it is empty"),
        (["--max-shard-size", "\u0665GB"], "is no size"),
        (["--backend", "zarr"], "invalid choice"),
        (["--max-shard-size", "big"], "is no size"),
        (["--step", "x"], "is no step number"),
        (["--step", "-1"], "is no step number"),
        (["--workers", "0"], "is no number of threads"),
        (["--lora-alpha", "nan"], "is no alpha"),
        (["--dtype", "int8"], "invalid choice"),
        (["--dry-run", "--verify"], "leave out --verify"),
        (["--tie", "--unknown"], "unrecognized"),
    ],
)
def test_usage_errors(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], match: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out"), *arguments])
    assert caught.value.code == 2
    assert match in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [("--tie-word-embedding", "the model is not tied"), ("--is_value_model", "no value head")],
)
def test_what_is_said_of_the_model_is_checked(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, told: str
) -> None:
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out")]
    assert main([*arguments, option]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_actor_in_the_folder_of_a_critic_is_told_without_options_that_nobody_gave(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.actor.rename(recorded.actor.with_name("critic"))
    arguments = ["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / "out")]
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert "no value head" in told
    assert "global_step_3/critic is a critic's folder by its name: rename it" in told
    assert "--is-value-model" not in told


@pytest.mark.parametrize(("dtype", "how"), [("float16", "rounded to F16"), ("float32", "widened to F32")])
def test_a_dry_run_tells_of_another_type(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, how: str
) -> None:
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out"), "--dry-run"]
    assert main([*arguments, "--dtype", dtype]) == 0
    told = capsys.readouterr().out
    assert re.search(rf"linear_proj\.weight\[0\.\.1\] \S+ \S+ BF16: {how}\n", told)
    assert re.search(rf"linear_fc1\.weight.* rows, one after the other, {how}\n", told)
    assert "as it is" not in told


def test_the_record_beside_a_model_has_no_path(recorded: Recorded, tmp_path: Path) -> None:
    (recorded.actor / "huggingface" / "generation_config.json").unlink()
    recorded.actor.rename(recorded.actor.with_name("critic"))
    step = recorded.run / "global_step_3"
    out = tmp_path / "out"
    (step / "critic").rename(step / "actor")
    assert (
        main(["--local_dir", str(recorded.run), "--target_dir", str(out), "--base_model", str(recorded.hf)]) == 0
    )
    told = json.loads((out / "merge_manifest.json").read_text())
    assert told["source"] == "global_step_3/actor"
    for name in ("merge_manifest.json", "README.md"):
        assert str(tmp_path) not in (out / name).read_text()
        assert str(recorded.hf) not in (out / name).read_text()


def test_verified_reported_and_seen_before(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(out), "--trust-remote-code"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert not out.exists()
    assert main([*arguments, "--verify", "--json"]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["written"] is True
    assert (report["tensors"], report["bytes"], report["step"]) == (25, planned["bytes"], 3)
    assert report["verified"] is True
    assert "note: --trust-remote-code has no effect" in told.err
    assert {"README.md", "merge_manifest.json", "model.safetensors"} <= {path.name for path in out.iterdir()}


def test_verify_of_what_is_there_writes_nothing(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(out)]
    assert main(arguments) == 0
    before = snapshot(out)
    assert main([*arguments, "--verify"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"out: is there already, only compared: 25 tensors, \d+ bytes, BF16, with /", told)
    assert "byte for byte" in told
    assert snapshot(out) == before
    weights = bytearray((out / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "model.safetensors").write_bytes(weights)
    assert main([*arguments, "--verify"]) == 1
    assert "model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_another_type_is_written_and_verified(unpacked: Recorded, tmp_path: Path, dtype: str) -> None:
    import torch

    out = tmp_path / "out"
    assert main(["--local_dir", str(unpacked.run), "--target_dir", str(out), "--dtype", dtype, "--verify"]) == 0
    assert_same_tensors(unpacked.hf, out, getattr(torch, dtype))
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype


@pytest.mark.parametrize("base", ["nothing", "empty"])
def test_base_model_that_is_none(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str
) -> None:
    (tmp_path / "empty").mkdir()
    (recorded.actor / "huggingface" / "config.json").unlink()
    arguments = ["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / "out")]
    assert main([*arguments, "--base_model", str(tmp_path / base)]) == 1
    assert str(tmp_path / base) in capsys.readouterr().err


def test_as_a_module(unpacked: Recorded, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "converters.merge", "--local_dir", str(tmp_path / "no"), "--target_dir", "x"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path / 'no'}: does not exist")


ESCAPE, BELL = "\x1b[2J\x1b]0;title", "\x07"


def test_words_of_a_checkpoint_do_not_reach_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In names of tensors that errors list, in values that notes tell, in the folder's name."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / f"model{ESCAPE}{BELL}"
    folder.mkdir()
    save_file({f"a{ESCAPE}{BELL}": torch.zeros(2)}, folder / "model.safetensors")
    config = {"architectures": [f"Other{ESCAPE}"], "torch_dtype": f"float32{BELL}", "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    arguments = ["--local_dir", str(folder), "--target_dir", str(tmp_path / f"out{BELL}")]
    assert main([*arguments, "--dry-run"]) == 0
    assert main([*arguments, "--verify"]) == 0
    assert main([*arguments, "--verify"]) == 0
    config["architectures"] = ["LlamaForCausalLM"]
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    (folder / "config.json").write_text(json.dumps({**config, **dict.fromkeys(sizes, 1)}))
    assert main(arguments) == 1
    told = capsys.readouterr()
    for text in (told.out, told.err):
        assert "\\x1b[2J" in text
        assert not {"\x1b", "\x07"} & set(text)
    assert "note: no table for Other\\x1b" in told.err
    assert "a\\x1b[2J\\x1b]0;title\\x07" in told.err.partition("error: ")[2]


@pytest.mark.parametrize("name", ["merges.txt", "config.json", "additional_chat_templates/x.jinja"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_out_of_a_checkpoint_is_not_followed(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, absolute: bool
) -> None:
    """The result would bring a file of this machine along."""
    link = recorded.actor / "huggingface" / name
    link.parent.mkdir(exist_ok=True)
    secret = tmp_path / "secret"
    secret.write_bytes(link.read_bytes() if link.exists() else b"token")
    link.unlink(missing_ok=True)
    link.symlink_to(secret if absolute else os.path.relpath(secret, link.parent))
    arguments = ["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert f"{link}: a link to {secret}, out of the folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_links_within_the_folder_in_the_hubs_cache_and_in_the_base_model(
    unpacked: Recorded, tmp_path: Path
) -> None:
    blobs, model, base = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc", tmp_path / "base"
    for folder in (blobs, model, base):
        folder.mkdir(parents=True)
    for path in unpacked.hf.iterdir():
        (blobs / path.name).write_bytes(path.read_bytes())
        (model / path.name).symlink_to(f"../../blobs/{path.name}")
    (model / "vocab.txt").write_text("a")
    (model / "merges.txt").symlink_to("vocab.txt")
    (base / "config.json").symlink_to(model / "config.json")
    merge(model, tmp_path / "out")
    assert (tmp_path / "out" / "merges.txt").read_text() == "a"
    (base / "vocab.txt").symlink_to(model / "vocab.txt")
    assert hf_files.companions([base], base) == {"vocab.txt": base / "vocab.txt"}
    with pytest.raises(ConvertError, match=r"vocab\.txt: a link to "):
        hf_files.companions([base])


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ({"AutoModel": "modeling_new.Model", "AutoConfig": "configuration_new.Config"}, True),
        ({"AutoModel": "owner/name--modeling_new.Model"}, False),
        ({}, False),
    ],
)
def test_a_model_that_needs_its_code_is_not_copied_without(
    unpacked: Recorded, tmp_path: Path, code: dict[str, str], refused: bool
) -> None:
    model = tmp_path / "model"
    shutil.copytree(unpacked.hf, model)
    edit_json(model / "config.json", architectures=["NewForCausalLM"], auto_map=code)
    if not refused:
        merge(model, tmp_path / "out")
        return
    told = r"config\.json: auto_map names code \(configuration_new\.py, modeling_new\.py\)"
    with pytest.raises(ConvertError, match=told):
        merge(model, tmp_path / "out")


def test_code_of_a_tokenizer_is_told(recorded: Recorded, tmp_path: Path) -> None:
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_new.Slow", None]}}
    (recorded.actor / "huggingface" / "tokenizer_config.json").write_text(json.dumps(settings))
    (recorded.actor / "huggingface" / "tokenizer.json").write_text("{}")
    notes = merge(recorded.run, tmp_path / "out").notes
    assert [note for note in notes if "names code that is not copied: tokenization_new.py" in note]


def test_names_that_are_not_utf8(unpacked: Recorded, tmp_path: Path) -> None:
    """Of the folders, in config.json, in what is printed; as a process, whose streams are strict."""
    checkpoint = tmp_path / os.fsdecode(b"actor\xff\xc3\xa9")
    shutil.copytree(unpacked.actor, checkpoint)
    edit_json(
        checkpoint / "huggingface" / "config.json", torch_dtype="float32", note="\ud83d", _name_or_path="a/\ud83d"
    )
    for number, options in enumerate([[], ["--dry-run"]]):
        out = tmp_path / os.fsdecode(b"out\xff\xc3\xa9%d" % number)
        command = [
            sys.executable,
            "-m",
            "converters.merge",
            "--local_dir",
            checkpoint,
            "--target_dir",
            out,
            *options,
        ]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert "out" in done.stdout
        assert out.exists() != ("--dry-run" in options)
    written = json.loads((tmp_path / os.fsdecode(b"out\xff\xc3\xa90") / "config.json").read_text())
    assert written["note"] == "\ud83d"


def test_a_tensor_whose_name_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Other"]}')
    head = json.dumps({"a\ud83d": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (model / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    assert main(["--local_dir", str(model), "--target_dir", str(tmp_path / "out")]) == 1
    assert "a\\ud83d" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ("--json", ">/dev/full 2>/dev/full"),
        ("", ">&- 2>&-"),
        ("", "| true"),
        ("--json", "2>&1 | true"),
        ("--json", "2>&-"),
    ],
)
def test_a_whole_result_is_told_by_the_exit_code(
    unpacked: Recorded, tmp_path: Path, how: str, options: str
) -> None:
    out = tmp_path / "out"
    command = f"{_COMMAND} --trust-remote-code {options} --local_dir {unpacked.run} --target_dir {out}"
    script = f"set -o pipefail; {command} {how}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Error" in done.stderr) == (0, False)
    assert (out / "config.json").is_file()
    if how == "2>&-":
        assert json.loads(done.stdout)["written"] is True


def test_a_plan_that_nobody_can_read_is_an_error(unpacked: Recorded, tmp_path: Path) -> None:
    script = f"{_COMMAND} --dry-run --local_dir {unpacked.run} --target_dir {tmp_path / 'out'} >/dev/full"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("foreign", "holds what no merge wrote"),
        ("earlier", "Add --force"),
        ("full", "not made by this command"),
        ("file", "is no folder"),
        ("run/out", "lies in the checkpoint"),
        ("new", None),
    ],
)
def test_a_dry_run_tells_that_the_target_is_taken(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, told: str | None
) -> None:
    (tmp_path / "file").touch()
    for name in ("foreign", "earlier", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / "earlier" / "mine").unlink()
    for name in ("foreign", "earlier"):
        (tmp_path / name / MANIFEST).write_text('{"made_by": "converters.merge", "files": []}')
    before = snapshot(tmp_path)
    assert (
        main(["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / where), "--dry-run", "--json"]) == 0
    )
    refused = [note for note in json.loads(capsys.readouterr().out)["notes"] if "would be refused" in note]
    assert len(refused) == (told is not None)
    assert told is None or told in refused[0]
    assert snapshot(tmp_path) == before


def test_options_without_effect_are_told(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out"), "--private"]
    assert main([*arguments, "--lora", "keep", "--lora-alpha", "3", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "note: --lora keep has no effect: no LoRA adapter" in told
    assert "note: --lora-alpha has no effect: no LoRA adapter" in told


def test_quantized_weights_that_keep_their_type_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import save_file

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Other"]}')
    weights = {
        "a": torch.zeros(2, dtype=torch.float8_e4m3fn),
        "b": torch.zeros(2),
        "c": torch.zeros(2, dtype=torch.int8),
    }
    save_file(weights, model / "model.safetensors")
    arguments = ["--local_dir", str(model), "--target_dir", str(tmp_path / "out"), "--dry-run"]
    assert main([*arguments, "--dtype", "bfloat16"]) == 0
    assert "note: --dtype: F8_E4M3 stays as it is, not BF16 (tensors: 1)" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "--dtype" not in capsys.readouterr().out


def test_interrupted_while_it_begins(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "converters.merge", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
