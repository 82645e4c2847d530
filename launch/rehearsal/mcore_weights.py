"""Hugging Face weights -> Megatron torch_dist checkpoint, for megatron.dist_checkpointing_path.

    python -m launch.rehearsal.mcore_weights HF_DIR OUT_DIR

One process on the CPU backend; run it with the environment of `launch.rehearsal.overrides.cpu_environment`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def convert(source: Path, target: Path) -> int:
    """Write the model's sharded state dict, weights only, with Transformer Engine's key names.

    Args:
        source: Hugging Face directory of an architecture that mbridge knows.
        target: New directory.

    Returns:
        The number of entries.
    """
    # The one rank meets itself in a file, without a port. Gloo still wants an interface that exists.
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
    import torch
    import verl  # noqa: F401  # loads the CPU backend before Megatron
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from transformers import AutoConfig
    from verl.models.mcore.mbridge import AutoBridge

    with tempfile.TemporaryDirectory() as meeting:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}/rank", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        config = AutoConfig.from_pretrained(source)
        if not hasattr(config, "rope_theta"):  # transformers 5 keeps it in rope_parameters, mbridge reads it here
            config.rope_theta = config.rope_parameters["rope_theta"]
        bridge = AutoBridge.from_config(config, dtype=torch.bfloat16)
        models = bridge.get_model(weight_path=str(source), wrap_with_ddp=False, bf16=True, fp16=False)
        model = models[0]
        while not hasattr(model, "sharded_state_dict") or hasattr(
            model, "module"
        ):  # Float16Module around GPTModel
            model = model.module
        state = model.sharded_state_dict()
        target.mkdir(parents=True)
        dist_checkpointing.save(state, str(target))
        torch.distributed.destroy_process_group()
    return len(state)


def main() -> None:
    """A part of `launch.rehearsal.prepare`, no command of its own."""
    source, target = map(Path, sys.argv[1:])
    print(f"{target}: {convert(source, target)} entries")


if __name__ == "__main__":  # dist_checkpointing's writer starts processes that import this module
    main()
