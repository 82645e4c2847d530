"""config.json of the output, read by transformers 4 and 5, and what is told about files that do not agree."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from read_configs import ROPES, YARN, rotary, write, write_native

from converters.errors import ConvertError
from converters.hf import config_drift, hf_files

ROOT = Path(__file__).parents[2]


def rope_read(folder: Path) -> dict[str, Any]:
    """What transformers 5 reads, without importing a model."""
    import transformers

    parameters: dict[str, Any] = transformers.AutoConfig.from_pretrained(folder).rope_parameters
    return parameters


@pytest.mark.engine
def test_both_versions_read_the_same_rope_type_and_tie_flag(tmp_path: Path) -> None:
    """transformers 5.10 here, 4.56.1 of the second environment: configs of each, adjusted, read by both."""
    python = Path(os.environ.get("VERL061_PYTHON") or ROOT / ".envs/verl-0.6.1/bin/python")
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make env-061`, or set VERL061_PYTHON to such a Python")
    here = {}
    for name in ROPES:
        native = write_native(name, tmp_path / "5" / name, 5)
        assert "rope_theta" not in native
        here[f"native {name}"] = rotary(tmp_path / "5" / name)
        write(config_drift.adjusted(native, "BF16", tied=False)[0], tmp_path / "from 5" / name)
        here[f"from 5 {name}"] = rotary(tmp_path / "from 5" / name)
    command = [str(python), str(Path(__file__).with_name("read_configs.py")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    there = json.loads((tmp_path / "told.json").read_text())
    for name in ROPES:
        here[f"from 4 {name}"] = rotary(tmp_path / "from 4" / name)
        truth = here[f"native {name}"]
        assert there[f"native {name}"]["frequencies"] == truth["frequencies"], name
        for side in (here, there):
            for form in ("from 4", "from 5"):
                read = side[f"{form} {name}"]
                assert read["frequencies"] == pytest.approx(truth["frequencies"], rel=1e-6), (form, name)
                assert read["scaling"] == pytest.approx(truth["scaling"]), (form, name)
                assert (read["dtype"], read["tied"]) == ("torch.bfloat16", False), (form, name)
    # What the changes are for: without them transformers 4 takes a theta of 10000.
    assert there["unchanged default"]["frequencies"] != here["native default"]["frequencies"]


@pytest.mark.parametrize("name", ROPES)
def test_configs_of_transformers_5_say_it_at_the_top_too(tmp_path: Path, name: str) -> None:
    native = write_native(name, tmp_path / "5", 5)
    config, changes = config_drift.adjusted(native, "BF16")
    _, theta, scaling, more = ROPES[name]
    assert config["rope_theta"] == theta
    assert config["rope_parameters"] == native["rope_parameters"]
    assert {**(config.get("rope_scaling") or {}), **scaling} == (config.get("rope_scaling") or {})
    assert bool(config.get("rope_scaling")) == bool(scaling)
    assert config.get("partial_rotary_factor") == more.get("partial_rotary_factor")
    may_change = ("rope_theta", "partial_rotary_factor", "rope_scaling", "torch_dtype", "dtype")
    untouched = {k: v for k, v in config.items() if k not in may_change}
    assert untouched == {k: v for k, v in native.items() if k not in may_change}
    assert any("rope_theta" in change for change in changes)
    write(config, tmp_path / "both")
    assert rope_read(tmp_path / "both") == rope_read(tmp_path / "5")


def test_a_config_that_both_read_is_not_changed() -> None:
    raw = {
        "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16", "tie_word_embeddings": True,
        "rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}, "eos_token_id": [1, 2],
        "odd": {"x": None},
    }  # fmt: skip
    config, changes = config_drift.adjusted(raw, "BF16", tied=True)
    assert changes == []
    assert config == raw
    assert list(config) == list(raw)


def test_rope_by_layer_type_is_left_alone_and_told(tmp_path: Path) -> None:
    import transformers

    transformers.Gemma3TextConfig(num_hidden_layers=2).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert set(raw["rope_parameters"]) > {"full_attention", "sliding_attention"}
    config, changes = config_drift.adjusted(raw, "F32")
    assert not any("rope" in change for change in changes)
    assert config["rope_parameters"] == raw["rope_parameters"]
    assert "rope_theta" not in config
    assert any("by layer type" in note for note in config_drift.drift(raw, {}))


def test_text_of_a_vision_model() -> None:
    raw = {
        "torch_dtype": "bfloat16",
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
    }
    config, changes = config_drift.adjusted(raw, "BF16")
    assert config["text_config"]["rope_theta"] == 7.0
    assert "rope_theta" not in raw["text_config"]
    assert changes == ["text_config.rope_theta: 7.0 at the top too, for readers of transformers 4"]


def test_sections_of_a_default_rope_are_written_too() -> None:
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    config, _ = config_drift.adjusted({"rope_parameters": rope, "torch_dtype": "float16"}, "F16")
    assert config["rope_scaling"] == {"rope_type": "default", "mrope_section": [16, 24, 24]}


def test_a_scaling_without_theta_does_not_hide_the_one_of_rope_parameters(tmp_path: Path) -> None:
    """transformers 5 takes rope_scaling alone where both are there, and a theta of 10000."""
    native = write_native("yarn", tmp_path / "5", 5)
    native["rope_scaling"] = dict(YARN)
    write(native, tmp_path / "before")
    write(config_drift.adjusted(native, "BF16")[0], tmp_path / "after")
    assert rope_read(tmp_path / "5")["rope_theta"] == 1e6
    assert rope_read(tmp_path / "before")["rope_theta"] == 1e4
    assert rope_read(tmp_path / "after") == rope_read(tmp_path / "5")


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        pytest.param(
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
            r"config.json: .*\n.*rope_theta is 1000000.0 in rope_parameters and 10000.0 at the top",
            id="theta",
        ),
        pytest.param(
            {"rope_theta": 1e4, "rope_scaling": {"rope_theta": 1e6, "type": "linear", "factor": 2.0}},
            "rope_theta is 1000000.0 in rope_scaling and 10000.0 at the top",
            id="theta in the scaling",
        ),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {**YARN, "rope_theta": 1e6}},
            r"rope_type is yarn in rope_parameters and linear in rope_scaling\n.*factor is 4.0 .* and 2.0",
            id="scaling",
        ),
    ],
)
def test_two_ropes_are_an_error(raw: dict[str, Any], match: str) -> None:
    with pytest.raises(ConvertError, match=match):
        config_drift.adjusted(raw, "BF16")


@pytest.mark.parametrize(
    ("raw", "dtype", "expected"),
    [
        ({"torch_dtype": "float32"}, "BF16", {"torch_dtype": "bfloat16"}),
        ({"dtype": "bfloat16"}, "BF16", {"dtype": "bfloat16", "torch_dtype": "bfloat16"}),
        ({"dtype": "float32", "torch_dtype": None}, "F16", {"dtype": "float16", "torch_dtype": "float16"}),
        ({}, "F32", {"torch_dtype": "float32"}),
        ({"dtype": {"text": "bfloat16"}}, "F32", {"dtype": {"text": "bfloat16"}}),
        ({"torch_dtype": "bfloat16"}, "F8_E4M3", {"torch_dtype": "bfloat16"}),
    ],
)
def test_type_of_the_weights(raw: dict[str, Any], dtype: str, expected: dict[str, Any]) -> None:
    assert config_drift.adjusted(raw, dtype)[0] == expected


@pytest.mark.parametrize(
    ("raw", "tied", "changes"),
    [
        ({}, True, ["tie_word_embeddings: not written -> true, as the weights are"]),
        ({"tie_word_embeddings": None}, False, ["tie_word_embeddings: not written -> false, as the weights are"]),
        ({"tie_word_embeddings": True}, False, ["tie_word_embeddings: true -> false, as the weights are"]),
        ({"tie_word_embeddings": True}, True, []),
        ({}, None, []),
    ],
)
def test_tie_flag(raw: dict[str, Any], tied: bool | None, changes: list[str]) -> None:
    config, told = config_drift.adjusted({**raw, "torch_dtype": "float32"}, "F32", tied=tied)
    assert told == changes
    assert config.get("tie_word_embeddings") is (raw.get("tie_word_embeddings") if tied is None else tied)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The files of a model whose ends agree: tokens 0 to 3, end 2."""
    folder = tmp_path / "model"
    write({"vocab_size": 4, "eos_token_id": 2, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "pad_token_id": 0}, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<e>"}, {"id": 3}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<e>"}}))
    return folder


