"""Mixtures of experts: Qwen2-MoE, Qwen3-MoE, Mixtral.

Sources: megatron-core 0.13 to 0.16 `transformer/moe/{experts,shared_experts}.py` (sharded_state_dict), mbridge
0.15.1, transformers 4.56 and 5.10 `models/{qwen2_moe,qwen3_moe,mixtral}`; 5.10 `conversion_mapping.py`: in memory
the experts are fused, on disk each has its tensors.
"""

from __future__ import annotations

from converters.families.dense import (
    DOWN,
    EMBEDDING,
    FINAL_NORM,
    GATE_AND_UP,
    INPUT_NORM,
    MLP_NORM,
    O_WEIGHT,
    QKV_WEIGHT,
    QWEN3_ATTENTION,
    qkv_bias,
)
from converters.families.rules import GATE_UP, SPARSE, Rule
from converters.hf.hf_config import Numbers

_IN_LAYER = "model.layers.{layer}."
# Both are called experts: the module of the layer, and the list in it.
_FC1, _FC2 = (f"decoder.layers.mlp.experts.experts.linear_fc{n}.weight" for n in (1, 2))


def routed_experts(
    module: str, size: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> tuple[Rule, Rule, Rule]:
    """Router and experts of a layer.

    Args:
        module: what holds them on disk; in memory transformers 5 calls it mlp.
        size: of an expert's feed-forward.
        gate, up, down: an expert's layers.
    """
    held, live = _IN_LAYER + module, _IN_LAYER + "mlp"
    return (
        Rule(
            ("decoder.layers.mlp.router.weight",),
            {f"{held}.gate.weight": "E H"},
            layers=SPARSE,
            live="" if held == live else f"{live}.gate.weight",
        ),
        Rule(
            (_FC1,),
            {
                f"{held}.experts.{{expert}}.{gate}.weight": f"{size} H",
                f"{held}.experts.{{expert}}.{up}.weight": f"{size} H",
            },
            GATE_UP,
            layers=SPARSE,
            live=f"{live}.experts.gate_up_proj",
        ),
        Rule(
            (_FC2,),
            {f"{held}.experts.{{expert}}.{down}.weight": f"H {size}"},
            layers=SPARSE,
            live=f"{live}.experts.down_proj",
        ),
    )


ROUTER, *_EXPERTS = routed_experts("mlp", "M")
EXPERTS = tuple(_EXPERTS)


def shared_experts(name: str) -> tuple[Rule, Rule]:
    """The experts that see every token; `name` is the module's in Hugging Face."""
    return (
        Rule(
            ("decoder.layers.mlp.shared_experts.linear_fc1.weight",),
            {_IN_LAYER + f"mlp.{name}.gate_proj.weight": "S H", _IN_LAYER + f"mlp.{name}.up_proj.weight": "S H"},
            GATE_UP,
            layers=SPARSE,
        ),
        Rule(
            ("decoder.layers.mlp.shared_experts.linear_fc2.weight",),
            {_IN_LAYER + f"mlp.{name}.down_proj.weight": "H S"},
            layers=SPARSE,
        ),
    )


SHARED_GATE = Rule(
    ("decoder.layers.mlp.shared_experts.gate_weight",),
    {_IN_LAYER + "mlp.shared_expert_gate.weight": "one H"},
    layers=SPARSE,
)

_DENSE_LAYERS = (GATE_AND_UP, DOWN)
QWEN2_MOE = (
    EMBEDDING, INPUT_NORM, QKV_WEIGHT, qkv_bias("qkv_bias"), O_WEIGHT, MLP_NORM, *_DENSE_LAYERS,
    ROUTER, *EXPERTS, *shared_experts("shared_expert"), SHARED_GATE, FINAL_NORM,
)  # fmt: skip
QWEN3_MOE = (
    EMBEDDING, *QWEN3_ATTENTION, MLP_NORM, *_DENSE_LAYERS, ROUTER, *EXPERTS, FINAL_NORM,
)  # fmt: skip

# Mixtral: w1 is the gate, w3 up, w2 down.
MIXTRAL = (
    EMBEDDING, INPUT_NORM, QKV_WEIGHT, O_WEIGHT, MLP_NORM,
    *routed_experts("block_sparse_moe", "F", gate="w1", up="w3", down="w2"), FINAL_NORM,
)  # fmt: skip


def qwen2_sizes(number: Numbers) -> dict[str, int]:
    return {**qwen3_sizes(number), "S": number("shared_expert_intermediate_size"), "one": 1}


def qwen3_sizes(number: Numbers) -> dict[str, int]:
    return {"E": number("num_experts"), "M": number("moe_intermediate_size")}


def mixtral_sizes(number: Numbers) -> dict[str, int]:
    return {"E": number("num_local_experts")}


def qwen_sparse(number: Numbers, layers: int) -> frozenset[int]:
    """transformers, Qwen{2,3}MoeDecoderLayer: the first layer of a step is the last of its number."""
    step, dense = number("decoder_sparse_step"), number.listed("mlp_only_layers")
    return frozenset(n for n in range(layers) if n not in dense and (n + 1) % step == 0)


def every_layer(number: Numbers, layers: int) -> frozenset[int]:
    return frozenset(range(layers))
