"""Checkpoints that are Hugging Face models already: copied, checked by name, shape and size."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from merge_helpers import assert_same_tensors, edit_json, load
from merge_jobs import Recorded

from converters import json_file
from converters.comparing import values
from converters.errors import ConvertError
from converters.hf import hf_model
from converters.merge import merge
from converters.storage.row_reader import Reader


def _entry(shape: str, end: int) -> str:
    return f'"a": {{"dtype": "BF16", "shape": {shape}, "data_offsets": [0, {end}]}}'


@pytest.fixture
def model(unpacked: Recorded, tmp_path: Path) -> Path:
    """An actor of verl 0.9.1 with mbridge: model/huggingface has the weights, in several shards."""
    from safetensors.torch import save_file

    folder = tmp_path / "run" / "global_step_5" / "actor" / "model" / "huggingface"
    shutil.copytree(unpacked.hf, folder)
    tensors = load(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for i, part in enumerate((names[:9], names[9:]), 1):
        file = f"model-{i:05d}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder.parent / "dist_ckpt").mkdir()
    return folder


def _actor(model: Path) -> Path:
    return model.parents[1]


def test_copied_and_checked(model: Path, unpacked: Recorded, tmp_path: Path) -> None:
    result = merge(_actor(model), tmp_path / "out")
    assert_same_tensors(unpacked.hf, tmp_path / "out")
    assert (result.found.backend, result.found.step) == ("hf", 5)


def test_unknown_architecture_is_copied_with_a_note(model: Path, unpacked: Recorded, tmp_path: Path) -> None:
    edit_json(model / "config.json", architectures=["SomethingNew"])
    result = merge(_actor(model), tmp_path / "out")
    assert any("not compared" in note for note in result.notes)
    assert_same_tensors(unpacked.hf, tmp_path / "out")


def _damage_missing(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()


def _damage_empty(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").write_bytes(b"")


def _damage_truncated(model: Path) -> None:
    path = model / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _damage_header(model: Path) -> None:
    path = model / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"BF61"', 1))


def _damage_type(model: Path) -> None:
    """Of safetensors 0.6, two elements a byte."""
    path = model / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"F4"  ', 1))


def _damage_deep_header(model: Path) -> None:
    text = b'{"a":' * 100_000
    (model / "model-00001-of-00002.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def _damage_deep_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_bytes(b'{"a":' * 100_000)


def _damage_index(model: Path) -> None:
    path = model / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model.norm.weight", "model.norm.weihgt"))


def _damage_no_index(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()


def _damage_empty_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {}}')


def _damage_pipe(model: Path) -> None:
    (model / "model-00001-of-00002.safetensors").unlink()
    os.mkfifo(model / "model-00001-of-00002.safetensors")


def _damage_all(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (_damage_missing, r"names model-00002-of-00002\.safetensors, which is missing"),
        (_damage_empty, r"model-00002-of-00002\.safetensors: 0 bytes"),
        (_damage_truncated, r"model-00002-of-00002\.safetensors.*truncated"),
        (
            _damage_header,
            r"model-00001-of-00002\.safetensors: lm_head\.weight is of the type 'BF61'",
        ),
        (
            _damage_type,
            r"model-00001-of-00002\.safetensors: lm_head\.weight is of the type 'F4'",
        ),
        (_damage_deep_header, r"model-00001-of-00002\.safetensors: damaged header: .*nested too deeply"),
        (_damage_deep_index, r"model\.safetensors\.index\.json: no JSON \(nested too deeply"),
        (_damage_index, "model.norm.weihgt, which no shard holds"),
        (_damage_no_index, "2 shards and no model.safetensors.index.json"),
        (_damage_empty_index, r"model\.safetensors\.index\.json: damaged: weight_map is empty"),
        (_damage_pipe, r"model-00001-of-00002\.safetensors: not a regular file"),
        (_damage_all, "names model-00001-of-00002.safetensors, which is missing"),
    ],
)
def test_damage_is_named(model: Path, tmp_path: Path, damage: object, match: str) -> None:
    assert callable(damage)
    damage(model)
    with pytest.raises(ConvertError, match=f"(?s){match}"):
        merge(_actor(model), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 3}, r"model.layers.2.mlp.down_proj.weight \[16, 24\] is missing"),
        ({"vocab_size": 310}, r"model.embed_tokens.weight is \[320, 16\], config.json makes it \[310, 16\]"),
        ({"tie_word_embeddings": True}, "trained untied"),
    ],
)
def test_config_of_another_model(model: Path, tmp_path: Path, changes: dict[str, object], match: str) -> None:
    edit_json(model / "config.json", **changes)
    with pytest.raises(ConvertError, match=match):
        merge(_actor(model), tmp_path / "out")


def test_config_says_the_type_of_the_weights(model: Path, tmp_path: Path) -> None:
    edit_json(model / "config.json", dtype=None, torch_dtype="float32")
    merge(_actor(model), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["torch_dtype"] == "bfloat16"


def test_missing_companions_come_from_the_base_model(model: Path, unpacked: Recorded, tmp_path: Path) -> None:
    (model / "generation_config.json").unlink()
    for path in model.glob("*token*"):
        path.unlink()
    (model / "chat_template.jinja").write_text("left over, of no tokenizer")
    result = merge(_actor(model), tmp_path / "bare")
    assert any("no tokenizer" in note for note in result.notes)
    merge(_actor(model), tmp_path / "out", base_model=unpacked.hf)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (unpacked.hf / name).read_bytes()


def test_settings_that_are_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConvertError, match=r"config\.json: not a regular file"):
        json_file.read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"[" * 100_000, r"no JSON \(nested too deeply"),
        (b'{"a": 1' + b" " * 100 + b"}", "more than 99 bytes"),
        (b'{"a": ', "no JSON"),
        (b"\xff", "no JSON"),
        (b"[1]", "list where an object is expected"),
        (b"", "no JSON"),
        (b'{"a": ' + b"1" * 41 + b"}", r"no JSON \(a whole number of 41 characters"),
    ],
    ids=["deep", "large", "cut", "bytes", "list", "empty", "digits"],
)
def test_files_of_settings_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, match: str
) -> None:
    if match.startswith("more"):
        monkeypatch.setattr(json_file, "MOST_BYTES", 99)
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=f"config.json: {match}"):
        json_file.read_json(path)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (_entry("[9, 0, 1000000000000000000]", 0), "no tensor has the shape"),
        (_entry(str([1] * 70), 2), r"no tensor has the shape \[1, 1, 1"),
        (_entry("[true]", 2), r"shape \[True\]"),
        (_entry("[1e0]", 2), "shape"),
        (_entry("[1]", 2) + ", " + _entry("[1]", 2), "'a' is there twice"),
        (_entry("[" + "9" * 4000 + "]", 2), "a whole number of 4000 characters"),
    ],
    ids=["large", "axes", "flag", "float", "twice", "digits"],
)
def test_headers_of_no_tensor(tmp_path: Path, header: str, match: str) -> None:
    text = b"{" + header.encode() + b"}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0")
    with pytest.raises(ConvertError, match=f"model.safetensors: damaged header.*{match}") as caught:
        hf_model.read_index(tmp_path)
    assert len(str(caught.value)) < 600


def test_an_empty_tensor_of_a_large_shape_that_numpy_has(tmp_path: Path) -> None:
    text = b"{" + _entry("[3, 0, 1000]", 0).encode() + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert Reader().whole(hf_model.read_index(tmp_path)["a"]).shape == (3, 0, 1000)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float8_e8m0fnu", "float8_e4m3fn"])
def test_types_of_few_models_are_carried_through(model: Path, tmp_path: Path, dtype: str) -> None:
    """Table of experts, block scales: taken over and compared as they are."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "odd"
    folder.mkdir()
    bits = torch.tensor([0, 1, 127, 254], dtype=torch.uint8)
    value = bits.view(torch.float8_e8m0fnu) if dtype == "float8_e8m0fnu" else bits.to(getattr(torch, dtype))
    save_file({"a": value}, folder / "model.safetensors")
    (tensor,) = hf_model.read_index(folder).values()
    assert tensor.nbytes == value.nbytes
    numbers = values.numbers(Reader().whole(tensor), tensor.dtype)
    assert numbers.tolist() == [float(number) for number in value.tolist()]
    assert load_file(folder / "model.safetensors")["a"].dtype == value.dtype