def told(folder: Path, base: Path | None = None) -> list[str]:
    config = json.loads((folder / "config.json").read_text())
    return config_drift.drift(config, hf_files.companions([folder]), base)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_files_that_agree_are_not_spoken_of(model: Path) -> None:
    assert told(model) == []
    assert told(model, model) == []


@pytest.mark.parametrize(
    ("file", "values", "note"),
    [
        ("generation_config.json", {"eos_token_id": 0}, "eos_token_id [2] of config.json is not among [0] of"),
        ("generation_config.json", {"eos_token_id": [0, 1]}, "ends a text with '<e>' (2), which is not among"),
        ("generation_config.json", {"eos_token_id": None}, "has no eos_token_id: generation ends at the length"),
        (
            "generation_config.json",
            {"pad_token_id": 4},
            "pad_token_id [4] of generation_config.json is not",
        ),
        ("config.json", {"eos_token_id": [2, 7]}, "eos_token_id [2, 7]"),
        ("config.json", {"pad_token_id": -1}, "pad_token_id [-1] of config.json is not in the vocabulary of 4"),
        ("config.json", {"vocab_size": 3}, "the tokenizer has tokens up to 3, vocab_size is 3"),
        (
            "tokenizer_config.json",
            {"eos_token": "b"},
            "ends a text with 'b' (1), which is not among",
        ),
    ],
)
def test_ends_that_do_not_agree(model: Path, file: str, values: dict[str, Any], note: str) -> None:
    change(model / file, **values)
    notes = told(model)
    if note == "eos_token_id [2, 7]":
        assert [n for n in notes if "[7]" in n]
    else:
        assert [n for n in notes if note in n], notes


