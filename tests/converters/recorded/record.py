"""Record a checkpoint of verl 0.6.1 (versions: README.md).

    torchrun --nproc_per_node TP record.py HF_DIR OUT_ACTOR_DIR

with VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend, and the checkout and tests/converters in PYTHONPATH. The
tests do not run this file: they read what it wrote.
"""

import sys


def main() -> None:
    import torch
    import verl  # noqa: F401 - loads the CPU backend
    from mbridge import AutoBridge
    from megatron.core import mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from transformers import AutoConfig
    from write_checkpoints import distributed_adam, megatron_manager

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
    contents = ["model", "optimizer", "extra"]
    manager = megatron_manager(source, config, bridge, model, contents, distributed_adam(model))
    manager.save_checkpoint(target, global_step=3)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
