"""Two model folders: what is told, and the exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from merge_helpers import edit_json

from converters.compare import main
from converters.comparing import values
from converters.errors import listing

ROOT = Path(__file__).parents[2]
EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "rope_theta": 1e6,
    "max_position_embeddings": 4096, "transformers_version": "4.56.1",
}  # fmt: skip
TEMPLATE = "{{ messages[0]['content'] }}"


def _tensors() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(3)
    shapes = {EMBED: (6, 4), "model.layers.0.mlp.up_proj.weight": (8, 4), NORM: (4,), HEAD: (6, 4)}
    return {n: torch.randn(s, generator=generator).to(torch.bfloat16) for n, s in shapes.items()}


def _write(folder: Path, tensors: dict[str, Any], shards: int = 1) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            save_file({name: tensors[name] for name in names[i::shards]}, folder / file)
            weight_map |= dict.fromkeys(names[i::shards], file)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "b", "chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The same model in one file and in three."""
    return _write(tmp_path / "a", _tensors()), _write(tmp_path / "b", _tensors(), shards=3)


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code and --json of comparing the pair."""

    def compare(*options: str) -> tuple[int, dict[str, Any]]:
        code = main([str(pair[0]), str(pair[1]), "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    return compare


def test_shards_cut_differently_are_the_same(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(pair[0]), str(pair[1])]) == 0
    out = capsys.readouterr().out
    assert "weights: 4 tensors the same, 0 within the tolerance, 0 different" in out
    assert out.splitlines()[-1] == "the same"


def test_what_differs_is_counted_and_the_worst_comes_first(
    pair: tuple[Path, Path], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    tensors = _tensors()
    tensors[NORM][2] += 0.5
    tensors[EMBED][1, 3] = float("nan")
    tensors[HEAD][0, :2] *= 2
    _write(pair[1], tensors, shards=3)
    code, told = run()
    assert code == 1
    assert not told["same"]
    assert told["weights"]["same"] == 1
    by_name = {d["name"]: d for d in told["weights"]["different"]}
    assert told["weights"]["different"][0]["name"] == EMBED
    assert (by_name[EMBED]["nan_a"], by_name[EMBED]["nan_b"], by_name[EMBED]["first"]) == (0, 1, [1, 3])
    before = _tensors()
    gap = (before[HEAD].double() - tensors[HEAD].double()).abs()
    assert by_name[HEAD]["differing"] == 2
    assert by_name[HEAD]["elements"] == 24
    assert by_name[HEAD]["max_abs"] == gap.max().item()
    assert by_name[HEAD]["max_rel"] == pytest.approx(0.5)
    gap = (before[NORM].double() - tensors[NORM].double()).abs()
    assert by_name[NORM]["max_abs"] == gap.max().item()
    assert by_name[NORM]["max_rel"] == (gap / tensors[NORM].double().abs()).max().item()
    assert by_name[NORM]["first"] == [2]
    assert torch.equal(before[NORM][:2], tensors[NORM][:2])
    assert main([str(pair[0]), str(pair[1])]) == 1
    table = capsys.readouterr().out
    assert re.search(rf"^{re.escape(HEAD)} +6x4 +BF16 +2 of 24 ", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 1),
        (("--atol", "0"), 1),
        (("--atol", "0.6"), 0),
        (("--atol", "0.4"), 1),
        (("--rtol", "100"), 0),
        (("--rtol", "1e-3"), 1),
    ],
)
def test_tolerance(pair: tuple[Path, Path], run: Run, options: tuple[str, ...], code: int) -> None:
    tensors = _tensors()
    tensors[NORM][2] += 0.5
    _write(pair[1], tensors)
    for path in pair[1].glob("model-*"):
        path.unlink()
    (pair[1] / "model.safetensors.index.json").unlink()
    found, told = run(*options)
    assert found == code
    assert (told["weights"]["near"], len(told["weights"]["different"])) == ((0, 1) if code else (1, 0))


def test_a_nan_or_an_infinity_is_never_near(pair: tuple[Path, Path], run: Run) -> None:
    for value in (float("nan"), float("inf")):
        tensors = _tensors()
        tensors[NORM][0] = value
        _write(pair[1], tensors, shards=3)
        code, told = run("--atol", "1e30")
        assert code == 1
        assert told["weights"]["different"][0]["name"] == NORM
    assert told["weights"]["different"][0]["max_abs"] == "inf"


def test_other_types(pair: tuple[Path, Path], run: Run) -> None:
    import torch

    wide = {name: tensor.float() for name, tensor in _tensors().items()}
    _write(pair[1], wide, shards=3)
    edit_json(pair[1] / "config.json", torch_dtype="float32")
    code, told = run()
    assert code == 1
    assert len(told["weights"]["dtypes"]) == 4
    assert told["config"] == ['dtype: "bfloat16" in A, "float32" in B']
    assert run("--ignore-dtype")[0] == 0
    wide[NORM] *= 1 + 2**-12  # below what bfloat16 can tell
    _write(pair[1], wide, shards=3)
    code, told = run("--ignore_dtype")
    assert code == 1
    assert told["weights"]["different"][0]["differing"] == 4
    assert run("--ignore-dtype", "--rtol", "0.001")[0] == 0
    narrow = {name: tensor.to(torch.float16) for name, tensor in _tensors().items()}
    _write(pair[1], narrow, shards=3)
    assert run("--ignore-dtype", "--rtol", "0.001", "--atol", "1e-6")[0] == 0


def test_names_and_shapes(pair: tuple[Path, Path], run: Run) -> None:
    tensors = _tensors()
    tensors["model.extra"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    tensors[EMBED] = tensors[EMBED].reshape(4, 6)
    _write(pair[1], tensors, shards=3)
    code, told = run()
    assert code == 1
    assert told["weights"]["only_a"] == ["model.layers.0.mlp.up_proj.weight"]
    assert told["weights"]["only_b"] == ["model.extra"]
    assert told["weights"]["shapes"] == [f"{EMBED}: [6, 4] in A, [4, 6] in B"]


@pytest.mark.parametrize("holder", [0, 1])
def test_a_tied_model_with_and_without_its_head(
    pair: tuple[Path, Path], run: Run, tmp_path: Path, holder: int
) -> None:
    tensors = _tensors()
    tensors[HEAD] = tensors[EMBED].clone()
    _write(pair[holder], tensors, shards=2)
    del tensors[HEAD]
    shutil.rmtree(pair[1 - holder])
    _write(pair[1 - holder], tensors)
    for path in pair[holder].glob("model*"):
        if "of-00002" not in path.name and path.suffix == ".safetensors":
            path.unlink()
    edit_json(pair[1 - holder] / "config.json", tie_word_embeddings=True)
    code, told = run()
    assert code == 0
    assert any("is its embedding, bit for bit" in note for note in told["notes"])
    assert any("tie_word_embeddings differs" in note for note in told["notes"])
    # Without the flag a loader makes up a head.
    edit_json(pair[1 - holder] / "config.json", tie_word_embeddings=False)
    code, told = run()
    assert code == 1
    assert told["weights"]["only_" + "ab"[holder]] == [HEAD]


def test_an_untied_head_is_not_left_out(pair: tuple[Path, Path], run: Run) -> None:
    tensors = _tensors()
    del tensors[HEAD]
    shutil.rmtree(pair[1])
    _write(pair[1], tensors)
    edit_json(pair[1] / "config.json", tie_word_embeddings=True)
    code, told = run()
    assert code == 1
    assert told["weights"]["only_a"] == [HEAD]
    assert any("is not its embedding" in note for note in told["notes"])


V5 = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
YARN4 = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
YARN5 = {
    "rope_theta": None,
    "rope_parameters": {
        "rope_type": "yarn", "factor": 4, "rope_theta": 1e6, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "lines"),
    [
        pytest.param({}, {"transformers_version": "5.10.4", "_name_or_path": "/x"}, [], id="version"),
        pytest.param({}, {"torch_dtype": None, "dtype": "bfloat16"}, [], id="dtype"),
        pytest.param({}, V5, [], id="rope"),
        pytest.param(YARN4, YARN5, [], id="yarn"),
        pytest.param({}, {"rope_scaling": None, "use_cache": None}, [], id="null"),
        pytest.param(
            {"text_config": {"rope_theta": 5.0}},
            {"text_config": {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}},
            [],
            id="nested",
        ),
        pytest.param({}, {"rope_theta": 1e4}, ["rope.rope_theta: 1000000.0 in A, 10000.0 in B"], id="theta"),
        pytest.param(
            {},
            {"rope_theta": None},
            ['rope: {"rope_theta": 1000000.0, "rope_type": "default"} in A, not set in B'],
            id="no theta",
        ),
        pytest.param(YARN4, V5, None, id="yarn or not"),
        pytest.param({}, {"vocab_size": 7}, ["vocab_size: 6 in A, 7 in B"], id="vocabulary"),
        pytest.param({"x": 1}, {"x": True}, ["x: 1 in A, true in B"], id="one or true"),
    ],
)
def test_config_by_meaning(
    pair: tuple[Path, Path], run: Run, a: dict[str, Any], b: dict[str, Any], lines: list[str] | None
) -> None:
    edit_json(pair[0] / "config.json", **a)
    edit_json(pair[1] / "config.json", **b)
    code, told = run()
    assert code == (lines != [])
    assert told["config"] if lines is None else told["config"] == lines


SILENT = {"torch_dtype": None, "dtype": None}


@pytest.mark.parametrize("side", [0, 1], ids=["A", "B"])
@pytest.mark.parametrize(
    ("one", "other", "note"),
    [
        ({}, SILENT, "dtype is not set in {other}; the types of the weights are the same"),
        (
            {"num_experts": 8, "num_local_experts": 8},
            {"num_local_experts": 8},
            "num_experts and num_local_experts are both set in {one}, to the same",
        ),
        (
            {"text_config": {"num_experts": 8, "num_local_experts": 8}},
            {"text_config": {"num_experts": 8}},
            "text_config.num_experts and num_local_experts are both set in {one}, to the same",
        ),
        ({"bias": float("nan"), "more": [float("nan")]}, {"bias": float("nan"), "more": [float("nan")]}, None),
    ],
    ids=["dtype", "experts", "nested", "nan"],
)
def test_what_the_other_side_need_not_tell(
    pair: tuple[Path, Path], run: Run, one: dict[str, Any], other: dict[str, Any], note: str | None, side: int
) -> None:
    """A merge tells more than its base model, for readers of other versions."""
    edit_json(pair[side] / "config.json", **one)
    edit_json(pair[1 - side] / "config.json", **other)
    code, told = run()
    assert (code, told["config"]) == (0, [])
    names = {"one": "AB"[side], "other": "AB"[1 - side]}
    assert told["notes"] == ([note.format(**names)] if note else [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"num_experts": 8, "num_local_experts": 8}, {"num_local_experts": 4}),
        ({"num_experts": 8, "num_local_experts": 4}, {"num_local_experts": 4}),
        ({"num_experts": 8, "num_local_experts": 8}, {}),
        ({"bias": float("nan")}, {"bias": 1.0}),
    ],
    ids=["other", "two", "none", "nan"],
)
def test_what_differs_although_it_is_told_twice(
    pair: tuple[Path, Path], run: Run, one: dict[str, Any], other: dict[str, Any]
) -> None:
    edit_json(pair[0] / "config.json", **one)
    edit_json(pair[1] / "config.json", **other)
    assert run()[0] == 1


def test_a_silent_dtype_counts_where_the_weights_differ(pair: tuple[Path, Path], run: Run) -> None:
    _write(pair[1], {name: tensor.float() for name, tensor in _tensors().items()}, shards=3)
    edit_json(pair[1] / "config.json", **SILENT)
    assert run()[1]["config"] == ['dtype: "bfloat16" in A, not set in B']


def test_where_a_tokenizer_was_found_is_not_of_it(pair: tuple[Path, Path], run: Run) -> None:
    edit_json(pair[0] / "tokenizer_config.json", is_local=True, local_files_only=False, name_or_path="/x")
    code, told = run()
    assert (code, told["files"]) == (0, [])


def test_tokenizer_and_template_by_content(pair: tuple[Path, Path], run: Run) -> None:
    _, b = pair
    (b / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 1, "a": 0}}}, indent=4))
    edit_json(b / "tokenizer_config.json", chat_template=None)
    (b / "chat_template.jinja").write_text(TEMPLATE)
    code, told = run()
    assert code == 0
    assert told["same_files"] == [
        "chat template",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    edit_json(b / "tokenizer_config.json", eos_token={"content": "b", "lstrip": False})
    assert run()[0] == 0
    (b / "chat_template.jinja").write_text(TEMPLATE + " ")
    edit_json(b / "generation_config.json", eos_token_id=1)
    (b / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 1, "c": 0}}}))
    (b / "special_tokens_map.json").write_text("{}")
    code, told = run()
    assert code == 1
    assert told["files"] == [
        "chat template: differs",
        "generation_config.json: eos_token_id: [1, 0] in A, 1 in B",
        "special_tokens_map.json: only in B",
        "tokenizer.json: model: differs (1 entries in A, 1 in B)",
    ]


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_in_the_form_of_another_program_are_not_of_the_model(
    pair: tuple[Path, Path], run: Run, shards: int
) -> None:
    """mistralai's folders have consolidated.safetensors beside the shards."""
    from safetensors.torch import save_file

    folder = pair[0] if shards == 1 else pair[1]
    save_file({"layers.0.wq": _tensors()[NORM]}, folder / "consolidated.safetensors")
    assert run()[0] == 0


