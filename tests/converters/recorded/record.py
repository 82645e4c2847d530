"""Record a checkpoint of verl 0.6.1 (versions: README.md).

    torchrun --nproc_per_node TP record.py HF_DIR OUT_ACTOR_DIR

with VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend. This file is not run by the tests.
"""

import sys


def main() -> None:
    import torch
    import verl  # noqa: F401 - loads the CPU backend
    from mbridge import AutoBridge
    from megatron.core import mpu
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from omegaconf import OmegaConf
    from transformers import AutoConfig, AutoTokenizer
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    source, target = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    mpu.initialize_model_parallel(tensor_model_parallel_size=torch.distributed.get_world_size())
    model_parallel_cuda_manual_seed(0)
    config = AutoConfig.from_pretrained(source)
    bridge = AutoBridge.from_config(config, dtype=torch.bfloat16)
    model = bridge.get_model(
        weight_path=source,
        bf16=True,
        fp16=False,
        wrap_with_ddp=True,
        ddp_config={"use_distributed_optimizer": True},
    )
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    contents = ["model", "optimizer", "extra"]
    manager = MegatronCheckpointManager(
        config=OmegaConf.create({"model": {"path": source}}),
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
        processing_class=AutoTokenizer.from_pretrained(source),
        optimizer=get_megatron_optimizer(settings, model),
        optimizer_scheduler=None,
        use_distributed_optimizer=True,
        use_dist_checkpointing=True,
        bridge=None,
    )
    manager.save_checkpoint(target, global_step=3)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
