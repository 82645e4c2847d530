"""The tables and their splits, against a slow and plain reading of Megatron's layouts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_helpers import run_step, split

from converters import families
from converters.errors import ConvertError
from converters.families import dense
from converters.families.heads import split_name
from converters.hf import hf_config
from converters.json_file import read_json
from converters.planning import plan, training_config
from converters.storage.row_reader import Reader
from converters.storage.tensors import Chunk, GlobalTensor, Words

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


# What a family's config.json has beside CONFIG.
OWN = {
    "Qwen3": {"head_dim": 16},
    "Qwen2Moe": {
        "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20,
        "decoder_sparse_step": 2, "num_hidden_layers": 3, "mlp_only_layers": [0],
    },
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 12, "mlp_only_layers": [1], "head_dim": 16},
    "Mixtral": {"num_local_experts": 4},
    "DeepseekV3": {
        "n_routed_experts": 4, "moe_intermediate_size": 12, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "num_key_value_heads": 8, "q_lora_rank": 10, "kv_lora_rank": 14, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4, "v_head_dim": 6, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip


def _values(architecture: str, **changes: object) -> dict[str, object]:
    model = split_name(architecture)[0]
    common = {key: value for key, value in CONFIG.items() if key != "head_dim"}
    return {**common, **OWN.get(model, {}), "architectures": [architecture], **changes}


def _config(tmp_path: Path, **changes: object) -> hf_config.ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return hf_config.read(path, families.FAMILIES[hf_config.architecture(path)].config)


def _config_of(tmp_path: Path, architecture: str, **changes: object) -> hf_config.ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_values(architecture, **changes)))
    return hf_config.read(path, families.FAMILIES[architecture].config)


def _mcore(
    family: families.Family, config: hf_config.ModelConfig, style: str = "stacked"
) -> dict[str, GlobalTensor]:
    """A whole checkpoint of the family, every element another word; `style` as in `mcore_layout`."""
    tensors: dict[str, GlobalTensor] = {}
    start = 0

    def add(name: str, shape: tuple[int, ...]) -> None:
        nonlocal start
        count = int(np.prod(shape))
        values = ((np.arange(count) + start) % 65536).astype("<u2").reshape(shape)
        tensors[name] = _tensor(name, values)
        start += 7 * count

    for rule in family.rules:
        if not rule.applies(config):
            continue
        shape = rule.mcore_shape(config)
        if rule.per_expert:
            shape = (config.size("E"), *shape)
        layers = [n for n in range(config.layers) if rule.in_layer(n, config)]
        if not rule.per_layer:
            add(rule.mcore[0], shape)
        elif style == "stacked" and layers:
            assert len(layers) == config.layers
            add(rule.mcore[0], (config.layers, *shape))
        for layer in layers if rule.per_layer and style == "numbered" else ():
            add(rule.mcore[0].replace("layers.", f"layers.{layer}."), shape)
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
    rule = next(r for r in dense.QWEN3 if r.split == families.GATE_UP)
    stored = np.concatenate([np.full((48, 64), 1, "<u2"), np.full((48, 64), 2, "<u2")])
    gate, up = split(rule, config, stored)
    assert gate.shape == up.shape == (48, 64)
    assert (gate == 1).all()
    assert (up == 2).all()


@pytest.mark.parametrize("architecture", families.FAMILIES)
def test_tables_name_every_tensor_that_transformers_has(architecture: str, tmp_path: Path) -> None:
    """The table against the model class itself: what it saves, and what it holds in memory (FSDP shards)."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    cls = getattr(transformers, architecture)
    variants: list[dict[str, object]] = [{}, {"tie_word_embeddings": True}]
    if architecture.startswith(("Llama", "Qwen3")):
        variants.append({"attention_bias": True})
    if architecture.startswith("Qwen2Moe"):
        variants.append({"qkv_bias": False})
    if architecture.startswith("DeepseekV3"):
        variants.append({"q_lora_rank": None})
    for variant in variants:
        config = _config_of(tmp_path, architecture, **variant)
        assert config.labels == 2
        with torch.device("meta"):
            model = cls(cls.config_class(**{k: v for k, v in config.raw.items() if k != "architectures"}))
        live = model.state_dict()
        if "tie_word_embeddings" in variant:
            live.pop("lm_head.weight", None)
        saved = {name: tuple(t.shape) for name, t in revert_weight_conversion(model, dict(live)).items()}
        family = families.FAMILIES[architecture]
        assert families.hf_shapes(family.rules, config) == saved
        tensors = {name: _tensor(name, np.zeros(t.shape, "<u2")) for name, t in live.items()}
        steps = plan.from_hf_names(tensors, family, config)
        assert {o.name: o.shape for step in steps for o in step.outputs} == saved


