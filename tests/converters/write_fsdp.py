"""Write FSDP checkpoints of every mesh with verl's own manager: run by torchrun on gloo, four ranks.

    torchrun --nproc_per_node 4 write_fsdp.py OUT

OUT/NAME/actor is the checkpoint, OUT/NAME/truth.pt the state dict before it was sharded. Sizes are odd on purpose:
hardly an axis is a multiple of the ranks, and some ranks hold no row. Needs the CPU backend of the rehearsal
(VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 37, "hidden_size": 6, "intermediate_size": 9, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "architectures": ["Qwen3ForCausalLM"],
}  # fmt: skip


def model(critic: bool = False) -> Any:
    """The same weights on every rank."""
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.Qwen3Config(**SIZES)
    if critic:
        config.num_labels = 1
        made = transformers.AutoModelForTokenClassification.from_config(config)
    else:
        made = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape))
    return made


def adapted() -> Any:
    import peft
    import torch

    made = peft.get_peft_model(
        model(),
        peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=12, target_modules="all-linear"),
    )
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape))
    return made


def fsdp2(made: Any, shape: tuple[int, ...] = (4,)) -> Any:
    """As verl's engine: its mesh, and its order of wrapping."""
    from omegaconf import OmegaConf
    from torch.distributed.device_mesh import init_device_mesh
    from verl.utils.fsdp_utils import apply_fsdp2

    names = ("fsdp",) if len(shape) == 1 else ("ddp", "fsdp")
    apply_fsdp2(made, {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=names)}, OmegaConf.create({}))
    return made


def tensor_parallel(made: Any) -> Any:
    """Two ranks of tensor parallelism, on rows and on columns, in two of FSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    for layer in made.model.layers:
        rows = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
        rows |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
        columns = {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        parallelize_module(layer, mesh["tp"], {**rows, **columns})
        fully_shard(layer, mesh=mesh["fsdp"])
    fully_shard(made, mesh=mesh["fsdp"])
    return made


def fsdp1(made: Any, shape: tuple[int, ...] | None) -> Any:
    """FSDP1 over a mesh, or without one (verl before 0.2: ShardedTensor)."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[-len(shape) :])
    hybrid = shape is not None and len(shape) == 2
    return FullyShardedDataParallel(
        made,
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=lambda module, recurse, **_: recurse or type(module).__name__ == "Qwen3DecoderLayer",
        use_orig_params=False,
        device_id=torch.device("cpu"),
    )


JOBS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Any]]] = {
    "fsdp2": (model, fsdp2, {}),
    "hsdp": (model, lambda made: fsdp2(made, (2, 2)), {}),
    "tensor_parallel": (model, tensor_parallel, {}),
    "fsdp1": (model, lambda made: fsdp1(made, (4,)), {}),
    "fsdp1_hsdp": (model, lambda made: fsdp1(made, (2, 2)), {}),
    "fsdp1_no_mesh": (model, lambda made: fsdp1(made, None), {}),
    "critic": (lambda: model(critic=True), fsdp2, {}),
    "lora": (adapted, fsdp2, {}),
    "lora_only": (adapted, fsdp2, {"save_lora_only": True}),
}


def main() -> None:
    import torch
    import verl  # noqa: F401 - loads the CPU backend
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    torch.distributed.init_process_group("gloo")
    for name, (make, shard, settings) in JOBS.items():
        out = Path(sys.argv[1], name)
        made = make()
        if torch.distributed.get_rank() == 0:
            out.mkdir(parents=True, exist_ok=True)  # the other ranks may be ahead
            torch.save(made.state_dict(), out / "truth.pt")
            if name == "lora":
                adapted().merge_and_unload().save_pretrained(out / "merged")
                adapted().unload().save_pretrained(out / "base")
        contents = {"save_contents": ["model"], "load_contents": ["model"], **settings}
        manager = FSDPCheckpointManager(shard(made), processing_class=None, checkpoint_config=contents)
        manager.save_checkpoint(str(out / "actor"), global_step=1)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
