"""What --dry-run shows: short for a person at any size, whole as JSON, and what merge then writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from merge_helpers import snapshot
from merge_jobs import Recorded
from plans import planned

from converters.checkpoint.locate import Checkpoint
from converters.families import Run
from converters.hf.hf_files import companions
from converters.merge import merge
from converters.planning import dry_run
from converters.planning.dry_run import DryRun
from converters.planning.fold import fold, split_text
from converters.planning.steps import LowRank, Output, Step, whole
from converters.storage.tensors import GlobalTensor


def _tensor(name: str, *shape: int, dtype: str = "BF16") -> GlobalTensor:
    return GlobalTensor(name, shape, dtype, ())


def _of(steps: list[Step], target: Path, max_shard_bytes: int = 5 * 10**9) -> DryRun:
    found = Checkpoint(Path("run/actor"), 7, "megatron", "v2", Path("run/actor/model/dist_ckpt"), None)
    return DryRun(found, steps, Path("base/config.json"), {}, target, max_shard_bytes, ("a note",))


def mixture_of_experts(layers: int = 10, experts: int = 128) -> list[Step]:
    """About 3,500 tensors: the first layer dense, the others with experts stacked on the second axis."""
    H, F = 512, 64
    steps = [whole(_tensor("model.embed_tokens.weight", 1000, H))]
    up, down = (
        _tensor(f"decoder.layers.mlp.experts.linear_{fc}.weight", layers, experts, *shape)
        for fc, shape in (("fc1", (2 * F, H)), ("fc2", (H, F)))
    )
    runs = (Run(0, F, 0, 0), Run(F, F, 1, 0))
    for layer in range(layers):
        norm = f"model.layers.{layer}.input_layernorm.weight"
        steps.append(
            Step(
                _tensor("decoder.layers.input_layernorm.weight", layers, H), (layer,),
                (Output(norm, (H,), "BF16"),), (Run(0, H, 0, 0),),
            )
        )  # fmt: skip
        if layer == 0:
            continue
        for expert in range(experts):
            of = f"model.layers.{layer}.mlp.experts.{expert}"
            gates = tuple(Output(f"{of}.{name}_proj.weight", (F, H), "BF16") for name in ("gate", "up"))
            steps.append(Step(up, (layer - 1, expert), gates, runs))
            out = Output(f"{of}.down_proj.weight", (H, F), "BF16")
            steps.append(Step(down, (layer - 1, expert), (out,), (Run(0, H, 0, 0),)))
    return steps


def test_thousands_of_tensors_are_a_page(tmp_path: Path) -> None:
    steps = mixture_of_experts()
    plan = _of(steps, tmp_path / "out", max_shard_bytes=2 * 10**7)
    text = plan.as_text()
    whole_plan = json.loads(json.dumps(plan.as_json()))
    assert len(text.splitlines()) < 40
    assert (
        "1152 x decoder.layers.mlp.experts.linear_fc1.weight[0..8, 0..127] [128, 512] BF16: 64 + 64 rows, one "
        "after the other\n"
        "    -> model.layers.{1..9}.mlp.experts.{0..127}.gate_proj.weight [64, 512] BF16\n"
        "    -> model.layers.{1..9}.mlp.experts.{0..127}.up_proj.weight [64, 512] BF16\n"
    ) in text
    assert "10 x decoder.layers.input_layernorm.weight[0..9] [512] BF16: as it is" in text
    assert whole_plan["tensors"] == 1 + 10 + 3 * 9 * 128
    assert sum(len(step["outputs"]) for step in whole_plan["mapping"]) == whole_plan["tensors"]
    assert sum(shard["tensors"] for shard in whole_plan["shards"]) == whole_plan["tensors"]
    assert "    ...\n" in text
    assert whole_plan["shards"][-1]["file"] in text


def test_it_is_what_merge_writes(unpacked: Recorded, tmp_path: Path) -> None:
    found, steps = planned(unpacked.run)
    hf = unpacked.actor / "huggingface"
    before = snapshot(tmp_path)
    plan = DryRun(found, steps, hf / "config.json", companions([hf]), tmp_path / "a" / "out", 8_000)
    told, text = plan.as_json(), plan.as_text()
    assert snapshot(tmp_path) == before
    merge(unpacked.run, tmp_path / "a" / "out", max_shard_bytes=8_000)
    written = {path.name: path.stat().st_size for path in (tmp_path / "a" / "out").glob("*.safetensors")}
    assert {shard["file"]: shard["bytes"] for shard in told["shards"]} == written
    index = json.loads((tmp_path / "a" / "out" / "model.safetensors.index.json").read_text())
    assert told["bytes"] == index["metadata"]["total_size"]
    assert {o["name"] for step in told["mapping"] for o in step["outputs"]} == set(index["weight_map"])
    for name, size in list(written.items())[:1]:
        assert f"{name} {size / 1000:.1f} kB" in text
    assert told["checkpoint"]["step"] == 3
    assert told["tokenizer"] == str(hf)
    assert "2 x decoder.layers.self_attention.linear_qkv.weight[0..1]" in text
    assert "-> model.layers.{0..1}.self_attn.q_proj.weight" in text
    assert " groups of " in text


def test_one_file_and_a_target_that_is_far_from_there(tmp_path: Path) -> None:
    plan = _of([whole(_tensor("a.weight", 3, 2)), whole(_tensor("b", dtype="F32"))], tmp_path / "x" / "y" / "z")
    told = plan.as_json()
    assert [shard["file"] for shard in told["shards"]] == ["model.safetensors"]
    assert told["dtypes"] == ["BF16", "F32"]
    assert told["free_bytes"] > 0
    assert told["tokenizer"] is None
    text = plan.as_text()
    assert "tokenizer   none" in text
    assert "2 tensors from 2 of the checkpoint, 16 bytes, BF16+F32" in text
    assert text.splitlines()[-1] == "note: a note"
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "free_bytes", lambda target: 11)
    assert "not enough space: 11 bytes free, 12 needed" in _of([whole(_tensor("a", 6))], tmp_path).as_text()


def test_what_does_not_fold_is_counted_and_cut(tmp_path: Path) -> None:
    steps = [whole(_tensor(f"odd{n}x.weight", n + 1)) for n in range(500)]
    text = _of(steps, tmp_path).as_text()
    assert "... and 300 more (--json lists every tensor)" in text
    assert len(text.splitlines()) < 420


def test_names_out_of_a_file_are_escaped(tmp_path: Path) -> None:
    assert "\x1b" not in _of([whole(_tensor("a\x1b[31m", 1))], tmp_path).as_text()


def test_only_what_maps_alike_is_folded() -> None:
    def step(layer: int, rows: int = 4, dtype: str = "BF16", runs: tuple[Run, ...] = ()) -> Step:
        source = _tensor(f"decoder.layers.{layer}.w.weight", rows, 2)
        return Step(source, (), (Output(f"l.{layer}.w", (rows, 2), dtype),), runs or (Run(0, rows, 0, 0),))

    low_rank = LowRank(_tensor("a", 2, 2), _tensor("b", 4, 2), 2.0)
    with_adapter = Step(step(9).source, (), step(9).outputs, step(9).runs, (low_rank,))
    steps = [
        step(0), step(1), step(3), step(4, rows=8), step(5, dtype="F32"),
        step(6, runs=(Run(0, 2, 0, 0), Run(2, 2, 0, 2))), with_adapter,
    ]  # fmt: skip
    groups = fold(steps)
    assert [group.count for group in groups] == [3, 1, 1, 1, 1]
    assert groups[0].source_text() == "decoder.layers.{0..1,3}.w.weight [4, 2] BF16"
    assert groups[0].output_texts() == ["l.{0..1,3}.w [4, 2] BF16"]
    assert groups[1].source_text() == "decoder.layers.4.w.weight [8, 2] BF16"
    assert split_text(groups[4].first) == "as it is, with LoRA of rank 2 times 2"


def test_splits_in_words() -> None:
    source = _tensor("w", 12, 2)
    a, b = (Output(name, (4, 2), "BF16") for name in "ab")

    def text(outputs: tuple[Output, ...], *runs: tuple[int, int, int, int]) -> str:
        return split_text(Step(source, (), outputs, tuple(Run(*run) for run in runs)))

    assert text((a,), (0, 12, 0, 0)) == "as it is"
    assert text((a,), (0, 10, 0, 0)) == "rows 0 to 10, 2 rows of padding left out"
    assert text((a, b), (0, 8, 0, 0), (8, 4, 1, 0)) == "8 + 4 rows, one after the other"
    assert text((a, b), (0, 4, 0, 0), (4, 2, 1, 0), (6, 4, 0, 4), (10, 2, 1, 2)) == "2 groups of 4 + 2 rows"
    assert text((a, b), (0, 4, 0, 0), (4, 2, 1, 0), (6, 6, 0, 4)) == "3 runs of rows"
    assert split_text(whole(_tensor("scalar"))) == "as it is"


def test_numbers_at_the_end_of_a_name_fold_too() -> None:
    """Megatron's grouped GEMM: one weight for each expert."""
    (group,) = fold([whole(_tensor(f"decoder.layers.1.mlp.experts.linear_fc1.weight{n}", 2)) for n in range(3)])
    assert group.source_text() == "decoder.layers.1.mlp.experts.linear_fc1.weight{0..2} [2] BF16"
