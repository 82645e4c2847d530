"""Megatron-core without Transformer Engine and apex: its own local layers, attention by torch."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("megatron.core.tensor_parallel.random")
def rng_tracker_on_cpu(random: Any) -> None:
    """The tensor-parallel random state tracker forks torch's CPU state.

    core/tensor_parallel/random.py (0.13.1, 0.16.1): _get_cuda_rng_state and _set_cuda_rng_state use CUDA's.
    """
    import torch

    # Its warning that the CPU state moved inside a fork says nothing here: that is the state that it forks.
    logging.getLogger(random.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


@patch("megatron.core.models.gpt.gpt_layer_specs")
def local_layer_spec(specs: Any) -> None:
    """get_gpt_decoder_block_spec builds Megatron's local layers with RMSNorm.

    verl/models/mcore/model_initializer.py (0.6.1, 0.9.1) and mbridge 0.15.1 core/llm_bridge.py ask for
    Transformer Engine's. The local spec renames the norms to TE's keys on disk, so that checkpoints look like
    those of a GPU run.
    """
    original = specs.get_gpt_decoder_block_spec

    @functools.wraps(original)  # both callers read the signature for vp_stage
    def get_gpt_decoder_block_spec(config: Any, use_transformer_engine: bool = False, **kwargs: Any) -> Any:
        # Each of these selects a fused CUDA kernel or a TE layer.
        config.persist_layer_norm = False
        config.sequence_parallel = False
        config.masked_softmax_fusion = False
        config.gradient_accumulation_fusion = False
        config.moe_grouped_gemm = False
        config.moe_shared_expert_overlap = False
        kwargs.setdefault("normalization", "RMSNorm")
        block = original(config, use_transformer_engine=False, **kwargs)
        for layer in block.layer_specs:
            if getattr(layer.submodules.mlp.module, "__name__", "") == "MoELayer":
                keys = dict(layer.submodules.sharded_state_dict_keys_map)
                keys.pop("pre_mlp_layernorm.", None)  # TE keeps this norm a layer of its own before experts
                layer.submodules.sharded_state_dict_keys_map = keys
        return block

    specs.get_gpt_decoder_block_spec = get_gpt_decoder_block_spec


@patch("megatron.core.transformer.dot_product_attention")
def packed_attention(attention: Any) -> None:
    """DotProductAttention takes packed sequences (THD) and needs no mask for padded ones.

    core/transformer/dot_product_attention.py (0.13.1, 0.16.1) refuses packed_seq_params; verl packs by
    default.
    Padded batches (bshd) arrive padded on the right, where the causal mask alone is exact.
    """
    import torch

    cls = attention.DotProductAttention
    original = cls.forward

    @functools.wraps(original)
    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> Any:
        if packed_seq_params is None:
            return original(self, query, key, value, None, attn_mask_type, attention_bias, None)
        ends = packed_seq_params.cu_seqlens_q_padded
        if ends is None:
            ends = packed_seq_params.cu_seqlens_q
        bounds = ends.tolist()
        # [tokens, 1, heads, head_dim] -> [tokens, heads, head_dim]
        query, key, value = (x.squeeze(1) if x.dim() == 4 else x for x in (query, key, value))
        contexts = []
        for start, end in itertools.pairwise(bounds):
            if start == end:
                continue
            sequence = (x[start:end].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
            context = torch.nn.functional.scaled_dot_product_attention(
                *sequence, is_causal=True, scale=self.softmax_scale, enable_gqa=True
            )
            contexts.append(context[0].transpose(0, 1))
        if bounds[-1] < query.shape[0]:  # padding behind the last sequence
            contexts.append(torch.zeros_like(query[bounds[-1] :]))
        return torch.cat(contexts).flatten(1)  # [tokens, heads * head_dim]

    cls.forward = forward


@patch("megatron.core.optimizer.distrib_optimizer")
def optimizer_state_before_resume(distrib_optimizer: Any) -> None:
    """DistributedOptimizer.sharded_state_dict fills AdamW's state, which is empty before the first step.

    apex's and TE's Adam create it on construction; with torch's, loading a checkpoint ends in
    "assert len(steps) == 1" (core/optimizer/distrib_optimizer.py, 0.13.1 and 0.16.1).
    """
    import torch

    cls = distrib_optimizer.DistributedOptimizer
    original = cls.sharded_state_dict

    @functools.wraps(original)
    def sharded_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = self.optimizer
        if optimizer is not None and not optimizer.state:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter.data),
                        "exp_avg_sq": torch.zeros_like(parameter.data),
                    }
        return original(self, *args, **kwargs)

    cls.sharded_state_dict = sharded_state_dict


@patch("verl.models.mcore.model_initializer", "0.6")
def value_head_alone(_: Any) -> None:
    """verl.models.llama.megatron: its modules, without the __init__ files that import all of them.

    verl/models/mcore/model_initializer.py (0.6.1) takes the critic's LinearForLastLayer from
    layers/parallel_linear.py there; the files beside it need flash-attention and apex.
    """
    import verl.models

    folder = Path(verl.models.__path__[0]) / "llama" / "megatron"
    for name, place in (("megatron", folder), ("megatron.layers", folder / "layers")):
        package = ModuleType(f"verl.models.llama.{name}")
        package.__path__ = [str(place)]
        sys.modules[package.__name__] = package
