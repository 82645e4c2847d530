"""config.json of the model: which dimensions, tied or not, and what the output's copy must say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.errors import ConvertError

# safetensors' type -> the name in config.json
_CONFIG_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


@dataclass(frozen=True)
class ModelConfig:
    """What the tables of `families` need, in elements, named as in them.

    H hidden, F feed-forward, V vocabulary, D head, Q all query heads, K all key (or value) heads.
    """

    path: Path
    raw: dict[str, Any]
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    H: int
    F: int
    V: int
    D: int
    tied: bool

    @property
    def Q(self) -> int:
        return self.heads * self.D

    @property
    def K(self) -> int:
        return self.kv_heads * self.D

    def flag(self, name: str) -> bool:
        return bool(self.raw.get(name, False))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConvertError: the file is missing, or is no JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConvertError(f"{path}: missing") from error
    except ValueError as error:
        raise ConvertError(f"{path}: no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConvertError(f"{path}: {type(value).__name__} where an object is expected")
    return value


def read(path: Path, head_dim: int | None = None, tied: bool = False) -> ModelConfig:
    """config.json as dimensions. `head_dim` and `tied` are what the family's config class defaults to.

    Raises:
        ConvertError: a value is missing or does not fit, or the config asks for something that is refused
            (quantized weights, code from the checkpoint).
    """
    raw = read_json(path)
    if raw.get("auto_map"):
        raise ConvertError(
            f"{path}: auto_map names code to run ({raw['auto_map']}); such models are not converted"
        )
    if raw.get("quantization_config"):
        raise ConvertError(
            f"{path}: quantization_config describes quantized weights, the checkpoint holds plain ones. "
            "Give --base_model a folder with the unquantized model's config.json."
        )
    heads = _positive(raw, "num_attention_heads", path)
    kv_heads = _positive(raw, "num_key_value_heads", path, heads)
    hidden = _positive(raw, "hidden_size", path)
    if heads % kv_heads:
        raise ConvertError(
            f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    if raw.get("head_dim") is None and head_dim is None and hidden % heads:
        raise ConvertError(f"{path}: no head_dim, and hidden_size {hidden} is not a multiple of {heads} heads")
    return ModelConfig(
        path=path,
        raw=raw,
        architecture=architecture(path),
        layers=_positive(raw, "num_hidden_layers", path),
        heads=heads,
        kv_heads=kv_heads,
        H=hidden,
        F=_positive(raw, "intermediate_size", path),
        V=_positive(raw, "vocab_size", path),
        D=_positive(raw, "head_dim", path, head_dim or hidden // heads),
        tied=bool(raw.get("tie_word_embeddings", tied)),
    )


def architecture(path: Path) -> str:
    """The one entry of `architectures`."""
    names = read_json(path).get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise ConvertError(f"{path}: architectures is {names!r}, one name is expected (Qwen3ForCausalLM, ...)")
    return names[0]


def _positive(raw: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConvertError(f"{path}: {key} is {value!r}, a positive whole number is expected")
    return value


# transformer_config.json (megatron-core's TransformerConfig, written by verl's "extra") -> config.json
_TRAINED_AS = (
    ("num_layers", "layers"),
    ("hidden_size", "H"),
    ("num_attention_heads", "heads"),
    ("num_query_groups", "kv_heads"),
    ("kv_channels", "D"),
    ("ffn_hidden_size", "F"),
)


def trained_otherwise(config: ModelConfig, transformer_config: Path | None) -> list[str]:
    """Where config.json is not what Megatron trained, a line each.

    Shapes alone cannot tell 8 heads of 16 from 16 heads of 8.
    """
    if transformer_config is None or not transformer_config.is_file():
        return []
    trained = read_json(transformer_config)
    problems = [
        f"{theirs} was {trained[theirs]} in training, config.json says {getattr(config, ours)}"
        for theirs, ours in _TRAINED_AS
        if trained.get(theirs) is not None and trained[theirs] != getattr(config, ours)
    ]
    epsilon, ours = trained.get("layernorm_epsilon"), config.raw.get("rms_norm_eps")
    if epsilon is not None and ours is not None and epsilon != ours:
        problems.append(f"layernorm_epsilon was {epsilon} in training, config.json says rms_norm_eps {ours}")
    return problems


def adjusted(raw: dict[str, Any], dtype: str) -> tuple[dict[str, Any], list[str]]:
    """config.json for the output, and a line for each change. Nothing else is touched.

    - the type in `dtype` / `torch_dtype` is the weights' own: loaders convert to what the config says;
    - `rope_theta` stands at the top as well as in `rope_parameters` (transformers 5 writes only the latter,
    and a
      transformers 4 reader then silently takes 10000), a scaling also as `rope_scaling`.
    """
    config, changes = dict(raw), []
    name = _CONFIG_DTYPES.get(dtype)
    for key in ("dtype", "torch_dtype"):
        if name and key in config and config[key] != name:
            changes.append(f"{key}: {config[key]} -> {name}, as the weights are")
            config[key] = name
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope and "rope_theta" not in config:
        config["rope_theta"] = rope["rope_theta"]
        changes.append(f"rope_theta: {rope['rope_theta']} at the top too, for readers of transformers 4")
        if rope.get("rope_type", "default") != "default" and not config.get("rope_scaling"):
            config["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
            changes.append("rope_scaling: from rope_parameters, for readers of transformers 4")
    return config, changes
