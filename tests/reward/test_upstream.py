"""The backends of other servers, against stubs of them; the real vLLM is in tests/engine/test_reward_vllm.py."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from other_processes import wait_until
from reward_servers import free_port
from upstream_servers import NAN_TOKEN, Upstream, logit, upstream_server

from reward.backends import upstream as module
from reward.backends.interface import Tokens
from reward.backends.options import ModelOptions
from reward.backends.upstream import UpstreamModel, connect
from reward.errors import ModelDirError, UpstreamError, UpstreamRefusedError
from reward.inputs import PairTokenizer

BOTH = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> PairTokenizer:
    return PairTokenizer(model_dir, max_length=512)


def options(model_dir: Path, kind: str, url: str | None, **more: Any) -> ModelOptions:
    return ModelOptions(model_dir, backend=kind, upstream=url, **more)  # type: ignore[arg-type]


def connected(upstream: Upstream, model_dir: Path, tokenizer: PairTokenizer, **more: Any) -> UpstreamModel:
    return connect(options(model_dir, upstream.kind, upstream.url, **more), tokenizer)


@BOTH
def test_scores_are_those_of_the_upstream_in_order(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    pairs = [tokenizer.encode("What is it? " * n, f"{n} " * (20 - n)) for n in range(1, 20)]
    with upstream_server(kind) as upstream:
        model = connected(upstream, model_dir, tokenizer)
        assert model.forward(pairs, 0) == [logit(pair.input_ids) for pair in pairs]
        assert model.forward(pairs[3:4], 3) == [logit(pairs[3].input_ids)]
        sent = upstream.bodies[-2]["input" if kind == "vllm" else "input_ids"]
        assert sent == [list(pair.input_ids) for pair in pairs]
        model.close()


@BOTH
def test_lanes_work_side_by_side(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    pairs = [tokenizer.encode("side", f"by side {n}") for n in range(60)]
    with upstream_server(kind) as upstream:
        model = connected(upstream, model_dir, tokenizer, replicas=3, batch_tokens=100)
        assert (model.lanes, model.batch_tokens, model.packs) == (3, 100, True)
        upstream.crowd = 3
        with ThreadPoolExecutor(3) as pool:
            parts = list(pool.map(lambda lane: model.forward(pairs[lane::3], lane), range(3)))
        assert upstream.peak == 3
    assert parts == [[logit(pair.input_ids) for pair in pairs[lane::3]] for lane in range(3)]


@BOTH
def test_what_is_told_of_the_upstream(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server(kind) as upstream:
        info = connected(upstream, model_dir, tokenizer).info()
    assert (info["name"], info["url"], info["model"]) == (kind, upstream.url, "/models/reward")


# --- what ends the start ---


def refusal(upstream: Upstream, model_dir: Path, tokenizer: PairTokenizer, **more: Any) -> str:
    with pytest.raises(ModelDirError) as caught:
        connected(upstream, model_dir, tokenizer, **more)
    return str(caught.value)


@BOTH
def test_nothing_there(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(ModelDirError, match=rf"{url}.*Connection refused.*Start the server before"):
        connect(options(model_dir, kind, url), tokenizer)
    assert time.monotonic() - started < 30


def test_no_url(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with pytest.raises(ModelDirError, match="--upstream is ''; expected the URL of a running server"):
        connect(options(model_dir, "vllm", None), tokenizer)


@BOTH
def test_key(kind: str, model_dir: Path, tokenizer: PairTokenizer, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("right-key\n")
    with upstream_server(kind, key="right-key") as upstream:
        assert "--upstream-key-file" in refusal(upstream, model_dir, tokenizer)
        model = connected(upstream, model_dir, tokenizer, upstream_key_file=key)
        assert model.forward([Tokens([5, 6])], 0) == [logit([5, 6])]
        key.write_text("wrong-key\n")
        told = refusal(upstream, model_dir, tokenizer, upstream_key_file=key)
        assert "401" in told
        assert "wrong-key" not in told
        missing = tmp_path / "missing"
        assert str(missing) in refusal(upstream, model_dir, tokenizer, upstream_key_file=missing)


@BOTH
def test_more_labels_than_one(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server(kind, labels=2) as upstream:
        assert "the classifier has 2 labels" in refusal(upstream, model_dir, tokenizer)


def test_generative_models(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("vllm", generation=True) as upstream:
        assert "sequence classifier" in refusal(upstream, model_dir, tokenizer)
    with upstream_server("sglang", generation=True) as upstream:
        assert "--is-embedding" in refusal(upstream, model_dir, tokenizer)


def test_the_other_kind_of_server(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("sglang") as upstream, pytest.raises(ModelDirError, match=r"/v1/models.*404"):
        connect(options(model_dir, "vllm", upstream.url), tokenizer)
    with upstream_server("vllm") as upstream, pytest.raises(ModelDirError, match=r"model_info.*404"):
        connect(options(model_dir, "sglang", upstream.url), tokenizer)


@BOTH
def test_the_longest_pair_must_fit(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    # SGLang takes one token less than its context length.
    with upstream_server(kind, max_tokens=511 if kind == "vllm" else 512) as upstream:
        assert "Pairs may have 512 tokens: give --max-length" in refusal(upstream, model_dir, tokenizer)
    with upstream_server(kind, max_tokens=512 if kind == "vllm" else 513) as upstream:
        connected(upstream, model_dir, tokenizer)


def test_a_server_that_cuts_by_itself(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("sglang", max_tokens=300, truncates=True) as upstream:
        assert "sent 512 tokens, SGLang scored 300" in refusal(upstream, model_dir, tokenizer)


def test_a_sigmoid_that_cannot_be_turned_off(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("vllm", heeds_activation=False) as upstream:
        assert "use_activation" in refusal(upstream, model_dir, tokenizer)


def test_a_model_without_an_activation(
    model_dir: Path, tokenizer: PairTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Upstream._pooling
    monkeypatch.setattr(Upstream, "_pooling", lambda self, body: raw(self, {**body, "use_activation": False}))
    with upstream_server("vllm") as upstream:
        connected(upstream, model_dir, tokenizer)


def test_segments_cannot_be_sent(tokenizer: PairTokenizer, tmp_path: Path) -> None:
    from transformers import BertConfig, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "is", "2", "+", "?", "4"]
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(tmp_path)
    BertConfig(vocab_size=11, num_labels=1, pad_token_id=0).save_pretrained(tmp_path)
    with upstream_server("vllm") as upstream:
        told = refusal(upstream, tmp_path, PairTokenizer(tmp_path))
        assert not upstream.bodies
    assert "token_type_ids" in told
    assert "--backend transformers" in told


def test_old_names_of_sglang(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("sglang", old_names=True) as upstream:
        assert connected(upstream, model_dir, tokenizer).forward([Tokens([1, 2])], 0) == [logit([1, 2])]


def test_warnings(model_dir: Path, tokenizer: PairTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with upstream_server("sglang", model=f"/mnt/{model_dir.name}/") as upstream:
        connected(upstream, model_dir, tokenizer)
    assert not caplog.records
    with upstream_server("sglang", architecture="Qwen3ForSequenceClassification") as upstream:
        connected(upstream, model_dir, tokenizer)
    assert "/models/reward" in caplog.text
    assert "random where the checkpoint has no score.bias" in caplog.text


def test_an_upstream_that_gives_nan_to_everything(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("vllm", damaged=True) as upstream:
        assert "nan" in refusal(upstream, model_dir, tokenizer)


# --- what goes wrong later ---


def test_nan_of_vllm_is_a_nan(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("vllm") as upstream:
        model = connected(upstream, model_dir, tokenizer)
        bad, good = model.forward([Tokens([NAN_TOKEN]), Tokens([4])], 0)
    assert math.isnan(bad)
    assert good == logit([4])


def test_nan_of_sglang_is_a_refusal(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("sglang") as upstream:
        model = connected(upstream, model_dir, tokenizer)
        with pytest.raises(RuntimeError, match="500") as caught:
            model.forward([Tokens([NAN_TOKEN]), Tokens([4])], 0)
        assert not isinstance(caught.value, UpstreamRefusedError)  # the service then asks for each pair alone
        with pytest.raises(UpstreamRefusedError, match="Internal Server Error"):
            model.forward([Tokens([NAN_TOKEN])], 0)
        upstream.replies.append((200, [{"embedding": [None], "meta_info": {"prompt_tokens": 1}}]))
        assert math.isnan(model.forward([Tokens([1])], 0)[0])


@BOTH
@pytest.mark.parametrize("status", [400, 413, 422])
def test_refusals(kind: str, status: int, model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server(kind) as upstream:
        model = connected(upstream, model_dir, tokenizer)
        upstream.replies.append((status, {"error": {"message": "too long"}}))
        with pytest.raises(UpstreamRefusedError, match=f"HTTP {status}: too long") as caught:
            model.forward([Tokens([1])], 0)
        assert caught.value.status == 500
        assert model.forward([Tokens([1])], 0) == [logit([1])]


GOOD = {"embedding": [1.0], "meta_info": {"prompt_tokens": 1}}
ABORT = {"type": "abort", "message": "no memory", "status_code": 503}


@pytest.mark.parametrize(
    ("kind", "status", "body", "told"),
    [
        ("vllm", 500, {"error": {"message": "EngineCore died"}}, "EngineCore died"),
        ("vllm", 503, "busy", "503"),
        ("sglang", 503, {"error": {"message": "busy"}}, "busy"),
        ("sglang", 429, "", "429"),
        ("sglang", 404, "", "404"),
        ("vllm", 307, "", "307"),
        ("vllm", 200, "<html>", "not JSON"),
        ("vllm", 200, {"data": []}, "1 pairs"),
        ("vllm", 200, {"data": [{"index": 0, "data": "AACAPw=="}], "usage": {"prompt_tokens": 2}}, "scored 2"),
        ("vllm", 200, {"data": [{"index": 0, "data": "AACAPw=="}]}, "scored None"),
        ("vllm", 200, {"data": [{"index": 1, "data": "AACAPw=="}], "usage": {"prompt_tokens": 1}}, "one row"),
        ("vllm", 200, {"data": [{"index": 0, "data": "AACAP"}], "usage": {"prompt_tokens": 1}}, "base64"),
        ("vllm", 200, {"data": [{"index": 0, "data": [0.5]}], "usage": {"prompt_tokens": 1}}, "base64"),
        ("vllm", 200, {"data": [{"index": 0, "data": ""}], "usage": {"prompt_tokens": 1}}, "0 values"),
        ("sglang", 200, [GOOD, GOOD], "1 outputs"),
        ("sglang", 200, GOOD, "1 outputs"),
        ("sglang", 200, [{**GOOD, "meta_info": {"prompt_tokens": 7}}], "scored 7"),
        ("sglang", 200, [{**GOOD, "meta_info": {"prompt_tokens": 1, "finish_reason": ABORT}}], "no memory"),
        ("sglang", 200, [{**GOOD, "embedding": [0.1, 0.2]}], "2 values"),
        ("sglang", 200, [{**GOOD, "embedding": ["0.1"]}], "expected a number"),
        ("sglang", 200, [{**GOOD, "embedding": [True]}], "expected a number"),
        ("sglang", 200, [{"meta_info": {"prompt_tokens": 1}}], "expected embedding"),
    ],
)
def test_answers_that_are_no_score(
    kind: str, status: int, body: object, told: str, model_dir: Path, tokenizer: PairTokenizer
) -> None:
    with upstream_server(kind) as upstream:
        model = connected(upstream, model_dir, tokenizer)
        upstream.replies.append((status, body))
        with pytest.raises(UpstreamError, match=told) as caught:
            model.forward([Tokens([1])], 0)
        assert caught.value.status == 502
        assert model.forward([Tokens([1])], 0) == [logit([1])]


@BOTH
def test_a_server_that_is_gone_and_back(kind: str, model_dir: Path, tokenizer: PairTokenizer) -> None:
    port = free_port()
    with upstream_server(kind, port) as upstream:
        model = connected(upstream, model_dir, tokenizer)
    started = time.monotonic()
    with pytest.raises(UpstreamError, match="refused"):
        model.forward([Tokens([1])], 0)
    assert time.monotonic() - started < 30
    with upstream_server(kind, port):
        assert model.forward([Tokens([1])], 0) == [logit([1])]


def test_idle_connections_that_the_server_closes(model_dir: Path, tokenizer: PairTokenizer) -> None:
    with upstream_server("vllm", keep_open=False) as upstream:
        model = connected(upstream, model_dir, tokenizer)
        for _ in range(5):
            assert model.forward([Tokens([1])], 0) == [logit([1])]
            time.sleep(0.02)


def test_a_server_that_hangs(model_dir: Path, tokenizer: PairTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream_server("vllm") as upstream:
        model = connected(upstream, model_dir, tokenizer)
        upstream.replies.append(600.0)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_READ_S", 0.2)
            with pytest.raises(UpstreamError, match="no answer within"):
                model.forward([Tokens([1])], 0)
        wait_until(lambda: not upstream.replies, "question that is not answered")
        assert model.forward([Tokens([2])], 0) == [logit([2])]


def test_proxies_are_not_asked(model_dir: Path, tokenizer: PairTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with upstream_server("vllm") as upstream:
        assert connected(upstream, model_dir, tokenizer).forward([Tokens([1])], 0) == [logit([1])]
