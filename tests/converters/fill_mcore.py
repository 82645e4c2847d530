"""Put a Hugging Face model's weights into Megatron's modules: by hand, with nothing of what is under test.

mbridge maps dense models only on a machine without Transformer Engine: experts of the local layer spec have other
names than it knows. Every weight is built whole in Megatron's layout and then cut to the part of this rank:

    fill    walks over the parameters that this rank's GPTModel has, and fails if one is left
    _parts  the Hugging Face tensors of one parameter; for gate and up two, since each rank has a part of both
    _cut    along the only axis whose length differs; experts are not cut but chosen, by their rank's first number
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def fill(model: Any, folder: Path, config: Any) -> None:
    """Fill a GPTModel of this rank from the safetensors in `folder`; every parameter must be found."""
    import torch
    from safetensors.torch import load_file

    hf: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        hf.update(load_file(path))
    filled = set()

    def put(name: str, tensor: Any, *parts: Any) -> None:
        """`parts` lie one after the other in each rank's tensor."""
        with torch.no_grad():
            tensor.copy_(torch.cat([_cut(part, tensor, len(parts)) for part in parts]))
        filled.add(name)

    top = dict(model.state_dict(keep_vars=True))
    for name, hf_name in (
        ("embedding.word_embeddings.weight", "model.embed_tokens.weight"),
        ("decoder.final_layernorm.weight", "model.norm.weight"),
        ("output_layer.weight", "score.weight" if "score.weight" in hf else "lm_head.weight"),
        ("output_layer.bias", "score.bias"),
    ):
        if name in top and hf_name in hf:
            put(name, top[name], hf[hf_name])
    if config.tie_word_embeddings and "output_layer.weight" in top and "output_layer.weight" not in filled:
        put("output_layer.weight", top["output_layer.weight"], hf["model.embed_tokens.weight"])
    for number, layer in enumerate(model.decoder.layers):
        at = f"model.layers.{layer.layer_number - 1}."
        weights = {k.removeprefix(at): v for k, v in hf.items() if k.startswith(at)}
        for name, tensor in layer.state_dict(keep_vars=True).items():
            if "_extra_state" not in name:
                put(f"decoder.layers.{number}.{name}", tensor, *_parts(name, weights, layer, config))
    missing = [name for name in top if "_extra_state" not in name and name not in filled]
    assert not missing, missing


def _parts(name: str, hf: dict[str, Any], layer: Any, config: Any) -> list[Any]:
    import torch

    plain = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.linear_q_proj.weight": "self_attn.q_proj.weight",
        "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
        "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
        "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
        "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
        "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
        "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight",
    }
    if "self_attn.q_a_layernorm.weight" in hf:
        plain["self_attention.q_layernorm.weight"] = "self_attn.q_a_layernorm.weight"
    if name in plain:
        return [hf[plain[name]]]
    if name == "mlp.router.weight":
        return [hf.get("mlp.gate.weight", hf.get("block_sparse_moe.gate.weight"))]
    if name.startswith("self_attention.linear_qkv."):
        kind = name.rsplit(".", 1)[1]
        groups = config.num_key_value_heads
        q, k, v = (hf[f"self_attn.{n}_proj.{kind}"].chunk(groups) for n in "qkv")
        return [torch.cat([part for group in zip(q, k, v, strict=True) for part in group])]
    if name == "mlp.linear_fc1.weight":
        return [hf["mlp.gate_proj.weight"], hf["mlp.up_proj.weight"]]
    if name.startswith("mlp.shared_experts."):
        shared = "mlp.shared_expert" if "mlp.shared_expert.up_proj.weight" in hf else "mlp.shared_experts"
        names = ("gate_proj", "up_proj") if "fc1" in name else ("down_proj",)
        return [hf[f"{shared}.{n}.weight"] for n in names]
    experts = layer.mlp.experts
    first, _, rest = name.removeprefix("mlp.experts.local_experts.").partition(".")
    expert = layer.mlp.ep_group.rank() * experts.num_local_experts + int(first)
    if "block_sparse_moe.gate.weight" in hf:
        names = ("w1", "w3") if "fc1" in rest else ("w2",)
        return [hf[f"block_sparse_moe.experts.{expert}.{n}.weight"] for n in names]
    names = ("gate_proj", "up_proj") if "fc1" in rest else ("down_proj",)
    return [hf[f"mlp.experts.{expert}.{n}.weight"] for n in names]


def _cut(whole: Any, target: Any, parts: int) -> Any:
    """This rank's part of `whole` for `target`, which holds `parts` such tensors one after the other.

    The vocabulary may be padded with zeros.
    """
    import torch
    from megatron.core import mpu

    rows, *rest = target.shape
    wanted = (rows // parts, *rest)
    if tuple(whole.shape) == wanted:
        return whole
    axis = next(i for i, (a, b) in enumerate(zip(whole.shape, wanted, strict=True)) if a != b)
    ranks = mpu.get_tensor_model_parallel_world_size()
    short = wanted[axis] * ranks - whole.shape[axis]
    if short > 0 and axis == 0:
        whole = torch.cat([whole, whole.new_zeros(short, *rest)])
    assert whole.shape[axis] == wanted[axis] * ranks, (whole.shape, wanted)
    return whole.narrow(axis, mpu.get_tensor_model_parallel_rank() * wanted[axis], wanted[axis])
