"""Parameter names: the local layers keep their norms apart where Transformer Engine fuses them."""

from __future__ import annotations

import functools
from typing import Any

from launch.rehearsal.backend.registry import patch


def fused_norm_name(name: str, *, moe: bool) -> str:
    """Transformer Engine's name of a local-spec parameter.

    Args:
        name: For example "decoder.layers.0.input_layernorm.weight".
        moe: With experts the norm before them stays a layer of its own in TE too.
    """
    name = name.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
    if not moe:
        name = name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")
    return name


@patch("mbridge.core.bridge")
def mbridge_local_names(bridge: Any) -> None:
    """mbridge's Bridge maps local-spec names too.

    mbridge 0.15.1 core/bridge.py:_weight_name_mapping_mcore_to_hf knows TE's names only.
    """
    cls = bridge.Bridge
    original = cls._weight_name_mapping_mcore_to_hf

    @functools.wraps(original)
    def _weight_name_mapping_mcore_to_hf(self: Any, name: str) -> Any:
        return original(self, fused_norm_name(name, moe=bool(getattr(self.config, "num_moe_experts", None))))

    cls._weight_name_mapping_mcore_to_hf = _weight_name_mapping_mcore_to_hf


@patch("mbridge.core.bridge", "0.8", "0.9")
def mbridge_save_after_dist_load(bridge: Any) -> None:
    """Bridge.save_weights works for a model that was not loaded through the bridge.

    With use_dist_checkpointing verl (0.8.0, 0.9.1, on GPUs too) loads the weights itself, so that mbridge
    0.15.1 core/bridge.py never sets safetensor_io, and hf_model in save_contents ends in AttributeError.
    """
    cls = bridge.Bridge
    original = cls.save_weights

    @functools.wraps(original)
    def save_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.safetensor_io is None:
            self.safetensor_io = self._get_safetensor_io(self.hf_config._name_or_path)
        return original(self, *args, **kwargs)

    cls.save_weights = save_weights


@patch("verl.models.mcore.weight_converter", "0.6")
def weight_converter_local_names(converter: Any) -> None:
    """verl's own converter for the weight sync without mbridge maps local-spec names too.

    verl/models/mcore/weight_converter.py:McoreToHFWeightConverterDense (0.6.1, use_mbridge=False).
    """
    cls = converter.McoreToHFWeightConverterDense
    original = cls.convert_param

    @functools.wraps(original)
    def convert_param(self: Any, name: str, params: Any) -> Any:
        return original(
            self, fused_norm_name(name, moe=bool(getattr(self.hf_config, "num_experts", None))), params
        )

    cls.convert_param = convert_param
