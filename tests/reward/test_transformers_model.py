from __future__ import annotations

import json
import logging
import math
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_servers import NAN_CHARACTER

from reward.backends import linear_kernel
from reward.backends.checkpoint import check_positions, padding_token
from reward.backends.interface import Tokens
from reward.backends.load import load_backend
from reward.backends.options import ModelOptions
from reward.backends.transformers_model import TransformersModel
from reward.errors import ModelDirError
from reward.inputs import PairTokenizer

TEXTS = [
    ("Natalia sold clips to 48 of her friends.", "72"),
    ("", "The answer is 72."),
    ("Weng earns $12 an hour for babysitting. " * 40, "Yesterday, she just did 50 minutes. " * 20),
    ("How many?", "many " * 7),
]


def load(path: Path, **options: Any) -> TransformersModel:
    options = {"calibrate_s": 0.0, "device": "cpu", **options}
    backend = load_backend(ModelOptions(path, **options), PairTokenizer(path))
    assert isinstance(backend, TransformersModel)
    return backend


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> list[float]:
    """What transformers makes of each of TEXTS by itself, as the server that this one replaces did."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32).eval()
    scores = []
    for prompt, response in TEXTS:
        inputs = tokenizer(prompt, response, return_tensors="pt", truncation=True, max_length=2048)
        with torch.no_grad():
            scores.append(model(**inputs).logits[0].item())
    return scores


@pytest.fixture(scope="module")
def wide_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of ``model_dir`` with a model whose layers are wide enough for oneDNN to be tried."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    path = tmp_path_factory.mktemp("wide")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_dir / name, path)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=600,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        num_labels=1,
        initializer_range=0.2,
        pad_token_id=0,
    )
    LlamaForSequenceClassification(config).save_pretrained(path)
    return path


def edited(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of the model directory with other values in config.json."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return target


@pytest.mark.parametrize("packing", ["on", "off"])
def test_scores_are_those_of_transformers_in_any_batch(
    model_dir: Path, expected: list[float], packing: Any
) -> None:
    model = load(model_dir, packing=packing)
    assert model.packs is (packing == "on")
    pairs = [PairTokenizer(model_dir).encode(*texts) for texts in TEXTS]
    for order in ([0, 1, 2, 3], [2, 0], [1], [3, 3, 1, 0]):
        scores = model.forward([pairs[place] for place in order], 0)
        assert scores == pytest.approx([expected[place] for place in order], abs=1e-4)
    model.close()


@pytest.mark.parametrize("packing", ["on", "off"])
def test_nan_of_one_pair_stays_its_own(model_dir: Path, expected: list[float], packing: Any) -> None:
    model = load(model_dir, packing=packing)
    tokenizer = PairTokenizer(model_dir)
    pairs = [tokenizer.encode(*TEXTS[0]), tokenizer.encode("a", NAN_CHARACTER), tokenizer.encode(*TEXTS[1])]
    first, poisoned, last = model.forward(pairs, 0)
    assert math.isnan(poisoned)
    assert [first, last] == pytest.approx(expected[:2], abs=1e-4)


def test_a_token_that_the_model_lacks_is_not_looked_up(model_dir: Path, expected: list[float]) -> None:
    model = load(model_dir)
    good = PairTokenizer(model_dir).encode(*TEXTS[0])
    with pytest.raises(ValueError, match=r"token 600, and the model has \d+"):
        model.forward([good, Tokens([5, 600, 5])], 0)
    assert model.forward([good], 0) == pytest.approx(expected[:1], abs=1e-4)


def test_lanes_at_a_time_give_the_same_scores(wide_dir: Path) -> None:
    model = load(wide_dir, replicas=3, threads=4)
    assert model.lanes == 3
    pairs = [PairTokenizer(wide_dir).encode(*texts) for texts in TEXTS]
    alone = model.alone(pairs)
    wrong: list[tuple[int, list[float]]] = []

    def run(lane: int) -> None:
        for _ in range(10):
            order = pairs[lane:] + pairs[:lane]
            scores = model.forward(order, lane)
            if scores != pytest.approx(alone[lane:] + alone[:lane], abs=1e-4):
                wrong.append((lane, scores))

    lanes = [threading.Thread(target=run, args=(lane,)) for lane in range(3)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    assert not wrong


def test_threads_are_shared_among_the_lanes_at_work() -> None:
    from reward.backends.cpu_threads import ThreadShare

    share = ThreadShare(4)
    seen: list[tuple[int, int]] = []

    def second() -> None:
        with share.hold() as threads:
            seen.append((threads, torch.get_num_threads()))

    before = torch.get_num_threads()
    try:
        with share.hold() as threads:
            assert (threads, torch.get_num_threads()) == (4, 4)
            other = threading.Thread(target=second)
            other.start()
            other.join()
            assert torch.get_num_threads() == 4, "what another thread set is not this one's"
        assert seen == [(2, 2)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not linear_kernel.available(torch.float32), reason="this torch has no oneDNN operators")
def test_reordered_layers_are_used_where_quicker_and_given_up_where_scores_change(
    wide_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = PairTokenizer(wide_dir)
    pairs = [tokenizer.encode(*texts) for texts in TEXTS]
    plain = TransformersModel(ModelOptions(wide_dir, device="cpu"), tokenizer.pad_id, tokenizer.max_length)
    before = plain.alone(pairs)
    monkeypatch.setattr(linear_kernel.Trial, "better", lambda self, dtype: True)  # whatever the clock says
    assert plain.reorder(pairs, before).startswith("oneDNN, weights reordered, in 14 layers")
    assert plain.alone(pairs) == pytest.approx(before, abs=1e-4)

    wrong = TransformersModel(ModelOptions(wide_dir, device="cpu"), tokenizer.pad_id, tokenizer.max_length)
    compute = linear_kernel.ReorderedLinear.forward
    monkeypatch.setattr(linear_kernel.ReorderedLinear, "forward", lambda self, rows: 1.1 * compute(self, rows))
    assert wrong.reorder(pairs, before).startswith("torch (oneDNN with reordered weights: scores")
    assert wrong.alone(pairs) == before


def test_tuning_is_measured_told_and_quick(wide_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reward")
    started = time.monotonic()
    model = load(wide_dir, calibrate_s=120.0, threads=2)
    assert time.monotonic() - started < 60, "about two seconds where nothing else runs"
    info = model.info()
    tried = info["calibration"]["tried"]
    assert {"lanes": model.lanes, "batch_tokens": model.batch_tokens} in [
        {"lanes": entry["lanes"], "batch_tokens": entry["batch_tokens"]} for entry in tried
    ]
    assert (info["dtype"], info["device"], info["packing"]) == ("float32", "cpu", "yes")
    assert info["linear"]
    json.dumps(info)
    assert f"packed, batches of {model.batch_tokens} tokens, {model.lanes} at a time" in caplog.text
    assert f"linear layers: {info['linear']}" in caplog.text


def test_given_limits_are_taken_as_they_are(model_dir: Path) -> None:
    model = load(model_dir, calibrate_s=10.0, replicas=2, batch_tokens=777, threads=1)
    assert (model.lanes, model.batch_tokens, model.threads) == (2, 777, 1)
    assert "calibration" not in model.info()
    assert load(model_dir, calibrate_s=0.2, batch_tokens=777, threads=2).batch_tokens == 777


def test_attention_that_was_asked_for_is_not_replaced(model_dir: Path, expected: list[float]) -> None:
    model = load(model_dir, attention="eager")
    assert not model.packs
    assert model.info()["attention"] == "eager"
    assert "--attention eager" in model.info()["packing"]
    pairs = [PairTokenizer(model_dir).encode(*texts) for texts in TEXTS]
    assert model.forward(pairs, 0) == pytest.approx(expected, abs=1e-4)


def test_narrow_dtypes(model_dir: Path, expected: list[float]) -> None:
    model = load(model_dir, dtype="bfloat16")
    pairs = [PairTokenizer(model_dir).encode(*texts) for texts in TEXTS]
    assert model.info()["dtype"] == "bfloat16"
    assert model.forward(pairs, 0) == pytest.approx(expected, rel=0.25, abs=0.25)
    assert model.forward(pairs, 0) != pytest.approx(expected, abs=1e-6)


def test_models_that_cannot_be_packed_are_padded(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tiny_models import FAMILIES, tiny_model

    caplog.set_level(logging.INFO, "reward")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_dir / name, tmp_path)
    model = tiny_model(FAMILIES["deberta"])
    model.resize_token_embeddings(600)
    model.save_pretrained(tmp_path)
    assert not load(tmp_path).packs
    assert "is served with padding: no rule how DebertaV2ForSequenceClassification pools" in caplog.text
    with pytest.raises(ModelDirError, match=r"--packing on: no rule how .*; use --packing auto"):
        load(tmp_path, packing="on")


def test_missing_weights_are_refused(model_dir: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = edited(model_dir, tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelDirError, match=r"the weights lack score\.weight; they would be random"):
        load(path)


def test_weights_that_do_not_fit_the_configuration_are_refused(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="transformers cannot load it"):
        load(edited(model_dir, tmp_path / "model", hidden_size=48))


def test_code_in_pickled_weights_does_not_run(model_dir: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    path = edited(model_dir, tmp_path / "model")
    (path / "model.safetensors").unlink()
    torch.save({"score.weight": Payload()}, path / "pytorch_model.bin")
    with pytest.raises(ModelDirError, match="transformers cannot load it"):
        load(path)
    assert not (tmp_path / "executed").exists()


def test_damaged_weights_fail_the_self_test(model_dir: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = edited(model_dir, tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    weights["score.weight"][0, 0] = torch.inf
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelDirError, match=r"self-test, one pair: the model's output is (-?inf|nan)"):
        load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "--device cuda: torch finds no CUDA device here"),
        ({"attention": "flash_attention_2"}, "--attention flash_attention_2 on cpu"),
    ],
)
def test_options_that_this_machine_cannot_have(
    model_dir: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelDirError, match=message):
        load(model_dir, **options)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_batch_are_refused(kind: str) -> None:
    from transformers import Phi3Config, Qwen2Config

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "pad_token_id": 0, "eos_token_id": 1}
    if kind == "dynamic":
        config = Qwen2Config(
            max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 2.0}, **sizes
        )
    else:
        factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        config = Phi3Config(
            max_position_embeddings=128,
            original_max_position_embeddings=64,
            rope_scaling={"type": "longrope", **factors},
            **sizes,
        )
    check_positions(config, 64)
    with pytest.raises(ModelDirError, match=r"--max-length 65: beyond 64 tokens"):
        check_positions(config, 65)


@pytest.mark.parametrize(("own", "used"), [(7, 7), (None, 3), (-1, 3), (600, 3)])
def test_the_configuration_says_what_padding_is(own: int | None, used: int) -> None:
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Qwen2ForSequenceClassification(Qwen2Config(vocab_size=600, num_key_value_heads=1, **sizes))
    model.config.pad_token_id = own
    assert padding_token(model, 3) == used
    assert model.config.pad_token_id == used
    model.config.pad_token_id = None
    with pytest.raises(ModelDirError, match="padding token is 600, and the model has 600 tokens"):
        padding_token(model, 600)
