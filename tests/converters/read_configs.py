"""Write and read config.json with the transformers of this process: 5 in the tests, 4 in the second environment.

python read_configs.py FOLDER     (by transformers 4; FOLDER/"5" and FOLDER/"from 5" are there)
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from converters.hf import config_drift

SMALL = {
    "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1,
    "vocab_size": 16, "intermediate_size": 16, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip
DEEPSEEK = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
# model type, theta, scaling, other values
ROPES: dict[str, tuple[str, float, dict[str, Any], dict[str, Any]]] = {
    "default": ("llama", 1e6, {}, {}),
    "linear": ("llama", 5e5, {"rope_type": "linear", "factor": 2.0}, {}),
    "dynamic": ("llama", 5e5, {"rope_type": "dynamic", "factor": 2.0}, {}),
    "llama3": ("llama", 5e5, LLAMA3, {}),
    "yarn": ("qwen3", 1e6, YARN, {"head_dim": 16}),
    "yarn without a length": ("qwen2", 1e6, {"rope_type": "yarn", "factor": 4.0}, {}),
    "mla": ("deepseek_v3", 5e4, {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16.0}, DEEPSEEK),
    "partial": ("glm", 5e5, {}, {"partial_rotary_factor": 0.5, "head_dim": 16}),
}


def write_native(name: str, folder: Path, version: int) -> dict[str, Any]:
    """The config of a case as this process's transformers writes it; what is in the file."""
    import transformers

    model_type, theta, scaling, more = ROPES[name]
    more = dict(more)
    if version == 4:
        values: dict[str, Any] = {"rope_theta": theta, "rope_scaling": dict(scaling) or None}
    else:
        values = {"rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta}}
        if "partial_rotary_factor" in more:
            values["rope_parameters"]["partial_rotary_factor"] = more.pop("partial_rotary_factor")
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **more, **values})
    config.architectures = ["SomethingForCausalLM"]
    config.save_pretrained(folder)
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def write(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rotary(folder: Path) -> dict[str, Any]:
    """What this process's transformers makes of a config.json: frequencies, type, tie flag."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    module = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    (name,) = [n for n in vars(module) if n.endswith("RotaryEmbedding")]
    embedding = getattr(module, name)(config)
    return {
        "frequencies": [float(f) for f in embedding.inv_freq],
        "scaling": float(embedding.attention_scaling),
        "dtype": str(config.dtype),
        "tied": config.tie_word_embeddings,
    }


def other_version(folder: Path) -> None:
    """Run by transformers 4: write its own configs, adjust them, read all; the answers go to told.json."""
    told: dict[str, Any] = {}
    for name in ROPES:
        native = write_native(name, folder / "4" / name, 4)
        told[f"native {name}"] = rotary(folder / "4" / name)
        config, _ = config_drift.adjusted(native, "BF16", tied=False)
        write(config, folder / "from 4" / name)
        told[f"from 4 {name}"] = rotary(folder / "from 4" / name)
        told[f"from 5 {name}"] = rotary(folder / "from 5" / name)
    told["unchanged default"] = rotary(folder / "5" / "default")
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    other_version(Path(sys.argv[1]))
