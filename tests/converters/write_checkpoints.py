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
from typing import Any


def megatron(hf: str, out: str, tp: int = 1, pp: int = 1, v1: bool = False, vocab_multiple: int = 0) -> None:
    """verl 0.9.1's MegatronCheckpointManager with use_dist_checkpointing=True; `v1` puts the optimizer beside."""
    import torch
    from megatron.core import mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from transformers import AutoConfig
    from verl.models.mcore.mbridge import AutoBridge

    mpu.initialize_model_parallel(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    model_parallel_cuda_manual_seed(0)
    config = AutoConfig.from_pretrained(hf)
    config.rope_theta = config.rope_parameters["rope_theta"]  # where mbridge reads it
    extra = {"make_vocab_size_divisible_by": vocab_multiple} if vocab_multiple else {}
    bridge = AutoBridge.from_config(config, dtype=torch.bfloat16, **extra)
    ddp = {"wrap_with_ddp": True, "ddp_config": {"use_distributed_optimizer": True}} if v1 else {}
    model = bridge.get_model(weight_path=hf, bf16=True, fp16=False, **ddp)
    optimizer = distributed_adam(model) if v1 else None
    manager = megatron_manager(hf, config, bridge, model, ["model", "extra"], optimizer)
    if v1:
        # Layout of verl 0.6.1: model, optimizer and RNG in one dist_ckpt, config and tokenizer in huggingface.
        metadata = {"distrib_optim_sharding_type": "dp_reshardable"}  # verl's default
        state = manager._build_model_sharded_state_dict(metadata)
        state |= manager._build_optimizer_state_dict(dict(state), metadata)
        state |= manager._build_extra_state_dict()
        Path(out, "dist_ckpt").mkdir(parents=True, exist_ok=True)
        manager._save_dist_checkpoint(str(Path(out, "dist_ckpt")), state)
        config.save_pretrained(Path(out, "huggingface"))
        manager.processing_class.save_pretrained(Path(out, "huggingface"))
    else:
        manager.save_checkpoint(out, global_step=1)
    torch.distributed.barrier()
    mpu.destroy_model_parallel()


def megatron_manager(
    hf: str, config: Any, bridge: Any, model: Any, contents: list[str], optimizer: Any = None
) -> Any:
    """verl's MegatronCheckpointManager (0.6.1 or 0.9.1) that saves `contents` by dist_checkpointing."""
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

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


def distributed_adam(model: Any) -> Any:
    """Megatron's distributed Adam; the CPU backend fills its state when it is saved before a step."""
    import torch
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    return get_megatron_optimizer(settings, model)


def fsdp(hf: str, out: str, dtype: str = "float32") -> None:
    """verl 0.9.1's FSDPCheckpointManager on an FSDP2 model over all ranks."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=getattr(torch, dtype))
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
        {"megatron": megatron, "fsdp": fsdp}[job.pop("kind")](**job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # the writer of dist_checkpointing starts processes that import this module
    main()
