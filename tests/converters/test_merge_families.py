"""The tables and their splits, against a slow and plain reading of Megatron's layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_helpers import run_step, split

from converters import families, hf_config, plan
from converters.errors import ConvertError
from converters.tensors import Chunk, GlobalTensor, Words

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 48, "vocab_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip


class _InMemory:
    def __init__(self, tensor: Words, dtype: str) -> None:
        self._tensor, self.shape, self.dtype = tensor, tensor.shape, dtype

    def read_into(self, out: Words) -> None:
        out[...] = self._tensor


def _tensor(name: str, values: Words) -> GlobalTensor:
    chunk = Chunk((0,) * values.ndim, values.shape, lambda: _InMemory(values, "BF16"))
    return GlobalTensor(name, values.shape, "BF16", (chunk,))


def _config(tmp_path: Path, **changes: object) -> hf_config.ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return hf_config.read(path, families.FAMILIES[hf_config.architecture(path)].head_dim)


def _mcore(family: families.Family, config: hf_config.ModelConfig) -> dict[str, GlobalTensor]:
    """A whole checkpoint of the family, every element another word."""
    tensors, start = {}, 0
    for rule in family.rules:
        if rule.applies(config):
            shape = rule.mcore_shape(config)
            shape = (config.layers, *shape) if rule.per_layer else shape
            count = int(np.prod(shape))
            values = ((np.arange(count) + start) % 65536).astype("<u2").reshape(shape)
            tensors[rule.mcore[0]] = _tensor(rule.mcore[0], values)
            start += 7 * count
    return tensors


@given(
    groups=st.integers(1, 4), per_group=st.integers(1, 4), head=st.integers(1, 5), rest=st.sampled_from([(), (3,)])
)
def test_qkv_is_split_head_by_head(groups: int, per_group: int, head: int, rest: tuple[int, ...]) -> None:
    """Each head has its own constant; on disk a group is its query heads, its key head, its value head."""
    heads = groups * per_group
    q = [np.full((head, *rest), 1000 + h, "<u2") for h in range(heads)]
    k = [np.full((head, *rest), 2000 + g, "<u2") for g in range(groups)]
    v = [np.full((head, *rest), 3000 + g, "<u2") for g in range(groups)]
    stored = np.concatenate(
        [part for g in range(groups) for part in [*q[g * per_group : (g + 1) * per_group], k[g], v[g]]]
    )
    config = hf_config.ModelConfig(Path("c"), {}, "x", 1, heads, groups, H=3, F=1, V=1, D=head, tied=False)
    rule = families.Rule(("x",), {"q": "Q H", "k": "K H", "v": "K H"}, families.QKV)
    for found, expected in zip(split(rule, config, stored), (q, k, v), strict=True):
        assert np.array_equal(found, np.concatenate(expected))


def test_gate_comes_before_up(tmp_path: Path) -> None:
    config = _config(tmp_path)
    rule = next(r for r in families.QWEN3 if r.split == families.GATE_UP)
    stored = np.concatenate([np.full((48, 64), 1, "<u2"), np.full((48, 64), 2, "<u2")])
    gate, up = split(rule, config, stored)
    assert gate.shape == up.shape == (48, 64)
    assert (gate == 1).all()
    assert (up == 2).all()


@pytest.mark.parametrize("architecture", families.FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_tables_name_every_tensor_that_transformers_has(architecture: str, tied: bool, tmp_path: Path) -> None:
    """The table against the model class itself, with and without biases."""
    import torch
    import transformers

    for bias in (False, True):
        config = _config(tmp_path, architectures=[architecture], tie_word_embeddings=tied, attention_bias=bias)
        model_type = {"Qwen2": "qwen2", "Qwen3": "qwen3", "Llama": "llama"}[architecture[: -len("ForCausalLM")]]
        values = {**config.raw, "attention_bias": bias}
        if model_type == "qwen2":
            values["head_dim"] = 16
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(model_type, **values)
            )
        expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        if tied:
            expected.pop("lm_head.weight")
        assert families.hf_shapes(families.FAMILIES[architecture].rules, config) == expected


def test_layers_with_numbers_in_the_name_give_the_same(tmp_path: Path) -> None:
    """Heterogeneous checkpoints name each layer instead of stacking them."""
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    stacked = _mcore(family, config)
    numbered = {}
    for name, tensor in stacked.items():
        if not name.startswith("decoder.layers."):
            numbered[name] = tensor
            continue
        for layer in range(2):
            new = name.replace("decoder.layers.", f"decoder.layers.{layer}.")
            numbered[new] = _tensor(new, tensor.read()[layer])
    one, other = (
        {
            name: value
            for step in plan.from_mcore(tensors, family, config)
            for name, value in run_step(step).items()
        }
        for tensors in (stacked, numbered)
    )
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_norm_names_of_the_local_layer_spec(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    for te, local in (
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ):
        name = f"decoder.layers.{local}"
        tensors[name] = replace(tensors.pop(f"decoder.layers.{te}"), name=name)
    assert len(plan.from_mcore(tensors, family, config)) == 2 * 8 + 3


def test_every_problem_is_listed_at_once(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    tensors["decoder.layers.mlp.router.weight"] = _tensor(
        "decoder.layers.mlp.router.weight", np.zeros((2, 4, 64), "<u2")
    )
    del tensors["decoder.final_layernorm.weight"]
    tensors["decoder.layers.mlp.linear_fc2.weight"] = _tensor(
        "decoder.layers.mlp.linear_fc2.weight", np.zeros((2, 64, 47), "<u2")
    )
    with pytest.raises(ConvertError) as caught:
        plan.from_mcore(tensors, family, config)
    message = str(caught.value)
    assert "4 found" in message
    assert "decoder.final_layernorm.weight is missing" in message
    assert "decoder.layers.mlp.router.weight [2, 4, 64] has no place in Qwen3ForCausalLM" in message
    assert "decoder.layers.mlp.linear_fc2.weight of layer 1 is [64, 47], config.json makes it [64, 48]" in message


def test_layer_that_is_missing_among_numbered_ones(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    stacked = tensors.pop("decoder.layers.mlp.linear_fc2.weight")
    name = "decoder.layers.0.mlp.linear_fc2.weight"
    tensors[name] = _tensor(name, stacked.read()[0])
    with pytest.raises(ConvertError, match=r"linear_fc2.weight \(layer 1\) is missing"):
        plan.from_mcore(tensors, family, config)


def test_untied_config_without_a_head(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    del tensors["output_layer.weight"]
    with pytest.raises(ConvertError, match=r"tie_word_embeddings=false.*no output_layer.weight"):
        plan.from_mcore(tensors, family, config)


def test_value_head_is_told(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    tensors["output_layer.weight"] = _tensor("output_layer.weight", np.zeros((1, 64), "<u2"))
    with pytest.raises(ConvertError, match="value head"):
        plan.from_mcore(tensors, family, config)


def test_holes_and_overlaps_between_chunks() -> None:
    block = _InMemory(np.zeros((2, 3), "<u2"), "BF16")
    hole = GlobalTensor(
        "t", (5, 3), "BF16", (Chunk((0, 0), (2, 3), lambda: block), Chunk((3, 0), (2, 3), lambda: block))
    )
    with pytest.raises(ConvertError, match="12 of 15 elements"):
        hole.read()
    over = GlobalTensor(
        "t", (3, 3), "BF16", (Chunk((0, 0), (2, 3), lambda: block), Chunk((1, 0), (2, 3), lambda: block))
    )
    with pytest.raises(ConvertError, match="overlap"):
        over.read()


@given(st.data())
def test_any_block_of_any_chunking_is_the_slice(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    whole = np.arange(rows * columns, dtype="<u2").reshape(rows, columns)
    row_cuts = [0, *sorted(data.draw(st.sets(st.integers(1, max(1, rows - 1))))), rows]
    column_cuts = [0, *sorted(data.draw(st.sets(st.integers(1, max(1, columns - 1))))), columns]
    chunks = []
    for a, b in pairwise(row_cuts):
        for c, d in pairwise(column_cuts):
            if b > a and d > c:
                part = _InMemory(whole[a:b, c:d], "BF16")
                chunks.append(Chunk((a, c), (b - a, d - c), lambda part=part: part))
    tensor = GlobalTensor("t", (rows, columns), "BF16", tuple(chunks))
    start = (data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1)))
    stop = (data.draw(st.integers(start[0] + 1, rows)), data.draw(st.integers(start[1] + 1, columns)))
    assert np.array_equal(tensor.read(start, stop), whole[start[0] : stop[0], start[1] : stop[1]])
