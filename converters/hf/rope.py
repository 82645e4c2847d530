"""Rotary position embedding in config.json: one meaning, written in two ways.

transformers 4 (4.56 `modeling_rope_utils.py`) reads `rope_theta` at the top and a scaling in `rope_scaling`
(`rope_type`, formerly `type`). transformers 5 (5.10, `RotaryEmbeddingConfigMixin`) writes `rope_parameters` with
both. It reads the old form too, and where both are there takes `rope_scaling` and never looks at the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
# At the top in transformers 4, in `rope_parameters` in 5.
TOP = ("rope_theta", "partial_rotary_factor")
_NEEDS_LENGTH = ("llama3", "yarn", "longrope")


def per_layer_type(config: Config) -> bool:
    """Whether `rope_parameters` has an entry for each kind of layer: no form of transformers 4 can say that.

    transformers 5.10 may write a global `rope_type` and `rope_theta` beside them (Gemma 3).
    """
    rope = config.get("rope_parameters")
    return isinstance(rope, dict) and any(isinstance(value, dict) for value in rope.values())


def as_read_by_5(config: Config) -> dict[str, Any]:
    """`rope_type`, `rope_theta` and what the scaling says, as transformers 5 takes them; {} for nothing said."""
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if per_layer_type(config) and isinstance(parameters, dict):
        return {k: _complete(dict(v), config) if isinstance(v, dict) else v for k, v in parameters.items()}
    chosen = scaling if isinstance(scaling, dict) and scaling else parameters
    found = dict(chosen) if isinstance(chosen, dict) else {}
    for key in TOP:
        if config.get(key) is not None:
            found.setdefault(key, config[key])
    return _complete(found, config)


def _complete(found: dict[str, Any], config: Config) -> dict[str, Any]:
    """With what both versions take where it is not written."""
    found = {key: value for key, value in found.items() if value is not None}
    if not found:
        return found
    old = found.pop("type", None)
    found.setdefault("rope_type", old or "default")
    if found["rope_type"] == "mrope":  # Qwen2-VL's name for the default with sections
        found["rope_type"] = "default"
    if found["rope_type"] in _NEEDS_LENGTH:
        length = config.get("original_max_position_embeddings", config.get("max_position_embeddings"))
        if length is not None:
            found.setdefault("original_max_position_embeddings", length)
    return found