def test_defaults_are_those_of_the_config_classes() -> None:
    """What a family takes where config.json is silent."""
    import transformers

    for architecture, family in families.FAMILIES.items():
        kind = getattr(transformers, architecture).config_class
        silent = kind()
        for key, value in family.config.defaults.items():
            assert getattr(silent, key) == value, (architecture, key)


def test_fused_experts_are_taken_apart(tmp_path: Path) -> None:
    """transformers 5 in memory: gate_up_proj [E, 2F, H], gate before up; on disk each expert its own."""
    config = _config_of(tmp_path, "MixtralForCausalLM", num_hidden_layers=1)
    family = families.FAMILIES["MixtralForCausalLM"]
    tensors = {}
    for rule, layer, expert in families.in_order(family.rules, config):
        if expert is None:
            names = rule.hf_shapes(config, layer)
            live = rule.live.format(layer=layer)
            tensors |= {live or n: _tensor(live or n, np.zeros(shape, "<u2")) for n, shape in names.items()}
    prefix = "model.layers.0.mlp.experts."
    gate_up = np.arange(4 * 96 * 64, dtype="<u4").astype("<u2").reshape(4, 96, 64)
    down = (np.arange(4 * 64 * 48, dtype="<u4") * 3).astype("<u2").reshape(4, 64, 48)
    tensors[prefix + "gate_up_proj"] = _tensor(prefix + "gate_up_proj", gate_up)
    tensors[prefix + "down_proj"] = _tensor(prefix + "down_proj", down)
    made = {n: t for step in plan.from_hf_names(tensors, family, config) for n, t in run_step(step).items()}
    for expert in range(4):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}."
        assert np.array_equal(made[name + "w1.weight"], gate_up[expert, :48])
        assert np.array_equal(made[name + "w3.weight"], gate_up[expert, 48:])
        assert np.array_equal(made[name + "w2.weight"], down[expert])


@pytest.mark.parametrize("model", ["Qwen2Moe", "Qwen3Moe", "Mixtral", "DeepseekV3"])
def test_experts_by_number_give_the_same(model: str, tmp_path: Path) -> None:
    """Layers by number, and `singleton_local_shards`: layers and experts by number, gate and up apart."""
    config, family = _config_of(tmp_path, f"{model}ForCausalLM"), families.FAMILIES[f"{model}ForCausalLM"]
    numbered = _mcore(family, config, "numbered")
    single: dict[str, GlobalTensor] = {}
    for name, tensor in numbered.items():
        parts = {name: Reader().whole(tensor)}
        if ".experts.experts." in name:
            parts = {
                name.replace("experts.experts.", f"experts.experts.{expert}."): values
                for expert, values in enumerate(Reader().whole(tensor))
            }
        for part, values in parts.items():
            if ".linear_fc1.weight" in part:
                half = len(values) // 2
                single |= {
                    part + e: _tensor(part + e, v) for e, v in (("_w", values[:half]), ("_v", values[half:]))
                }
            else:
                single[part] = _tensor(part, values)
    one, other = (
        {n: t for step in plan.from_mcore(tensors, family, config) for n, t in run_step(step).items()}
        for tensors in (numbered, single)
    )
    assert one.keys() == other.keys() == families.hf_shapes(family.rules, config).keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    lost = next(name for name in single if name.endswith("_v"))
    del single[lost]
    with pytest.raises(ConvertError, match=r"linear_fc1.weight_w or .*weight_v.*is missing"):
        plan.from_mcore(single, family, config)


