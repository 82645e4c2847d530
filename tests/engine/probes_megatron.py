"""Probes of the patches of Megatron and mbridge, and of the patched Megatron as a whole."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import verl  # loads the backend

import torch  # isort: skip
from probes_torch import POLICY, one_rank_group


def rng_tracker_on_cpu():
    from megatron.core.tensor_parallel import random

    _megatron()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(random.__name__).addHandler(handler)
    outside = torch.get_rng_state()
    with random.get_cuda_rng_tracker().fork():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), outside), "the fork leaked"
    assert lines == [], lines


def local_layer_spec():
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    _megatron()
    block = get_gpt_decoder_block_spec(_transformer_config(), use_transformer_engine=True)
    assert len(block.layer_specs) == 2
    for layer in block.layer_specs:
        assert layer.submodules.self_attention.submodules.core_attention is DotProductAttention
        assert layer.submodules.sharded_state_dict_keys_map["pre_mlp_layernorm."] == "mlp.linear_fc1.layer_norm_"


def value_head_alone():
    import verl.models.mcore.model_initializer  # noqa: F401
    from verl.models.llama.megatron.layers.parallel_linear import LinearForLastLayer

    head = LinearForLastLayer(input_size=32, output_size=1, config=_transformer_config())
    values, _ = head(torch.ones(3, 32))
    assert values.shape == (3, 1)


def packed_attention():
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    _megatron()
    attention = DotProductAttention(_transformer_config(), 1, AttnMaskType.causal, "self").eval()  # no dropout
    lengths = [5, 3]
    torch.manual_seed(0)
    query, key, value = torch.randn(8, 4, 8), torch.randn(8, 2, 8), torch.randn(8, 2, 8)
    bounds = torch.tensor([0, 5, 8], dtype=torch.int32)
    packed = attention(
        *(x.unsqueeze(1) for x in (query, key, value)),
        attention_mask=None,
        packed_seq_params=PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds),
    )
    alone = [
        attention(*(part.unsqueeze(1) for part in parts), attention_mask=None).squeeze(1)
        for parts in zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
    ]
    difference = (packed.reshape(8, -1) - torch.cat(alone)).abs().max().item()
    assert difference < 1e-5, difference


def optimizer_state_before_resume():
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    _, models = _bridge_model(wrap_with_ddp=True, ddp_config={"use_distributed_optimizer": True})
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), models
    )
    # verl/utils/checkpoint/megatron_checkpoint_manager.py:_build_sharded_state_dict_metadata
    sharding = "dp_reshardable" if verl.__version__.startswith("0.9") else "fully_sharded_model_space"
    metadata = {"distrib_optim_sharding_type": sharding}
    model_state = models[0].module.module.sharded_state_dict()
    state = optimizer.sharded_state_dict(model_state, is_loading=True, metadata=metadata)
    assert any("exp_avg_sq" in str(key) for key in _leaves(state)), state.keys()


def mbridge_local_names():
    bridge, _ = _bridge_model()
    names = bridge._weight_name_mapping_mcore_to_hf
    assert names("decoder.layers.1.input_layernorm.weight") == ["model.layers.1.input_layernorm.weight"]
    assert names("decoder.layers.1.pre_mlp_layernorm.weight") == ["model.layers.1.post_attention_layernorm.weight"]


def mbridge_save_after_dist_load():
    from safetensors.torch import load_file

    bridge, models = _bridge_model()
    assert bridge.safetensor_io is None
    with tempfile.TemporaryDirectory() as folder:
        bridge.save_weights(models, folder)
        saved = {name for file in Path(folder).glob("*.safetensors") for name in load_file(file)}
    assert saved == set(load_file(POLICY / "model.safetensors"))


def weight_converter_local_names():
    from transformers import AutoConfig
    from verl.models.mcore.weight_converter import McoreToHFWeightConverterDense

    converter = McoreToHFWeightConverterDense(AutoConfig.from_pretrained(POLICY), None)
    norm = torch.ones(4)
    for local, hf in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")):
        names, tensors = converter.convert_param(f"decoder.layers.2.{local}.weight", [norm])
        assert names == [f"model.layers.2.{hf}.weight"]
        assert tensors[0] is norm


def megatron_equals_hugging_face():
    """Not a patch: log-probs of the patched Megatron model against transformers, same weights, float32."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from transformers import AutoModelForCausalLM

    _, models = _bridge_model(dtype=torch.float32, weights=True)
    reference = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    tokens = torch.randint(0, reference.config.vocab_size, (4, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = reference(tokens).logits.log_softmax(-1)
        padded = models[0](tokens, torch.arange(48).expand(4, -1), None).log_softmax(-1)
        bounds = torch.arange(0, 193, 48, dtype=torch.int32)
        packing = PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=48, max_seqlen_kv=48
        )
        packed = models[0](tokens.reshape(1, -1), None, None, packed_seq_params=packing).log_softmax(-1)
    for layout, ours in (("padded", padded), ("packed", packed.view(4, 48, -1))):
        difference = (ours - theirs).abs().max().item()
        assert difference < 1e-5, (layout, difference)


def _leaves(state):
    """Keys of every sharded object in a nested state dict."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        return [key for part in state for key in _leaves(part)]
    return [getattr(state, "key", "")]


def _megatron():
    from megatron.core import parallel_state, tensor_parallel

    one_rank_group()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)


def _transformer_config():
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, kv_channels=8
    )


def _bridge_model(dtype=torch.bfloat16, weights=False, **how):
    from transformers import AutoConfig
    from verl.models.mcore.mbridge import AutoBridge

    _megatron()
    config = AutoConfig.from_pretrained(POLICY)
    if not hasattr(config, "rope_theta"):
        config.rope_theta = config.rope_parameters["rope_theta"]
    bridge = AutoBridge.from_config(config, dtype=dtype)
    how.setdefault("wrap_with_ddp", False)
    path = str(POLICY) if weights else None
    return bridge, bridge.get_model(weight_path=path, bf16=dtype is torch.bfloat16, fp16=False, **how)
