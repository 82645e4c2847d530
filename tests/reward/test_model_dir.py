from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from reward_servers import ROOT

from reward.errors import ModelDirError
from reward.model_dir import check_model_dir


def edited(model_dir: Path, to: Path, **changes: object) -> Path:
    """A copy of the model with changed keys in config.json; None removes a key."""
    shutil.copytree(model_dir, to)
    config = json.loads((to / "config.json").read_text())
    config.update(changes)
    (to / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return to


AT_ONCE = """
import os, runpy, sys
end = os._exit
os._exit = lambda code: end(99 if "torch" in sys.modules else code)
runpy.run_module("reward.server", run_name="__main__", alter_sys=True)
"""


def start(*options: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a server that does not come up; 99 where it has imported torch, for seconds."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, *options], env=env, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


def test_good_model(model_dir: Path) -> None:
    assert check_model_dir(model_dir)["model_type"] == "qwen2"


def test_missing_path() -> None:
    code, error = start("--model", "/nowhere/model")
    assert code == 1
    assert error.startswith("error: /nowhere/model: no such directory")
    assert "Traceback" not in error


def test_a_path_that_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelDirError, match=r"model\.safetensors: is a file, not a directory"):
        check_model_dir(tmp_path / "model.safetensors")
    with pytest.raises(
        ModelDirError, match=r"run hf download Qwen/Qwen3-0\.6B --local-dir models/Qwen3-0\.6B, and"
    ):
        check_model_dir(Path("Qwen/Qwen3-0.6B"))
    for path in (Path("models/Qwen3-0.6B"), Path("Qwen3-0.6B"), tmp_path / "Qwen/Qwen3-0.6B"):
        with pytest.raises(ModelDirError, match=r"no such directory\. Give --model what save_pretrained wrote\.$"):
            check_model_dir(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "ForSequenceClassification"),
        ({"architectures": None}, "ForSequenceClassification"),
        ({"architectures": 5}, "architectures is 5"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "3 labels"),
        ({"id2label": None}, "2 labels"),
        ({"num_labels": "many", "id2label": None}, "many labels"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "not executed unless --trust-remote-code is given"),
    ],
)
def test_config_that_cannot_serve(
    model_dir: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    model = edited(model_dir, tmp_path / "m", **changes)
    with pytest.raises(ModelDirError, match=message) as error:
        check_model_dir(model)
    assert str(model / "config.json") in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [("config.json", "missing"), ("model.safetensors", "weights"), ("tokenizer", "tokenizer")],
)
def test_missing_files(model_dir: Path, tmp_path: Path, name: str, message: str) -> None:
    model = edited(model_dir, tmp_path / "m")
    for file in model.glob(f"{name}*"):
        file.unlink()
    with pytest.raises(ModelDirError, match=message):
        check_model_dir(model)


@pytest.mark.parametrize("text", ["", "[]", "{", "nul"])
def test_config_that_is_no_object(model_dir: Path, tmp_path: Path, text: str) -> None:
    model = edited(model_dir, tmp_path / "m")
    (model / "config.json").write_text(text)
    with pytest.raises(ModelDirError, match=r"config\.json: (not JSON|expected)"):
        check_model_dir(model)


