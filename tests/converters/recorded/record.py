"""Record checkpoints of verl 0.6.1 (versions: README.md).

    torchrun --nproc_per_node 2 record.py {tp|ep} HF_DIR OUT_ACTOR_DIR [INITIALIZER]

with VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend, and the checkout and tests/converters in PYTHONPATH. Both
ranks are one tensor or one expert parallel group; INITIALIZER is a class of verl.models.mcore.model_initializer,
without it mbridge makes the model. The tests do not run this file: they read what it wrote.
"""

import sys
from types import SimpleNamespace


def main() -> None:
    import torch
    import verl  # noqa: F401 - loads the CPU backend
    from mbridge import AutoBridge
    from megatron.core import mpu
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from transformers import AutoConfig
    from write_checkpoints import distributed_adam, mcore_model, megatron_manager

    parallel, source, target, *initializer = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    ranks = torch.distributed.get_world_size()
    size = {"tp": "tensor_model_parallel_size", "ep": "expert_model_parallel_size"}[parallel]
    mpu.initialize_model_parallel(**{size: ranks})
    model_parallel_cuda_manual_seed(0)
    if initializer:
        config, transformer, model = mcore_model(source, ddp=True, initializer=initializer[0])
        bridge = SimpleNamespace(config=transformer)
    else:
        config = AutoConfig.from_pretrained(source)
        bridge = AutoBridge.from_config(config, dtype=torch.bfloat16)
        ddp = {"wrap_with_ddp": True, "ddp_config": {"use_distributed_optimizer": True}}
        model = bridge.get_model(weight_path=source, bf16=True, fp16=False, **ddp)
    manager = megatron_manager(source, config, bridge, model, distributed_adam(model))
    manager.save_checkpoint(target, global_step=3)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
