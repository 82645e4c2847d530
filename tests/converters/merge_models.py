"""Tiny models with a tokenizer, made here: no two tensors alike, so that any mix-up shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
# head_dim != hidden_size / heads, four query heads for each key head
BASE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3_odd": ("Qwen3Config", {"head_dim": 16, "vocab_size": 1003}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2_tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "llama": ("LlamaConfig", {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}


def make(name: str, folder: Path) -> Path:
    """Write the model `name` (bfloat16), tokenizer and generation config to `folder`."""
    import torch
    import transformers

    config_class, changes = MODELS[name]
    config = getattr(transformers, config_class)(
        **{**BASE, **changes}, bos_token_id=None, eos_token_id=2, pad_token_id=0
    )
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.1 * noise if "norm" in parameter_name else 0.05 * noise)
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> Any:
    import tokenizers
    import transformers

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["What is 1 + 2? The answer is 3."] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