def test_the_relative_difference_has_no_zero_below_it(pair: tuple[Path, Path], run: Run) -> None:
    import torch

    left, right = _tensors(), _tensors()
    left[NORM] = torch.tensor([1.0, 4.0, 0.0, -0.0]).to(torch.bfloat16)
    right[NORM] = torch.tensor([0.0, 2.0, 0.0, 0.0]).to(torch.bfloat16)
    _write(pair[0], left)
    _write(pair[1], right, shards=3)
    code, told = run()
    (found,) = told["weights"]["different"]
    assert (code, found["differing"], found["max_abs"], found["max_rel"]) == (1, 3, 2.0, 1.0)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda b: shutil.rmtree(b), "does not exist"),
    "missing shard": (
        lambda b: (b / "model-00002-of-00003.safetensors").unlink(),
        "names model-00002-of-00003.safetensors, which is missing",
    ),
    "empty shard": (
        lambda b: (b / "model-00002-of-00003.safetensors").write_bytes(b""),
        "model-00002-of-00003.safetensors: 0 bytes",
    ),
    "no weights": (lambda b: [p.unlink() for p in b.glob("model*")], "no tensor"),
    "no config": (lambda b: (b / "config.json").unlink(), "config.json: missing"),
    "half a tokenizer": (
        lambda b: (b / "tokenizer.json").write_text('{"model"'),
        "tokenizer.json: 8 bytes, no JSON",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_named(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, message = BROKEN[name]
    damage(pair[1])
    assert main([str(pair[0]), str(pair[1]), "--json"]) == 1
    caught = capsys.readouterr()
    assert message in caught.err
    told = json.loads(caught.out)
    assert told["same"] is False
    assert message in told["error"]


@pytest.mark.parametrize(
    "arguments", [[], ["a"], ["a", "b", "--atol", "-1"], ["a", "b", "--rtol", "nan"], ["a", "b", "c"]]
)
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_names_out_of_a_file_do_not_reach_the_terminal_raw(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = _tensors()
    tensors["\x1b[31mred\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")] = tensors.pop(NORM)
    _write(pair[1], tensors, shards=3)
    assert main([str(pair[0]), str(pair[1])]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[31mred" in out


def test_a_name_out_of_a_file_cannot_pass_for_another_line(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = _tensors()
    tensors["x\nthe same"] = tensors.pop(NORM)
    tensors[HEAD + "\nthe same"] = tensors.pop(HEAD)
    _write(pair[0], tensors)
    tensors[HEAD + "\nthe same"] = tensors[HEAD + "\nthe same"] + 1
    _write(pair[1], tensors, shards=3)
    edit_json(pair[1] / "config.json", **{"y\nthe same": 1})
    assert main([*map(str, pair)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "the same" not in lines
    assert any(line.startswith(rf"{HEAD}\nthe same  6x4") for line in lines)
    assert r"  y\nthe same: not set in A, 1 in B" in lines


def test_a_problem_cannot_pass_for_another_line() -> None:
    told = str(listing("model: damaged", ["x\n  - y\x1b[0m"], "Copy it again."))
    assert told.splitlines() == ["model: damaged (1 found):", r"  - x\n  - y\x1b[0m", "Copy it again."]


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
def test_a_result_that_cannot_be_printed_is_an_error(pair: tuple[Path, Path], option: list[str]) -> None:
    command = [sys.executable, "-m", "converters.compare", *map(str, pair), *option]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("error: standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_has_an_example_that_works(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    told = capsys.readouterr().out
    assert "max_abs" not in told  # the keys of --json are in the module
    (example,) = re.findall(r"^ +python -m converters\.compare (\S+ \S+) \\\n +(--\S.*)$", told, re.MULTILINE)
    options = example[1].split()
    command = [sys.executable, "-m", "converters.compare", *map(str, pair), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_are_those_of_torch(dtype: str) -> None:
    import torch

    from converters.storage.tensors import TORCH_DTYPES

    if dtype.startswith("float8"):
        bits = torch.arange(256, dtype=torch.uint8)
    elif dtype in ("float16", "bfloat16"):
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    else:
        bits = torch.tensor([1.5, -0.0, float("inf"), float("nan"), 1e-40], dtype=getattr(torch, dtype))
    tensor = bits.view(getattr(torch, dtype))
    width = tensor.element_size()
    words = np.frombuffer(bits.numpy().tobytes(), dtype=f"<u{width}")
    np.testing.assert_array_equal(values.numbers(words, TORCH_DTYPES[dtype]), tensor.double().numpy())
