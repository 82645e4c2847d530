"""A small tokenizer with a chat template, saved as a model folder: a token a byte, but for a few words."""

from __future__ import annotations

from pathlib import Path

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Tokens of CHATML around one user message: "<|im_start|>" and so on are one token, and so are "user", "assistant".
AROUND = 8
# As Gemma's template does.
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


def save_tokenizer(folder: Path, *, template: str | None = CHATML) -> Path:
    """Save it in ``folder``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>", "<s>")])
    raw.add_tokens(["user", "assistant"])
    # A begin token and a limit, which must not be counted and not cut: verl's filter does neither.
    start = raw.token_to_id("<s>")
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    raw.enable_truncation(512)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", model_max_length=64)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