def test_wrong_number_of_experts_is_one_line(tmp_path: Path) -> None:
    config, family = _config_of(tmp_path, "MixtralForCausalLM"), families.FAMILIES["MixtralForCausalLM"]
    tensors = _mcore(family, config)
    config = _config_of(tmp_path, "MixtralForCausalLM", num_local_experts=8)
    with pytest.raises(ConvertError) as caught:
        plan.from_mcore(tensors, family, config)
    message = str(caught.value)
    assert "router.weight of layer 0 is [4, 64], config.json makes it [8, 64]" in message
    assert message.count("experts.experts.linear_fc1.weight") == 1
    assert "4 experts, config.json says experts 8" in message


@pytest.mark.parametrize(
    ("model", "changes", "match"),
    [
        ("Mixtral", {"num_local_experts": "4"}, "num_local_experts is '4'"),
        ("Qwen3Moe", {"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
        ("Qwen3Moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3"),
        ("DeepseekV3", {"kv_lora_rank": None}, "kv_lora_rank is None"),
        ("DeepseekV3", {"q_lora_rank": -1}, "q_lora_rank is -1"),
        ("DeepseekV3", {"attention_bias": True}, "attention_bias is true"),
        ("DeepseekV3", {"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map"),
        ("Qwen3", {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}, "auto_map"),
    ],
)
def test_wrong_sizes_are_named(model: str, changes: dict[str, object], match: str, tmp_path: Path) -> None:
    architecture = f"{model}ForCausalLM"
    with pytest.raises(ConvertError, match=match):
        plan.from_mcore({}, families.FAMILIES[architecture], _config_of(tmp_path, architecture, **changes))


def test_code_of_the_hub_is_left_out_where_transformers_has_the_class(tmp_path: Path) -> None:
    code = {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
    }
    config = _config_of(tmp_path, "DeepseekV3ForCausalLM", auto_map=code)
    adapted, lines = config.adapted(read_json(config.path))
    assert "auto_map" not in adapted
    assert lines == [f"auto_map: {code!r} -> None, transformers has this class itself"]


def test_expert_bias_keeps_its_type(tmp_path: Path) -> None:
    config, family = _config_of(tmp_path, "DeepseekV3ForCausalLM"), families.FAMILIES["DeepseekV3ForCausalLM"]
    tensors = _mcore(family, config, "numbered")
    name = "decoder.layers.1.mlp.router.expert_bias"
    values = np.arange(4, dtype="<u4")
    stored = _InMemory(values, "F32")
    tensors[name] = GlobalTensor(name, (4,), "F32", (Chunk((0,), (4,), lambda: stored),))
    outputs = {o.name: o for step in plan.from_mcore(tensors, family, config) for o in step.outputs}
    assert outputs["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == "F32"
    assert families.keep_dtype(family.rules, config) == {"model.layers.1.mlp.gate.e_score_correction_bias"}


def test_layers_of_multi_token_prediction(tmp_path: Path) -> None:
    """Megatron's are refused by name, Hugging Face's are taken over as they are."""
    config = _config_of(tmp_path, "DeepseekV3ForCausalLM", num_nextn_predict_layers=1)
    family = families.FAMILIES["DeepseekV3ForCausalLM"]
    tensors = _mcore(family, config, "numbered")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert families.fitted(shapes, config).adapted({})[0] == {"num_nextn_predict_layers": 0}  # trained without
    tensors["mtp.layers.0.enorm.weight"] = _tensor("mtp.layers.0.enorm.weight", np.zeros(64, "<u2"))
    with pytest.raises(ConvertError, match=r"mtp.layers.0.enorm.weight.*multi-token prediction"):
        plan.from_mcore(tensors, family, config)
    names = {**families.hf_shapes(family.rules, config), "model.layers.2.enorm.weight": (64,)}
    steps = plan.from_hf_names({n: _tensor(n, np.zeros(s, "<u2")) for n, s in names.items()}, family, config)
    assert {o.name for step in steps for o in step.outputs} == set(names)
    assert not families.fitted(names, config).changes


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
            numbered[new] = _tensor(new, Reader().whole(tensor)[layer])
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


def test_norm_names_of_transformer_engine_in_latent_attention(tmp_path: Path) -> None:
    """Fused with the projection behind it where there is one; local layers keep them apart."""
    config, family = _config_of(tmp_path, "DeepseekV3ForCausalLM"), families.FAMILIES["DeepseekV3ForCausalLM"]
    engine = _mcore(family, config, "numbered")
    local = {}
    for name, tensor in engine.items():
        for fused, apart in (
            ("linear_q_up_proj.layer_norm_weight", "q_layernorm.weight"),
            ("linear_kv_up_proj.layer_norm_weight", "kv_layernorm.weight"),
            ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
        ):
            name = name.replace(fused, apart)
        local[name] = replace(tensor, name=name)
    assert len(local.keys() - engine.keys()) == 2 * config.layers + 2
    one, other = (
        {n: t for step in plan.from_mcore(tensors, family, config) for n, t in run_step(step).items()}
        for tensors in (engine, local)
    )
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_each_expert_reads_its_own_chunks_only(tmp_path: Path) -> None:
    """A large model has ten thousands of chunks in a tensor of experts: a step must not search them all."""
    config, family = _config_of(tmp_path, "MixtralForCausalLM"), families.FAMILIES["MixtralForCausalLM"]
    tensors = _mcore(family, config)
    name = "decoder.layers.mlp.experts.experts.linear_fc2.weight"
    values = Reader().whole(tensors[name])
    chunks = []
    for layer in range(config.layers):
        for expert in range(4):
            for half in (0, 1):  # tensor parallel
                stored = _InMemory(
                    values[layer : layer + 1, expert : expert + 1, :, 24 * half : 24 * half + 24], "BF16"
                )
                chunks.append(Chunk((layer, expert, 0, 24 * half), (1, 1, 64, 24), lambda stored=stored: stored))
    tensors[name] = replace(tensors[name], chunks=tuple(chunks))
    steps = [step for step in plan.from_mcore(tensors, family, config) if step.source.name == name]
    assert [step.index for step in steps] == [(n, e) for n in range(config.layers) for e in range(4)]
    for step in steps:
        assert [chunk.offsets[:2] for chunk in step.source.chunks] == [step.index] * 2
        (made,) = run_step(step).values()
        assert np.array_equal(made, values[step.index])


@pytest.mark.parametrize(
    ("model", "trained", "match"),
    [
        ("Mixtral", {"num_moe_experts": 8}, "num_moe_experts was 8 in training, config.json says 4"),
        ("Mixtral", {"num_moe_experts": None}, "num_moe_experts was None in training, .* has experts"),
        ("Qwen3", {"num_moe_experts": 8}, "num_moe_experts was 8 in training, .* has none"),
        ("Qwen3Moe", {"num_moe_experts": 4, "moe_ffn_hidden_size": 16}, "moe_ffn_hidden_size was 16"),
        ("DeepseekV3", {"num_moe_experts": 4, "kv_lora_rank": 12}, "kv_lora_rank was 12 .* says 14"),
        ("DeepseekV3", {"num_moe_experts": 4, "kv_lora_rank": 14, "v_head_dim": 8}, "v_head_dim was 8"),
        ("DeepseekV3", {"moe_router_topk": 3}, "moe_router_topk was 3 in training, .* says num_experts_per_tok 2"),
        ("DeepseekV3", {"moe_router_num_groups": 2}, "moe_router_num_groups was 2 .* says n_group 1"),
        ("DeepseekV3", {"moe_router_topk": "2", "moe_router_group_topk": 1.0, "num_moe_experts": 4}, "^$"),
        ("Qwen3", {"gated_linear_unit": False}, "gated_linear_unit was false in training"),
        ("Mixtral", {"num_moe_experts": 4, "moe_ffn_hidden_size": 99}, "moe_ffn_hidden_size was 99 .* says 48"),
        # Latent attention ignores kv_channels, which mbridge sets to the rotary part.
        ("DeepseekV3", {"num_moe_experts": 4, "kv_lora_rank": 14, "kv_channels": 4}, "^$"),
    ],
)
def test_what_megatron_trained(model: str, trained: dict[str, object], match: str, tmp_path: Path) -> None:
    config = _config_of(tmp_path, f"{model}ForCausalLM")
    path = tmp_path / "transformer_config.json"
    path.write_text(json.dumps(trained))
    assert re.search(match, "\n".join(training_config.trained_otherwise(config, path)))


@pytest.mark.parametrize(
    ("said", "trained", "match"),
    [
        ({"routed_scaling_factor": 9.5}, {"moe_router_topk_scaling_factor": 2.5}, "was 2.5 .*factor 9.5"),
        ({"scoring_func": "softmax"}, {"moe_router_score_function": "sigmoid"}, "'sigmoid' .*_func 'softmax'"),
        ({"rope_theta": 77}, {"rotary_base": 10000.0}, "rotary_base was 10000.0 in training, .* rope_theta 77"),
        ({"rope_parameters": {"rope_theta": 77}}, {"rotary_base": 10000.0}, "rope_theta 77"),
        ({"rope_theta": 10000}, {"rotary_base": 10000.0}, "^$"),
        ({"hidden_act": "gelu"}, {"gated_linear_unit": True}, "hidden_act 'gelu'"),
        ({"hidden_act": "silu"}, {"gated_linear_unit": True}, "^$"),
    ],
)  # fmt: skip
def test_what_megatron_trained_beside_shapes(
    said: dict[str, object], trained: dict[str, object], match: str, tmp_path: Path
) -> None:
    config = _config_of(tmp_path, "DeepseekV3ForCausalLM", **said)
    path = tmp_path / "transformer_config.json"
    path.write_text(json.dumps(trained))
    assert re.search(match, "\n".join(training_config.trained_otherwise(config, path)))


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    path = tmp_path / "transformer_config.json"
    config = _config_of(tmp_path, "LlamaForCausalLM")
    (note,) = training_config.not_compared(config, path)
    assert "heads, and the router, not compared: no transformer_config.json" in note
    assert not training_config.not_compared(_config_of(tmp_path, "Qwen3ForCausalLM"), path)
    path.write_text("{}")
    assert not training_config.not_compared(config, path)


@pytest.mark.parametrize("twice", [4, 128])
def test_experts_under_the_name_of_transformers_5(twice: int, tmp_path: Path) -> None:
    config = _config_of(tmp_path, "Qwen3MoeForCausalLM", num_local_experts=4)
    assert config.size("E") == 4
    values = {k: v for k, v in _values("Qwen3MoeForCausalLM", num_local_experts=4).items() if k != "num_experts"}
    config.path.write_text(json.dumps(values))
    kind = families.FAMILIES["Qwen3MoeForCausalLM"].config
    renamed = hf_config.read(config.path, kind)
    assert renamed.size("E") == 4
    assert renamed.adapted(values)[0]["num_experts"] == 4
    config.path.write_text(json.dumps({**values, "num_experts": twice}))
    if twice == 4:
        assert not hf_config.read(config.path, kind).changes
    else:
        with pytest.raises(ConvertError, match="num_local_experts is 4 and num_experts 128"):
            hf_config.read(config.path, kind)


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
    tensors[name] = _tensor(name, Reader().whole(stacked)[0])
    with pytest.raises(ConvertError, match=r"linear_fc2.weight \(layer 1\) is missing"):
        plan.from_mcore(tensors, family, config)


def test_untied_config_without_a_head(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    del tensors["output_layer.weight"]
    with pytest.raises(ConvertError, match=r"tie_word_embeddings=false.*no output_layer.weight"):
        plan.from_mcore(tensors, family, config)


def test_tied_or_not_is_deduced_where_config_is_silent(tmp_path: Path) -> None:
    family = families.FAMILIES["Qwen3ForCausalLM"]
    for tied in (True, False):
        tensors = _mcore(family, _config(tmp_path, tie_word_embeddings=tied))
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "tie_word_embeddings"}))
        config = hf_config.read(path, family.config)
        outputs = [o.name for step in plan.from_mcore(tensors, family, config) for o in step.outputs]
        assert ("lm_head.weight" in outputs) is not tied
        fitted = families.fitted({name: t.shape for name, t in tensors.items()}, config)
        assert fitted.adapted(read_json(path))[0]["tie_word_embeddings"] is tied


@pytest.mark.parametrize("bias", [False, True])  # verl 0.9.1, 0.6.1
@pytest.mark.parametrize("tied", [False, True])
def test_critic_under_a_language_model_config(bias: bool, tied: bool, tmp_path: Path) -> None:
    config, family = _config(tmp_path, tie_word_embeddings=tied), families.FAMILIES["Qwen3ForCausalLM"]
    tensors = _mcore(family, config)
    tensors["output_layer.weight"] = _tensor("output_layer.weight", np.full((1, 64), 7, "<u2"))
    if bias:
        tensors["output_layer.bias"] = _tensor("output_layer.bias", np.full((1,), 9, "<u2"))
    made = {n: t for step in plan.from_mcore(tensors, family, config) for n, t in run_step(step).items()}
    assert (made["score.weight"] == 7).all()
    assert made["score.bias"].tolist() == [9 if bias else 0]
    assert "lm_head.weight" not in made
    fitted = families.fitted({name: t.shape for name, t in tensors.items()}, config, "asked for")
    raw, _ = fitted.adapted(read_json(config.path))
    assert raw["architectures"] == ["Qwen3ForTokenClassification"]
    assert raw["id2label"] == {"0": "LABEL_0"}
    assert raw["label2id"] == {"LABEL_0": 0}


def test_value_head_of_fsdp_under_a_language_model_config(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    names = families.hf_shapes(families.FAMILIES["Qwen3ForTokenClassification"].rules, replace(config, labels=1))
    tensors = {name: _tensor(name, np.zeros(shape, "<u2")) for name, shape in names.items()}
    outputs = {o.name for step in plan.from_hf_names(tensors, family, config) for o in step.outputs}
    assert outputs == set(names)
    del tensors["score.bias"]
    fitted = families.fitted({name: t.shape for name, t in tensors.items()}, config)
    assert (fitted.architecture, fitted.labels) == ("Qwen3ForSequenceClassification", 1)


def test_reward_head_with_labels(tmp_path: Path) -> None:
    architecture = "LlamaForSequenceClassification"
    config = _config_of(tmp_path, architecture, id2label={"0": "bad", "1": "fair", "2": "good"})
    family = families.FAMILIES[architecture]
    tensors = _mcore(family, config)
    outputs = {o.name: o.shape for step in plan.from_mcore(tensors, family, config) for o in step.outputs}
    assert outputs["score.weight"] == (3, 64)
    tensors["output_layer.weight"] = _tensor("output_layer.weight", np.zeros((2, 64), "<u2"))
    with pytest.raises(ConvertError, match=r"output_layer.weight is \[2, 64\], config.json makes it \[3, 64\]"):
        plan.from_mcore(tensors, family, config)


def test_actor_where_a_critic_is_asked_for(tmp_path: Path) -> None:
    config, family = _config(tmp_path), families.FAMILIES["Qwen3ForCausalLM"]
    shapes = {name: t.shape for name, t in _mcore(family, config).items()}
    with pytest.raises(ConvertError, match=r"no value head: .* the weights of an actor\. Rename it\.$"):
        families.fitted(shapes, config, "Rename it.")


LAYER = "model.layers.{layer}.x"


@pytest.mark.parametrize(
    ("mcore", "hf", "settings", "match"),
    [
        ("decoder.layers.x", [LAYER], {"split": "qkv"}, r"for decoder\.layers\.x: qkv gives 3 tensors, 1 "),
        ("decoder.layers.x", [LAYER, LAYER + "2"], {}, "copy gives 1 tensors, 2 are named"),
        ("decoder.layers.x", [LAYER], {"split": "gate_up"}, "gate_up gives 2 tensors"),
        ("x", [], {"split": "vocab"}, "vocab gives 1 tensors, 0 are named"),
        ("x", ["y"], {"split": "rotate"}, "split 'rotate', .* not one that is known"),
        ("x", ["y"], {"layers": "some"}, "layers 'some': not one that is known"),
        ("decoder.layers.x", ["y"], {}, r"y: all names have \{layer\}"),
        ("x", [LAYER], {}, r"all names have \{layer\}"),
        (
            "decoder.layers.x", [LAYER + "{expert}", LAYER], {"split": "gate_up", "layers": "sparse"},
            r"x: all names have \{layer\} \(and \{expert\}\)",
        ),
        ("decoder.layers.x", [LAYER + "{expert}"], {}, "SPARSE for experts"),
        ("x", ["y"], {"layers": "dense"}, "ALL for what is in no layer"),
    ],
)  # fmt: skip
def test_a_rule_that_a_table_cannot_express_is_refused(
    mcore: str, hf: list[str], settings: dict[str, str], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        families.Rule((mcore,), dict.fromkeys(hf, "H"), **settings)