def test_no_torch_before_the_verdict(model_dir: Path, tmp_path: Path) -> None:
    model = edited(model_dir, tmp_path / "m", architectures=["Qwen2ForCausalLM"])
    probe = (
        "import sys, reward.server as s; code = s.main(['--model', sys.argv[1]]); "
        "sys.exit(9 if 'torch' in sys.modules or 'transformers' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(model)], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120
    )
    assert done.returncode == 1


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: b"", "empty"),
        (lambda whole: b"\x00" * 100, "no safetensors file"),
        (lambda whole: whole[:5], "no safetensors file"),
        (lambda whole: header(b"[1]"), "no safetensors file"),
        (lambda whole: header(b'{"score.weight": {"data_offsets": [0]}}'), "no safetensors file"),
        (lambda whole: whole[:-1], "the copy is not whole"),
        (lambda whole: whole + b"\x00", "the copy is not whole"),
        (lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_damaged_weights(model_dir: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    model = edited(model_dir, tmp_path / "m")
    file = model / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelDirError, match=message) as error:
        check_model_dir(model)
    assert str(file) in str(error.value)
    assert check_model_dir(model, weights=False)["model_type"] == "qwen2"


def test_damaged_weights_end_the_process_at_once(model_dir: Path, tmp_path: Path) -> None:
    model = edited(model_dir, tmp_path / "m")
    (model / "model.safetensors").write_bytes(b"\x00" * 100)
    code, error = start("--model", str(model), "--port", "0")
    assert code == 1
    assert error.startswith(f"error: {model}/model.safetensors: no safetensors file")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}, r"two\.safetensors is missing"),
        ({"weight_map": []}, "not an index of shards"),
        ([], "not an index of shards"),
    ],
)
def test_shards(model_dir: Path, tmp_path: Path, index: object, message: str) -> None:
    model = edited(model_dir, tmp_path / "m")
    (model / "model.safetensors").rename(model / "one.safetensors")
    file = model / "model.safetensors.index.json"
    file.write_text(json.dumps(index))
    with pytest.raises(ModelDirError, match=message):
        check_model_dir(model)
    file.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    check_model_dir(model)


def test_pickled_weights_are_not_looked_into(model_dir: Path, tmp_path: Path) -> None:
    model = edited(model_dir, tmp_path / "m")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    check_model_dir(model)


def test_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelDirError, match=r"LoRA adapter.*merge it into its base model"):
        check_model_dir(tmp_path)


def test_code_of_its_own(model_dir: Path, tmp_path: Path) -> None:
    model = edited(model_dir, tmp_path / "m", auto_map={"AutoModel": "code.Model"})
    with pytest.raises(ModelDirError, match=r"no .*code\.py"):
        check_model_dir(model, trust_remote_code=True)
    (model / "code.py").write_text("raise SystemExit('run')")
    assert check_model_dir(model, trust_remote_code=True)["auto_map"] == {"AutoModel": "code.Model"}
    elsewhere = edited(model_dir, tmp_path / "e", auto_map={"AutoModel": "who/what--code.Model"})
    with pytest.raises(ModelDirError, match="nothing is downloaded"):
        check_model_dir(elsewhere, trust_remote_code=True)


def test_port_taken(model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, error = start("--model", str(model_dir), "--port", port)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in error


@pytest.mark.parametrize("options", [(), ("--model", "x", "--port", "70000"), ("--model", "x", "--threads", "0")])
def test_usage(options: tuple[str, ...]) -> None:
    code, error = start(*options, CONFIG_REWARD_MODEL_PATH="")
    assert code == 2
    assert "usage:" in error


def test_environment_gives_defaults_and_options_win(model_dir: Path) -> None:
    code, error = start(CONFIG_REWARD_MODEL_PATH="/from/environment")
    assert (code, "/from/environment" in error) == (1, True)
    code, error = start("--model", "/from/option", CONFIG_REWARD_MODEL_PATH="/from/environment")
    assert (code, "/from/option" in error) == (1, True)
    code, error = start("--model", str(model_dir), CONFIG_REWARD_DEVICE="tpu")
    assert (code, "CONFIG_REWARD_DEVICE='tpu'" in error) == (2, True)
    code, error = start("--model", str(model_dir), CONFIG_REWARD_SERVER_PORT="http")
    assert (code, "'http'" in error) == (2, True)


@pytest.mark.parametrize("content", ["", " \n", "two words", "é"])
def test_token_file_without_a_token(model_dir: Path, tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.write_text(content)
    code, error = start("--model", str(model_dir), "--token-file", str(token))
    assert code == 1
    assert f"{token}: expected one token" in error
