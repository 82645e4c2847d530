"""Small tokenizers of the families that reward models come with, saved as a model directory without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "user assistant system: the answer is 72. Let's think step by step and output it after ####.\n\n",
    "日本語の文章と、漢字。 emoji 😀 and é, combining e\u0301",
] * 8
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] | trim }}</s>"
    "{% endfor %}"
)


def _save(raw: Any, to: Path, config: Any, **options: Any) -> Path:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **{"model_max_length": 512, **options})
    tokenizer.save_pretrained(to)
    config.save_pretrained(to)
    return to


def _around(raw: Any, single: str, pair: str, *names: str) -> None:
    from tokenizers.processors import TemplateProcessing

    special = [(name, raw.token_to_id(name)) for name in names]
    raw.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)


def qwen(to: Path, **options: Any) -> Path:
    """Byte-level BPE that adds no token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Config

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXT, trainer)
    options = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML, **options}
    return _save(raw, to, Qwen2Config(num_labels=1), **options)


def llama(to: Path, **options: Any) -> Path:
    """SentencePiece-like BPE with a begin token before each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    raw.train_from_iterator(TEXT, trainer)
    _around(raw, "<s> $A", "<s> $A <s> $B", "<s>")
    options = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": LLAMA, **options}
    return _save(raw, to, LlamaConfig(num_labels=1), **options)


def bert(to: Path, **options: Any) -> Path:
    """WordPiece with token types."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertConfig

    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    raw.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    )
    _around(raw, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    options = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", **options}
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return _save(raw, to, BertConfig(num_labels=1), model_input_names=names, **options)


def roberta(to: Path, **options: Any) -> Path:
    """Byte-level BPE with two separators, and positions that start behind the padding token's id."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import RobertaConfig

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXT, trainer)
    _around(raw, "<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>")
    options = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **options}
    return _save(raw, to, RobertaConfig(num_labels=1, max_position_embeddings=514, pad_token_id=1), **options)


def deberta(to: Path, **options: Any) -> Path:
    """Unigram, whose vocabulary holds its own special tokens as pieces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import DebertaV2Config

    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=names, unk_token="[UNK]", show_progress=False)
    raw.train_from_iterator(TEXT, trainer)
    _around(raw, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    options = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", **options}
    return _save(raw, to, DebertaV2Config(num_labels=1), **options)


FAMILIES: dict[str, Callable[..., Path]] = {
    "qwen": qwen,
    "llama": llama,
    "bert": bert,
    "roberta": roberta,
    "deberta": deberta,
}
