"""A checkpoint of megatron-core as verl 0.9.1 lays it out: python mcore_inputs.py FOLDER MEGABYTES

Written by torch's own writer. Names, shapes and chunks are those of two tensor parallel ranks of a Qwen3 model:
layers stacked on the first axis, a chunk for each layer and rank, two files a rank. Values are random numbers.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

RANKS = 2
_LAYER = "decoder.layers."
_WITH_EXTRA_STATE = ("self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1", "mlp.linear_fc2")


class Part(NamedTuple):
    """A chunk of a tensor."""

    name: str
    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Dimensions:
    """Of Qwen3-0.6B or, untied, Qwen3-1.7B, with another number of layers."""

    layers: int
    hidden: int = 1024
    ffn: int = 3072
    tied: bool = True
    heads: int = 16
    kv_heads: int = 8
    head: int = 128
    vocabulary: int = 151_936

    def tensors(self) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """Name -> shape, and the axis that tensor parallel ranks divide."""
        H, F, D, L = self.hidden, self.ffn, self.head, self.layers
        found: dict[str, tuple[tuple[int, ...], int | None]] = {
            "embedding.word_embeddings.weight": ((self.vocabulary, H), 0),
            f"{_LAYER}self_attention.linear_qkv.layer_norm_weight": ((L, H), None),
            f"{_LAYER}self_attention.linear_qkv.weight": ((L, (self.heads + 2 * self.kv_heads) * D, H), 1),
            f"{_LAYER}self_attention.q_layernorm.weight": ((L, D), None),
            f"{_LAYER}self_attention.k_layernorm.weight": ((L, D), None),
            f"{_LAYER}self_attention.linear_proj.weight": ((L, H, self.heads * D), 2),
            f"{_LAYER}mlp.linear_fc1.layer_norm_weight": ((L, H), None),
            f"{_LAYER}mlp.linear_fc1.weight": ((L, 2 * F, H), 1),
            f"{_LAYER}mlp.linear_fc2.weight": ((L, H, F), 2),
            "decoder.final_layernorm.weight": ((H,), None),
        }
        if not self.tied:
            found["output_layer.weight"] = ((self.vocabulary, H), 0)
        return found

    def parts(self) -> Iterator[Part]:
        """Every chunk."""
        for name, (whole, axis) in self.tensors().items():
            stacked = name.startswith(_LAYER)
            for layer in range(whole[0] if stacked else 1):
                for rank in range(RANKS if axis is not None else 1):
                    offsets, sizes = [0] * len(whole), list(whole)
                    if stacked:
                        offsets[0], sizes[0] = layer, 1
                    if axis is not None:
                        sizes[axis] //= RANKS
                        offsets[axis] = rank * sizes[axis]
                    yield Part(name, whole, tuple(offsets), tuple(sizes))

    def extra_states(self) -> list[str]:
        """Names of the empty FP8 states, which Megatron reads, too."""
        return [
            f"{_LAYER}{module}._extra_state/shard_{layer}_{self.layers}"
            for module in _WITH_EXTRA_STATE
            for layer in range(self.layers)
        ]

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": self.hidden,
            "intermediate_size": self.ffn, "num_hidden_layers": self.layers, "head_dim": self.head,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "hidden_act": "silu",
            "max_position_embeddings": 4096, "attention_bias": False, "torch_dtype": "bfloat16",
            "rope_scaling": None, "eos_token_id": 2,
        }  # fmt: skip


def dimensions(megabytes: int) -> Dimensions:
    """A model of about that size; with at least one layer it has 340 MB."""
    shape = Dimensions(1) if megabytes < 2000 else Dimensions(1, 2048, 6144, tied=False)
    layer = sum(prod(s) for name, (s, _) in shape.tensors().items() if name.startswith(_LAYER)) * 2
    rest = sum(prod(s) for name, (s, _) in shape.tensors().items() if not name.startswith(_LAYER)) * 2
    return replace(shape, layers=max(1, round((megabytes * 1e6 - rest) / layer)))


def write(actor: Path, shape: Dimensions) -> None:
    """Write `actor`/model/dist_ckpt and `actor`/model/huggingface."""
    import torch
    from torch.distributed.checkpoint import FileSystemWriter, save
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    pool = (torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.05).to(torch.bfloat16)

    def item(part: Part) -> WriteItem:
        name, whole, offsets, sizes = part
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        data = TensorWriteData(chunk, TensorProperties(dtype=torch.bfloat16), torch.Size(whole))
        return WriteItem(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data)

    class Planner(DefaultSavePlanner):
        """What is saved is made when it is written, so that a large model needs no memory."""

        def create_local_plan(self) -> SavePlan:
            items = [item(part) for part in shape.parts()]
            items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in shape.extra_states()]
            self.plan = SavePlan(items, planner_data={})
            return self.plan

        def resolve_data(self, write_item: WriteItem) -> Any:
            if write_item.tensor_data is None:
                buffer = io.BytesIO()
                torch.save([None], buffer)
                return buffer
            sizes = tuple(write_item.tensor_data.chunk.sizes)
            values = pool.roll(crc32(repr(write_item.index).encode()) % pool.numel())
            values = values.repeat(-(-prod(sizes) // pool.numel()))[: prod(sizes)]
            return (values + ("norm" in write_item.index.fqn)).reshape(sizes)

    checkpoint = actor / "model" / "dist_ckpt"
    checkpoint.mkdir(parents=True)
    writer = FileSystemWriter(checkpoint, thread_count=2 * RANKS, sync_files=False)
    save({}, storage_writer=writer, planner=Planner(), no_dist=True)
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (checkpoint / "metadata.json").write_text(
        json.dumps({**backends, "common_backend": "torch", "common_backend_version": 1})
    )
    torch.save({}, checkpoint / "common.pt")
    (actor / "model" / "huggingface").mkdir()
    (actor / "model" / "huggingface" / "config.json").write_text(json.dumps(shape.config(), indent=2))


if __name__ == "__main__":
    write(Path(sys.argv[1]), dimensions(int(sys.argv[2])))
