"""Write checkpoints with verl's own managers, for the tests of converters: run by torchrun on gloo.

    torchrun --nproc_per_node N write_checkpoints.py JOBS.json

JOBS.json is a list of {"kind": "megatron" | "fsdp", "hf": source, "out": folder, ...}. The weights go into
Megatron by mbridge, whose mapping is not ours. Needs the CPU backend of the rehearsal
(VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch


def model(name: str, out: str) -> None:
    """A model of merge_models as this version of transformers writes it."""
    import merge_models
    import torch

    if torch.distributed.get_rank() == 0:
        merge_models.make(name, Path(out), biased=_is_061())
    torch.distributed.barrier()


def megatron(hf: str, out: str, tp: int = 1, pp: int = 1, v1: bool = False, vocab_multiple: int = 0) -> None:
    """verl's MegatronCheckpointManager with use_dist_checkpointing=True; `v1` puts the optimizer beside."""
    import torch
    from megatron.core import mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from transformers import AutoConfig
    from verl.models.mcore.mbridge import AutoBridge

    mpu.initialize_model_parallel(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    model_parallel_cuda_manual_seed(0)
    config = AutoConfig.from_pretrained(hf)
    if hasattr(config, "rope_parameters"):  # transformers 5
        config.rope_theta = config.rope_parameters["rope_theta"]  # where mbridge reads it
    extra = {"make_vocab_size_divisible_by": vocab_multiple} if vocab_multiple else {}
    bridge = AutoBridge.from_config(config, dtype=torch.bfloat16, **extra)
    ddp = {"wrap_with_ddp": True, "ddp_config": {"use_distributed_optimizer": True}} if v1 else {}
    model = bridge.get_model(weight_path=hf, bf16=True, fp16=False, **ddp)
    save(megatron_manager(hf, config, bridge, model, distributed_adam(model) if v1 else None), out, v1)
    torch.distributed.barrier()
    mpu.destroy_model_parallel()


def save(manager: Any, out: str, v1: bool) -> None:
    """`v1` has 0.9.1 write what 0.6.1 always does: all in one dist_ckpt, config and tokenizer in huggingface."""
    if not v1 or _is_061():
        manager.save_checkpoint(out, global_step=1)
        return
    metadata = {"distrib_optim_sharding_type": "dp_reshardable"}  # verl's default
    state = manager._build_model_sharded_state_dict(metadata)
    state |= manager._build_optimizer_state_dict(dict(state), metadata)
    state |= manager._build_extra_state_dict()
    Path(out, "dist_ckpt").mkdir(parents=True, exist_ok=True)
    manager._save_dist_checkpoint(str(Path(out, "dist_ckpt")), state)
    manager.hf_config.save_pretrained(Path(out, "huggingface"))
    manager.processing_class.save_pretrained(Path(out, "huggingface"))


def mcore(
    hf: str,
    out: str,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    v1: bool = False,
    singleton: bool = False,
    **settings: Any,
) -> None:
    """verl's own GPTModel, filled by `fill_mcore`, and its MegatronCheckpointManager.

    `singleton` names every expert (megatron-core's `singleton_local_shards`); `settings`: see `mcore_model`.
    """
    import torch
    from megatron.core import mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    mpu.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    model_parallel_cuda_manual_seed(0)
    config, transformer, model = mcore_model(hf, ddp=v1, **settings)
    bridge = SimpleNamespace(config=transformer)
    manager = megatron_manager(hf, config, bridge, model, distributed_adam(model) if v1 else None)
    if singleton:
        build = manager._build_sharded_state_dict_metadata
        manager._build_sharded_state_dict_metadata = lambda: {**build(), "singleton_local_shards": True}
    save(manager, out, v1)
    torch.distributed.barrier()
    mpu.destroy_model_parallel()


def mcore_model(
    hf: str,
    ddp: bool = False,
    like: str = "",
    value: str = "",
    overrides: dict[str, Any] | None = None,
    initializer: str = "DenseModel",
) -> tuple[Any, Any, Any]:
    """Hugging Face's config, Megatron's, and this rank's chunks of the model, filled with the weights of `hf`.

    Args:
        like: build it as this architecture.
        value: "critic" or "reward" gives it one output.
        initializer: of verl.models.mcore. DenseModel makes a plain GPTModel; 0.9.1's Qwen2MoEModel does not know
            the gate of megatron-core 0.16.
    """
    import torch
    from fill_mcore import fill
    from mbridge.core.util import get_model
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.identity_op import IdentityOp
    from transformers import AutoConfig
    from verl.models.mcore import hf_to_mcore_config, model_initializer
    from verl.utils.megatron_utils import unwrap_model

    config = AutoConfig.from_pretrained(hf)
    if hasattr(config, "rope_parameters"):  # transformers 5
        config.rope_theta, config.rope_scaling = config.rope_parameters["rope_theta"], None
    if like:
        config.architectures = [like]
    # What is fused needs CUDA or Transformer Engine. No weight depends on it.
    settings = {
        "moe_token_dispatcher_type": "allgather",
        "variable_seq_lengths": False,
        "moe_shared_expert_overlap": False,
        "apply_rope_fusion": False,
        "attention_backend": "auto",
        **(overrides or {}),
    }
    transformer = hf_to_mcore_config(config, torch.bfloat16, **settings)
    builder = getattr(model_initializer, initializer)(transformer, config)

    def provider(pre_process: bool, post_process: bool, vp_stage: int | None = None) -> Any:
        made = builder.initialize(
            pre_process=pre_process,
            post_process=post_process,
            share_embeddings_and_output_weights=config.tie_word_embeddings,
            vp_stage=vp_stage,
        )
        if value and post_process:
            # LinearForLastLayer is one; that of 0.6.1 has a bias.
            made.output_layer = torch.nn.Linear(config.hidden_size, 1, bias=_is_061())
        return made

    wrap = {"wrap_with_ddp": True, "ddp_config": {"use_distributed_optimizer": True}} if ddp else {}
    # Attention has no weight, and Megatron's local one cannot be built for latent attention.
    local = patch.object(LocalSpecProvider, "core_attention", lambda self: IdentityOp)
    with local, patch.object(multi_latent_attention, "HAVE_TE", False, create=True):
        model = get_model(provider, bf16=True, fp16=False, **wrap)
    for chunk in unwrap_model(model):
        fill(chunk, Path(hf), config)
    return config, transformer, model


def megatron_manager(hf: str, config: Any, bridge: Any, model: Any, optimizer: Any = None) -> Any:
    """verl's MegatronCheckpointManager (0.6.1 or 0.9.1) that saves all it is given by dist_checkpointing."""
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    # With an optimizer 0.9.1 asks for more of the trainer's configuration: `save` calls the parts by hand.
    contents = ["model", "extra", *(["optimizer"] if optimizer is not None and _is_061() else [])]
    return MegatronCheckpointManager(
        config=OmegaConf.create({"model": {"path": hf}}),
        checkpoint_config=OmegaConf.create(
            {"save_contents": contents, "load_contents": contents, "async_save": False}
        ),
        model_config=config,
        transformer_config=bridge.config,
        role="actor",
        model=model,
        arch=config.architectures[0],
        hf_config=config,
        param_dtype=torch.bfloat16,
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        processing_class=AutoTokenizer.from_pretrained(hf),
        optimizer=optimizer,
        optimizer_scheduler=None,
        use_distributed_optimizer="optimizer" in contents,
        use_dist_checkpointing=True,
        bridge=None,
    )


def _is_061() -> bool:
    import verl

    return bool(verl.__version__ == "0.6.1")


def distributed_adam(model: Any) -> Any:
    """Megatron's distributed Adam; the CPU backend fills its state when it is saved before a step."""
    import torch
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    return get_megatron_optimizer(settings, model)


def fsdp(hf: str, out: str, dtype: str = "float32", critic_of: str = "") -> None:
    """verl 0.9.1's FSDPCheckpointManager on an FSDP2 model over all ranks.

    `critic_of`: the architecture that config.json had when verl made a critic of it.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    config, model_class = AutoConfig.from_pretrained(hf), AutoModelForCausalLM
    if critic_of:  # workers/engine/fsdp/transformer_impl.py
        config.architectures, model_class = [critic_of], AutoModelForTokenClassification
        config.num_labels, config.classifier_dropout, config.hidden_dropout = 1, 0.0, "0"
    model = model_class.from_pretrained(hf, dtype=getattr(torch, dtype), config=config)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("fsdp",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    manager = FSDPCheckpointManager(
        model,
        processing_class=AutoTokenizer.from_pretrained(hf),
        checkpoint_config={"save_contents": ["model"], "load_contents": ["model"]},
    )
    manager.save_checkpoint(out, global_step=1)


def main() -> None:
    import torch
    import verl  # noqa: F401 - loads the CPU backend

    torch.distributed.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text()):
        {"model": model, "megatron": megatron, "mcore": mcore, "fsdp": fsdp}[job.pop("kind")](**job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # the writer of dist_checkpointing starts processes that import this module
    main()
