"""Sizes of models from config.json, compared with the real classes of transformers without weights."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import QWEN3_4B, QWEN3_30B_A3B

from launch.model.shape import ShapeError, UnknownModelError, read_shape

DENSE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [1],
}
MLA = {
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 6,
}


def folder(tmp_path: Path, config: object) -> Path:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (QWEN3_4B, 4_022_468_096, 4_022_468_096),
        (QWEN3_30B_A3B, 30_532_122_624, 30_532_122_624 - 48 * 120 * 3 * 2048 * 768),
    ],
)
def test_published_sizes(tmp_path: Path, config, total, active):
    counted = read_shape(folder(tmp_path, config)).parameters()
    assert (counted.total, counted.active) == (total, active)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama", {"head_dim": 16}),
        ("mistral", {"head_dim": 20}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True, "head_dim": 16}),
        ("qwen3_moe", {**MOE, "num_hidden_layers": 6}),
        ("qwen3_moe", {**MOE, "decoder_sparse_step": 1, "mlp_only_layers": None}),
        ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 28, "num_hidden_layers": 5}),
        ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 28, "qkv_bias": False}),
        ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
        ("deepseek_v3", MLA),
        ("deepseek_v3", {**MLA, "q_lora_rank": None}),
        ("deepseek_v3", {**MLA, "attention_bias": True, "first_k_dense_replace": 9}),
        ("deepseek_v2", MLA),
    ],
)
def test_counts_are_those_of_the_real_classes(tmp_path: Path, model_type, changes):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    config = {"model_type": model_type, **DENSE, **changes}
    real = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(real)
    parameters = dict(model.named_parameters())
    assert parameters  # tied ones once
    counted = read_shape(folder(tmp_path, config)).parameters()
    assert counted.total == sum(tensor.numel() for tensor in parameters.values())
    assert counted.experts == sum(t.numel() for name, t in parameters.items() if ".experts." in name)
    assert counted.attention == sum(t.numel() for name, t in parameters.items() if ".self_attn." in name)
    assert counted.embedding == model.get_input_embeddings().weight.numel()

    if model_type in ("deepseek_v2", "deepseek_v3"):
        return  # deepseek_v2 has no classifier in transformers 5.10
    config |= {"architectures": ["AnyForSequenceClassification"], "num_labels": 1}
    with torch.device("meta"):
        reward = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**config))
    shape = read_shape(folder(tmp_path, config))
    assert shape.labels == 1
    assert shape.parameters().total == sum(tensor.numel() for tensor in reward.parameters())


def test_what_save_pretrained_writes_is_read(tmp_path: Path):
    """transformers 5 writes other keys than 4: rope_parameters, dtype, layer_types."""
    from transformers import Qwen3Config

    Qwen3Config(
        **{**DENSE, "head_dim": 8}, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    ).save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.context) == (3, 6, 2, 8, 512)


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_scaling": None}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, 131072),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, 65536),
        # Llama 3 and long-rope models have max_position_embeddings after scaling.
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}},
            32768,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192}}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": "x"}}, 32768),
    ],
)
def test_context_reached_by_rope_scaling(tmp_path: Path, rope, context):
    shape = read_shape(folder(tmp_path, {**QWEN3_4B, "max_position_embeddings": 32768, **rope}))
    assert (shape.max_position, shape.context) == (32768, context)


def test_the_language_model_of_a_model_that_sees(tmp_path: Path):
    whole = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {**QWEN3_4B, "model_type": "qwen3_vl_text"},
        "vision_config": {"depth": 24},
    }
    shape = read_shape(folder(tmp_path, whole))
    assert shape.parameters().total == 4_022_468_096
    assert "only the language model is counted, not what sees or hears" in shape.notes


def test_kv_cache_of_a_token(tmp_path: Path):
    shape = read_shape(folder(tmp_path, QWEN3_4B))
    assert shape.kv_bytes_per_token() == 36 * 2 * 8 * 128 * 2
    assert shape.kv_bytes_per_token(4) == 36 * 2 * 2 * 128 * 2
    assert shape.kv_bytes_per_token(16) == 36 * 2 * 1 * 128 * 2  # a key head is not split
    latent = read_shape(folder(tmp_path, {"model_type": "deepseek_v3", **DENSE, **MLA}))
    assert latent.kv_bytes_per_token(8) == 3 * (12 + 4) * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ("\ufeff", "not JSON"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        ({**QWEN3_4B, "hidden_size": None}, "no 'hidden_size'"),
        ({**QWEN3_4B, "num_hidden_layers": "36"}, "num_hidden_layers is '36'"),
        ({**QWEN3_4B, "num_hidden_layers": True}, "num_hidden_layers is True"),
        ({**QWEN3_4B, "num_hidden_layers": 10**12}, "expected at most"),
        ({**QWEN3_4B, "num_attention_heads": 0}, "num_attention_heads is 0"),
        ({**QWEN3_4B, "num_key_value_heads": 5}, "not a multiple of num_key_value_heads 5"),
        ({**QWEN3_4B, "tie_word_embeddings": "yes"}, "expected true or false"),
        ({**QWEN3_30B_A3B, "mlp_only_layers": "all"}, "expected a list of whole numbers"),
        ({**QWEN3_30B_A3B, "num_experts_per_tok": 200}, "more than num_experts 128"),
        ({**DENSE, "model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 2}, "is less than"),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, config, message):
    with pytest.raises(ShapeError, match=r"config\.json: ") as caught:
        read_shape(folder(tmp_path, config))
    assert message in str(caught.value)
    assert not isinstance(caught.value, UnknownModelError)


@pytest.mark.parametrize("model_type", ["gpt_oss", "mamba2", "", None, 3])
def test_an_unknown_type_is_not_guessed(tmp_path: Path, model_type):
    with pytest.raises(UnknownModelError, match="sizes are known for llama"):
        read_shape(folder(tmp_path, {**QWEN3_4B, "model_type": model_type}))


def test_no_config(tmp_path: Path):
    with pytest.raises(ShapeError, match="cannot be read"):
        read_shape(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ShapeError, match="cannot be read"):
        read_shape(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


KEYS = [*QWEN3_30B_A3B, "rope_scaling", "text_config", "id2label", "num_labels"]


@settings(max_examples=150)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_any_config_is_read_or_explained(tmp_path_factory: pytest.TempPathFactory, changes):
    root = folder(tmp_path_factory.mktemp("model"), {**QWEN3_30B_A3B, **changes})
    told = f"{root}/config.json"
    try:
        shape = read_shape(root)
        assert shape.parameters().total >= shape.parameters().active > 0
        assert shape.kv_bytes_per_token() > 0
    except ShapeError as error:
        told = str(error)
    assert f"{root}/config.json" in told
