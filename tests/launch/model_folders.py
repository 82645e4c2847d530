"""Model folders as a download leaves them: real config.json, safetensors headers without the weights' size."""

import json
from pathlib import Path
from typing import Any

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 262144,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 5000000,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
QWEN3_REWARD: dict[str, Any] = {
    **QWEN3_4B,
    "architectures": ["Qwen3ForSequenceClassification"],
    "hidden_size": 2048,
    "id2label": {"0": "LABEL_0"},
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
}


def safetensors(path: Path, *tensors: str) -> None:
    """A whole file: each tensor is four bytes."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * place, 4 * place + 4]}
        for place, name in enumerate(tensors)
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * len(tensors)))


def model_folder(folder: Path, config: dict[str, Any], *, shards: int = 2) -> Path:
    """A complete model folder with `shards` files of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        safetensors(folder / name, f"a.{number}", f"b.{number}")
    index = {f"{letter}.{number}": name for number, name in enumerate(names) for letter in "ab"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def project(root: Path, config: dict[str, Any] = QWEN3_4B) -> Path:
    """A project whose models/policy and models/reward are complete."""
    model_folder(root / "models/policy", config)
    model_folder(root / "models/reward", QWEN3_REWARD)
    return root


PATHS = ("model.path=models/policy", "reward.model=models/reward", "reward.max_length=6144")