def test_no_generation_config_is_told(model: Path) -> None:
    (model / "generation_config.json").unlink()
    assert told(model) == ["no generation_config.json: generation ends at eos_token_id [2] of config.json"]


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        (
            {"rope_theta": 1e4},
            ["config.json: rope.rope_theta: 10000.0 in the checkpoint, 1000000.0 in --base_model"],
        ),
        ({"rms_norm_eps": 1e-5}, ["config.json: rms_norm_eps: 1e-05 in the checkpoint, 1e-06 in --base_model"]),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6}}, []),
        ({"use_cache": False, "torch_dtype": "float32", "new_key": 1, "architectures": ["X"]}, []),
        ({"tie_word_embeddings": True}, ["tie_word_embeddings: true in the checkpoint, false in --base_model"]),
        (
            {"rope_theta": None},
            [
                "config.json: rope: not set in the checkpoint, "
                '{"rope_theta": 1000000.0, "rope_type": "default"} in --base_model'
            ],
        ),
        ({"transformers_version": "5.10.4"}, ["written by transformers 5.10.4 in the checkpoint, 4.51.0 in"]),
    ],
)
def test_a_checkpoint_is_compared_with_its_base_model(
    model: Path, tmp_path: Path, values: dict[str, Any], notes: list[str]
) -> None:
    config = json.loads((model / "config.json").read_text())
    base = write({**config, "transformers_version": "4.51.0", "tie_word_embeddings": False}, tmp_path / "base")
    change(model / "config.json", **{"transformers_version": "4.56.1", **values})
    found = told(model, base)
    assert len(found) == len(notes)
    assert all(note in line for note, line in zip(notes, found, strict=True))


def test_an_eos_list_that_lost_an_entry_is_told(model: Path, tmp_path: Path) -> None:
    base = write(json.loads((model / "config.json").read_text()), tmp_path / "base")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert told(model, base) == [
        "generation_config.json: eos_token_id [2] in the checkpoint, [2, 0] in --base_model"
    ]


def test_a_base_model_without_config_is_told(model: Path, tmp_path: Path) -> None:
    assert any("not compared" in note for note in told(model, tmp_path))


def test_real_tokenizers_agree(tmp_path: Path) -> None:
    """As transformers 5 writes them: the end token of tokenizer_config.json has its number in tokenizer.json."""
    from merge_models import tokenizer

    from converters.hf.token_ids import read_tokens

    real = tokenizer()
    real.save_pretrained(tmp_path)
    tokens = read_tokens(hf_files.companions([tmp_path]))
    assert tokens is not None
    assert (tokens.eos, tokens.eos_id, tokens.largest) == (real.eos_token, real.eos_token_id, len(real) - 1)


# The files themselves.


def test_files_are_copied_as_they_are_through_links_and_with_the_modes_of_new_files(
    model: Path, tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "abc").write_bytes(b"\x0a\x03odd\r\n")
    (blobs / "abc").chmod(0o400)
    (model / "tokenizer.model").symlink_to("../blobs/abc")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tools.jinja").write_text("{{ x }}\r\n")
    (model / "chat_template.jinja").write_bytes("{{ 'ä' }}\r\n".encode())
    (model / "modeling_evil.py").write_text("raise SystemExit")
    (model / "model.safetensors").write_bytes(b"")
    (model / "merges.txt").mkdir()  # no file
    files = hf_files.companions([model], model)
    assert set(files) == {
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
        "chat_template.jinja", "additional_chat_templates/tools.jinja",
    }  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    umask = os.umask(0o027)
    try:
        hf_files.copy(files, out)
    finally:
        os.umask(umask)
    for name, source in files.items():
        assert (out / name).read_bytes() == source.read_bytes()
        assert not (out / name).is_symlink()
        assert (out / name).stat().st_mode & 0o777 == 0o640


def test_a_folder_of_templates_that_is_a_link_is_not_followed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jinja").write_text("x")
    (model / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    assert "additional_chat_templates/x.jinja" not in hf_files.companions([model])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", b"", r"tokenizer\.json: empty"),
        ("tokenizer.json", b'{"model": {"vo', r"tokenizer\.json: 14 bytes, no JSON"),
        ("tokenizer.json", b"[1]", r"tokenizer\.json: list where an object is expected"),
        ("generation_config.json", b"", r"generation_config\.json: empty"),
        ("tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("chat_template.jinja", b"", r"chat_template\.jinja: empty"),
        ("tokenizer.json", b"[" * 100_000, "no JSON"),
    ],
)
def test_damaged_files_are_named(model: Path, name: str, content: bytes, match: str) -> None:
    (model / name).write_bytes(content)
    with pytest.raises(ConvertError, match=match):
        hf_files.companions([model])


def test_a_link_that_leads_nowhere_is_named(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.json").symlink_to("../blobs/gone")
    with pytest.raises(ConvertError, match=r"tokenizer\.json: a link to \.\./blobs/gone, which is not there"):
        hf_files.companions([model])
