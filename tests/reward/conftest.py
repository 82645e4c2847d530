"""A random tiny reward model with a real tokenizer, and real servers for the tests that do not stop them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reward_servers import GUARDED_QUEUE, NAN_CHARACTER, SERVER_QUEUE, TOKEN, RunningServer, running_server

_TEXT = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of babysitting.",
    "The answer is 72. Let's think step by step and output the final answer after ####.",
] * 20


def save_model(path: Path, layers: int) -> Path:
    """A random Qwen2 classifier with one label whose output is NaN where the text holds NAN_CHARACTER."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        _TEXT,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.add_tokens([NAN_CHARACTER])
    tokenizer.save_pretrained(path)
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
    )
    model = Qwen2ForSequenceClassification(config).float()
    (poison,) = tokenizer(NAN_CHARACTER)["input_ids"]
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers."""
    return save_model(tmp_path_factory.mktemp("reward_model"), layers=2)


@pytest.fixture(scope="session")
def slow_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with which LONG_TEXT takes about a tenth of a second."""
    return save_model(tmp_path_factory.mktemp("slow_reward_model"), layers=8)


@pytest.fixture(scope="session")
def server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that do not stop it."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    # Ten thousand connections are open before the first of them asks.
    options = ("--queue", str(SERVER_QUEUE), "--calibrate-seconds", "0", "--read-timeout", "300")
    with running_server(model_dir, log, *options) as running:
        yield running
        assert running.terminate() == 0, log.read_text()


@pytest.fixture(scope="session")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the token of ``guarded``."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="session")
def guarded(slow_model_dir: Path, token_file: Path) -> Iterator[RunningServer]:
    """A slow model behind a token, a small queue, 200,000 bytes a request, 2 s for a head or a body."""
    options = ("--token-file", str(token_file), "--queue", str(GUARDED_QUEUE), "--max-request-bytes", "200000")
    log = token_file.parent / "log"
    with running_server(
        slow_model_dir, log, *options, "--read-timeout", "2", "--calibrate-seconds", "0"
    ) as running:
        yield running
        assert running.terminate(60) == 0, log.read_text()
