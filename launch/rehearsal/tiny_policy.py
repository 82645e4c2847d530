"""A policy of a million random weights, of the job's architecture family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = ("qwen3", "qwen2", "llama")

# 4 layers for PP2; 4 heads and 2 KV heads for TP2; head_dim 32, the smallest that vLLM's CPU attention takes.
_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


def policy_config(family: str, tokenizer: Any) -> Any:
    """The model's configuration, with the tokenizer's vocabulary and special tokens.

    Raises:
        ValueError: The family is not one of `FAMILIES`.
    """
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    if family not in FAMILIES:
        raise ValueError(f"family={family}: the rehearsal has tiny models of {', '.join(FAMILIES)}")
    config_class = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig}[family]
    shape = dict(_SHAPE)
    if family == "qwen3":
        shape["head_dim"] = 32
    return config_class(
        **shape,
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def build_policy(family: str, tokenizer: Any, folder: Path) -> int:
    """Write the model (bfloat16) and its tokenizer to `folder`.

    Returns:
        The number of parameters.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(policy_config(family, tokenizer), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            # No two tensors may be equal: a converter that swaps two norms of ones would go unnoticed.
            values = 1 + 0.1 * noise if "norm" in name else 0.02 * noise
            parameter.copy_(values)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
