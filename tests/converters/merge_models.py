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
_EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 2, "num_experts_per_tok": 2, "intermediate_size": 32, "moe_intermediate_size": 16,
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    **_EXPERTS, "num_hidden_layers": 3, "num_key_value_heads": 8, "n_routed_experts": 4, "n_shared_experts": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 12, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 10,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3_odd": ("Qwen3ForCausalLM", {"head_dim": 16, "vocab_size": 1003}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2_tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "llama": ("LlamaForCausalLM", {"head_dim": 16, "rope_theta": 1e6}),
    "mistral": ("MistralForCausalLM", {"num_hidden_layers": 2, "sliding_window": None, "head_dim": 16}),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24}),
    "qwen3moe": ("Qwen3MoeForCausalLM", {**_EXPERTS, "num_experts": 4, "head_dim": 16}),
    "qwen3moe_mixed": (
        "Qwen3MoeForCausalLM",
        {**_EXPERTS, "num_experts": 4, "head_dim": 16, "num_hidden_layers": 4, "decoder_sparse_step": 2},
    ),
    "mixtral": ("MixtralForCausalLM", {**_EXPERTS, "num_local_experts": 4}),
    "deepseek": ("DeepseekV3ForCausalLM", {**_DEEPSEEK, "q_lora_rank": 20}),
    "moonlight": ("DeepseekV3ForCausalLM", {**_DEEPSEEK, "q_lora_rank": None}),
    "qwen3_critic": ("Qwen3ForTokenClassification", {"num_hidden_layers": 2, "head_dim": 16, "num_labels": 1}),
    "llama_reward": (
        "LlamaForSequenceClassification",
        {"num_hidden_layers": 2, "num_labels": 1, "tie_word_embeddings": True},
    ),
    "qwen3moe_critic": (
        "Qwen3MoeForTokenClassification", {**_EXPERTS, "num_experts": 4, "head_dim": 16, "num_labels": 1},
    ),
}  # fmt: skip


def make(name: str, folder: Path, biased: bool = False) -> Path:
    """Write the model `name` (bfloat16), tokenizer and generation config to `folder`.

    Args:
        biased: a value head's bias is not zero, as it may be with verl 0.6.1.
    """
    import torch
    import transformers

    architecture, changes = MODELS[name]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**BASE, **changes}, bos_token_id=None, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(1)
    model = model_class(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.1 * noise if "norm" in parameter_name else 0.05 * noise)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.data = torch.randn(buffer.shape).bfloat16().float()  # as DeepSeek-V3 has it on the hub
        if architecture.endswith("ForTokenClassification") and not biased:
            model.score.bias.zero_()  # Megatron's value head has none in verl 0.9.1
    if model.can_generate():
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
