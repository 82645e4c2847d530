"""A result that is not what the checkpoint holds does not pass, and what differs is named."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from merge_helpers import edit_json, load, run_step
from merge_jobs import Recorded
from plans import planned

from converters import convert
from converters.arguments import Options
from converters.comparing import verify
from converters.errors import ConvertError
from converters.hf import hf_model
from converters.hf.hf_files import companions
from converters.merge import merge
from converters.planning.steps import LowRank, Output, Step, whole

ROOT = Path(__file__).parents[2]
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="session")
def merged(unpacked: Recorded, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Step], Path]:
    """The plan of the recorded run (Megatron, interleaved QKV) and what merge writes of it, in several shards."""
    out = tmp_path_factory.mktemp("verify") / "out"
    merge(unpacked.run, out, max_shard_bytes=8_000)
    return planned(unpacked.run)[1], out


@pytest.fixture
def result(merged: tuple[list[Step], Path], tmp_path: Path) -> tuple[list[Step], Path]:
    """A copy to damage."""
    shutil.copytree(merged[1], tmp_path / "out")
    return merged[0], tmp_path / "out"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_merge_writes_passes(merged: tuple[list[Step], Path], unpacked: Recorded, workers: int) -> None:
    steps, out = merged
    seen: list[int] = []
    verify.verify(
        steps,
        out,
        companions=companions([unpacked.actor / "huggingface"]),
        workers=workers,
        progress=seen.append,
    )
    assert len(list(out.glob("*.safetensors"))) > 1
    assert sum(seen) == json.loads((out / INDEX).read_text())["metadata"]["total_size"]


def _uint8() -> Any:
    import torch

    return torch.uint8


def _place(out: Path, name: str) -> tuple[Path, int, int]:
    """File, first byte and number of bytes of a tensor, from the header itself."""
    file = out / json.loads((out / INDEX).read_text())["weight_map"][name]
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return file, 8 + length + begin, end - begin


def _flip(out: Path, name: str, byte: int) -> None:
    file, start, _ = _place(out, name)
    data = bytearray(file.read_bytes())
    data[start + byte] ^= 0x80
    file.write_bytes(data)


def _shard(out: Path, number: int = 2) -> Path:
    return sorted(out.glob("*.safetensors"))[number]


def _rename_tensor(out: Path) -> None:
    for path in (*out.glob("*.safetensors"), out / INDEX):
        path.write_bytes(path.read_bytes().replace(b"model.norm.weight", b"model.morn.weight"))


def _left_over(out: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = _shard(out)
    tensors = load_file(file)
    extra = next(iter(tensors.values())).clone()
    save_file({**tensors, "model.extra.weight": extra}, file)
    index = json.loads((out / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = file.name
    (out / INDEX).write_text(json.dumps(index))


def _other_shape(out: Path) -> None:
    for path in out.glob("*.safetensors"):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        if "model.layers.0.mlp.down_proj.weight" in header:
            header["model.layers.0.mlp.down_proj.weight"]["shape"].reverse()
            text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
            path.write_bytes(data[:8] + text + data[8 + length :])


def _elements_as_total(out: Path) -> None:
    index = json.loads((out / INDEX).read_text())
    index["metadata"]["total_size"] //= 2  # verl writes the number of elements
    (out / INDEX).write_text(json.dumps(index))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (
        lambda out: _shard(out).unlink(),
        r"names model-00003-of-0\d+\.safetensors, which is missing",
    ),
    "empty shard": (lambda out: _shard(out).write_bytes(b""), r"model-00003-of-0\d+\.safetensors: 0 bytes"),
    "short shard": (
        lambda out: _shard(out).write_bytes(_shard(out).read_bytes()[:-2]),
        r"model-00003-of-0\d+\.safetensors: .*truncated",
    ),
    "two shards": (
        lambda out: (_shard(out, 0).write_bytes(b""), _shard(out, 1).unlink()),
        r"model-00002-of-\d+\.safetensors, which is missing(?s:.*)model-00001-of-\d+\.safetensors: 0 bytes",
    ),
    "index names a missing shard": (
        lambda out: (out / INDEX).write_text(
            (out / INDEX).read_text().replace("model-00001-of", "model-00009-of", 1)
        ),
        r"names model-00009-of-\d+\.safetensors, which is missing",
    ),
    "left-over shard": (
        lambda out: shutil.copy(_shard(out), out / "model-00099-of-00099.safetensors"),
        r"and in another shard",
    ),
    "total_size in elements": (_elements_as_total, r"total_size is \d+, the tensors have \d+ bytes"),
    "another name": (
        _rename_tensor,
        r"model\.norm\.weight BF16 \[\d+\] is in no shard(?s:.*)model\.morn\.weight \[\d+\] in .* is not of this",
    ),
    "left-over tensor": (_left_over, r"model\.extra\.weight .* in model-00003\S+ is not of this model"),
    "another shape": (
        _other_shape,
        r"down_proj.weight in \S+ is BF16 \[24, 16\], the plan makes it BF16 \[16, 24\]",
    ),
    "no config": (lambda out: (out / "config.json").unlink(), r"config\.json: missing"),
    "half a config": (lambda out: (out / "config.json").write_text('{"a":'), r"config\.json: no JSON"),
    "no tokenizer": (lambda out: (out / "tokenizer.json").unlink(), r"tokenizer\.json is missing, \S+ has it"),
    "empty tokenizer": (
        lambda out: (out / "tokenizer.json").write_bytes(b""),
        r"tokenizer\.json differs from (?s:.*)tokenizer\.json: 0 bytes, no JSON",
    ),
    "another eos": (
        lambda out: edit_json(out / "generation_config.json", eos_token_id=0),
        r"generation_config\.json differs from \S+ in the block at byte 0",
    ),
    "vocabulary": (
        lambda out: edit_json(out / "config.json", vocab_size=312),
        r"model\.embed_tokens\.weight has 320 rows, config\.json says vocab_size 312",
    ),
    "tied": (
        lambda out: edit_json(out / "config.json", tie_word_embeddings=True),
        r"lm_head\.weight is written, config\.json says tie_word_embeddings true",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(result: tuple[list[Step], Path], unpacked: Recorded, name: str) -> None:
    steps, out = result
    damage, match = DAMAGE[name]
    damage(out)
    with pytest.raises(ConvertError, match=match):
        verify.verify(steps, out, companions=companions([unpacked.actor / "huggingface"]))


@pytest.mark.parametrize("workers", [1, 3])
def test_flipped_bits_are_named_with_place_values_and_checksums(
    result: tuple[list[Step], Path], workers: int
) -> None:
    steps, out = result
    key, head = "model.layers.1.self_attn.k_proj.weight", "lm_head.weight"
    before = {name: tensor.clone() for name, tensor in load(out).items()}
    _flip(out, key, 2 * (16 + 3) + 1)  # sign of [1, 3], rows of 16
    _flip(out, key, 2 * 40)
    file, _, size = _place(out, head)
    _flip(out, head, size - 1)
    after = load(out)
    with pytest.raises(ConvertError) as caught:
        verify.verify(steps, out, workers=workers)
    lines = str(caught.value).splitlines()
    assert "(2 found)" in lines[0]
    told = next(line for line in lines if key in line)
    crcs = [zlib.crc32(side[key].view(_uint8()).numpy().tobytes()) for side in (before, after)]
    value = float(before[key][1, 3])
    assert f"2 of {before[key].numel()} elements differ, the first at [1, 3]: 0x" in told
    assert f"({value:.6g}) in the checkpoint" in told
    assert f"({-value:.6g}) in the file; CRC-32 {crcs[0]:08x} and {crcs[1]:08x}" in told
    told = next(line for line in lines if head in line)
    assert f"{head} in {file.name}: 1 of" in told
    assert f"first at {[n - 1 for n in before[head].shape]}" in told


def test_a_damaged_checkpoint_is_told_with_the_rest(result: tuple[list[Step], Path], recorded: Recorded) -> None:
    _, out = result
    found, steps = planned(recorded.run)
    file, start, _ = _place(out, "model.embed_tokens.weight")
    row = file.read_bytes()[start : start + 32]
    shard = next(path for path in found.weights.glob("*.distcp") if row in path.read_bytes())
    shard.write_bytes(shard.read_bytes().replace(row, bytes(32)))
    _flip(out, "lm_head.weight", 0)
    with pytest.raises(ConvertError, match=r"\(2 found\)") as caught:
        verify.verify(steps, out)
    assert str(shard) in str(caught.value)
    assert "lm_head.weight in model-0" in str(caught.value)


def test_scalars_empty_tensors_and_one_file_without_tokenizer(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "row": torch.arange(5.0)}
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        save_file(tensors, tmp_path / side / "model.safetensors")
    (tmp_path / "b" / "config.json").write_text("{}")
    steps = [whole(tensor) for tensor in hf_model.read_index(tmp_path / "a").values()]
    seen: list[int] = []
    verify.verify(steps, tmp_path / "b", progress=seen.append)
    assert sum(seen) == 24
    save_file({**tensors, "scalar": torch.tensor(3.0)}, tmp_path / "b" / "model.safetensors")
    with pytest.raises(ConvertError, match=r"scalar in model.safetensors: 1 of 1 .* at \[\]: 0x40200000 \(2.5\)"):
        verify.verify(steps, tmp_path / "b")


def test_a_plan_that_gives_too_few_rows_does_not_pass(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(4, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "three").mkdir()
    save_file({"w": torch.zeros(3, 2)}, tmp_path / "three" / "model.safetensors")
    step = whole(hf_model.read_index(tmp_path / "three")["w"])
    step = Step(step.source, (), (Output("w", (4, 2), "F32"),), step.runs)
    with pytest.raises(ConvertError, match=r"w in model.safetensors: the checkpoint gives 3 of 4 rows"):
        verify.verify([step], tmp_path)


def test_the_same_output_twice_is_no_plan(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    step = whole(hf_model.read_index(tmp_path)["w"])
    with pytest.raises(ConvertError, match="w is planned twice"):
        verify.verify([step, step], tmp_path)


def test_config_must_say_what_was_planned(merged: tuple[list[Step], Path]) -> None:
    steps, out = merged
    config = json.loads((out / "config.json").read_text())
    verify.verify(steps, out, config=config)
    with pytest.raises(ConvertError, match=r"config.json: rope_theta: 10000.0 in the file, 5.0 as it must be"):
        verify.verify(steps, out, config={**config, "rope_theta": 5.0})


def _other_type(tmp_path: Path, dtype: str) -> tuple[list[Step], dict[str, Any]]:
    """A float32 model and the plan that writes it as another type, and what torch makes of it."""
    import torch
    from safetensors.torch import save_file

    tensors = {"a": torch.randn(70, 40, generator=torch.Generator().manual_seed(1)), "b": torch.randn(3)}
    (tmp_path / "source").mkdir()
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    steps = []
    for name, tensor in hf_model.read_index(tmp_path / "source").items():
        step = whole(tensor)
        steps.append(Step(step.source, (), (Output(name, tensor.shape, dtype),), step.runs))
    to = {"BF16": torch.bfloat16, "F16": torch.float16}[dtype]
    return steps, {name: tensor.to(to) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_another_type_is_converted_again_and_compared(tmp_path: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file

    steps, converted = _other_type(tmp_path, dtype)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    save_file(converted, out / "model.safetensors")
    verify.verify(steps, out)
    converted["a"].view(torch.int16)[69, 39] += 1  # the last bit: rounded the other way
    save_file(converted, out / "model.safetensors")
    with pytest.raises(ConvertError, match=r"a in model.safetensors: 1 of 2800 elements differ, .* at \[69, 39\]"):
        verify.verify(steps, out)


def test_an_adapter_is_added_again_and_compared(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"w": torch.randn(6, 4), "a": torch.randn(2, 4), "b": torch.randn(6, 2)}
    (tmp_path / "source").mkdir()
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    source = hf_model.read_index(tmp_path / "source")
    step = whole(source["w"])
    step = Step(step.source, (), step.outputs, step.runs, (LowRank(source["a"], source["b"], 0.5),))
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": torch.from_numpy(run_step(step)["w"].view("f4"))}, tmp_path / "model.safetensors")
    verify.verify([step], tmp_path)
    save_file({"w": tensors["w"]}, tmp_path / "model.safetensors")
    with pytest.raises(ConvertError, match="24 of 24 elements differ"):
        verify.verify([step], tmp_path)


MEASURE = """
import sys
from pathlib import Path
from converters import compare
from converters.hf import hf_model
from converters import convert
from converters.arguments import Options
from converters.comparing import verify
from converters.planning.steps import whole
a, b = map(Path, sys.argv[1:])
verify.verify([whole(t) for t in hf_model.read_index(a).values()], b)
assert compare.main([str(a), str(b)]) == 0
# ru_maxrss would count the process that started this one.
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak)
"""


@pytest.mark.engine
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """A tensor of 128 MB on both sides, compared twice."""
    header = {"w": {"dtype": "BF16", "shape": [1 << 14, 1 << 12], "data_offsets": [0, 1 << 27]}}
    text = json.dumps(header).encode().ljust(96)
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "config.json").write_text("{}")
        with (tmp_path / side / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + (1 << 27))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 100_000  # kB


@pytest.mark.parametrize(
    "name", ["extra.safetensors", "pytorch_model.bin", "modeling_x.py", "adapter_config.json"]
)
def test_what_loaders_may_take_besides_is_told(result: tuple[list[Step], Path], name: str) -> None:
    steps, out = result
    (out / name).write_text("{}")
    with pytest.raises(ConvertError, match=rf"{name} is not of this model"):
        verify.verify(steps, out)


@pytest.mark.parametrize("name", ["README.md", "merge_manifest.json"])
def test_a_file_of_the_merge_that_is_missing_is_told(
    result: tuple[list[Step], Path], unpacked: Recorded, name: str
) -> None:
    _, out = result
    options = Options(unpacked.run, out, max_shard_bytes=8_000)
    conversion = convert.prepare(options)
    convert.compare(conversion, out, shown=False)
    (out / name).unlink()
    with pytest.raises(ConvertError, match=f"{name} is missing"):
        convert.compare(conversion, out, shown=False)
