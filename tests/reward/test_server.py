"""The real server with a real (tiny, random) model."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from reward_servers import NAN_CHARACTER, SERVER_QUEUE, RunningServer, metric


def post(server: RunningServer, body: object, path: str = "/score") -> requests.Response:
    return requests.post(server.url + path, json=body, timeout=30)


def test_score_is_that_of_transformers(server: RunningServer, model_dir: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForSequenceClassification.from_pretrained(model_dir).eval()
    for prompt, response in [
        ("What is 6 * 12?", "72"),
        ("", "alone"),
        ("only a prompt", ""),
        ("a\0b", "c\0"),
    ]:
        with torch.inference_mode():
            expected = model(**tokenizer(prompt, response, return_tensors="pt")).logits[0, 0].item()
        reply = post(server, {"prompt": prompt, "response": response})
        assert reply.status_code == 200
        assert reply.json()["score"] == pytest.approx(expected, abs=1e-4)
        assert reply.json()["truncated"] is False


def test_score_does_not_depend_on_the_batch(server: RunningServer) -> None:
    rng = random.Random(1)
    pairs = [
        {"prompt": "Natalia sold clips " * rng.randint(1, 20), "response": f"{n} " * rng.randint(1, 200)}
        for n in range(64)
    ]
    alone = [post(server, pair).json()["score"] for pair in pairs]
    together = post(server, {"items": pairs}, "/score/batch").json()["scores"]
    with ThreadPoolExecutor(16) as pool:
        mixed = [reply.json()["score"] for reply in pool.map(lambda pair: post(server, pair), pairs)]
    assert len(set(alone)) > 60
    assert together == pytest.approx(alone, abs=1e-4)
    assert mixed == pytest.approx(alone, abs=1e-4)


def test_truncation_is_reported_and_counted(server: RunningServer) -> None:
    before = metric(server, "reward_truncations_total")
    reply = post(server, {"prompt": "p", "response": "12 34 " * 3000}).json()
    assert reply["truncated"] is True
    assert reply["tokens"] == 2048
    assert reply["dropped_tokens"] > 0
    assert metric(server, "reward_truncations_total") == before + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "", "response": ""}, 422),
        ({"prompt": "p", "response": "\ud800"}, 422),
        ({"prompt": "\udfff", "response": "r"}, 422),
        ({"prompt": "p", "response": "\ud83d\ude00"}, 200),
        ({"prompt": "\0", "response": "\0"}, 200),
        ({"prompt": "p"}, 422),
        ({"prompt": "p", "response": None}, 422),
        ({"prompt": "p", "response": 5}, 422),
        ({"prompt": ["p"], "response": "r"}, 422),
        ([], 422),
        (None, 422),
        ("text", 422),
        ({"prompt": "p", "response": "r", "ground_truth": "more than the server knows"}, 200),
        ({"prompt": "p" * 1_000_000, "response": "r"}, 200),
        ({"prompt": "p", "response": 10**4000}, 422),
        ({"prompt": "p", "response": "r", "more": 1e300}, 200),
    ],
)
def test_input(server: RunningServer, body: object, status: int) -> None:
    reply = post(server, body)
    assert reply.status_code == status
    assert ("score" in reply.json()) == (status == 200)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"items": []}, 422),
        ({"items": [{"prompt": "p"}]}, 422),
        ({"items": [{"prompt": "p", "response": "r"}, {"prompt": "", "response": ""}]}, 422),
        ({"items": [{"prompt": "p", "response": "r"}, {"prompt": "p", "response": NAN_CHARACTER}]}, 500),
        ({"items": [{"prompt": "p", "response": "r"}] * 5000}, 413),
        ({"items": [{"prompt": "p", "response": "r"}] * 3}, 200),
    ],
)
def test_batch_input(server: RunningServer, body: object, status: int) -> None:
    reply = post(server, body, "/score/batch")
    assert reply.status_code == status
    assert ("scores" in reply.json()) == (status == 200)
    assert "Retry-After" not in reply.headers  # more pairs than the queue holds: no use to try again


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"prompt": "p", "response": "\xff"}',
        b'{"prompt": "p", "response": "\xed\xa0\x80"}',  # half a surrogate pair, as UTF-8 forbids it
        b"[" * 100_000,
        b'{"prompt": "p", "response": "r", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "p", "response": ' + b"9" * 100_000 + b"}",
        b'{"prompt": "p", "response": NaN}',
    ],
    ids=["empty", "cut", "utf-16", "latin-1", "surrogate", "deep", "deep-extra", "huge-integer", "nan"],
)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_what_is_no_json(server: RunningServer, data: bytes, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    reply = requests.post(f"{server.url}/score", data=data, headers=headers, timeout=30)
    assert reply.status_code == 422
    assert reply.json()["reason"] == "invalid"
    assert all(item.keys() == {"loc", "msg", "type"} for item in reply.json()["detail"])


def test_error_names_the_item_and_does_not_echo_the_text(server: RunningServer) -> None:
    items = [{"prompt": "p", "response": "r"}, {"prompt": "secret words", "response": NAN_CHARACTER}]
    reply = post(server, {"items": items}, "/score/batch")
    assert reply.json()["detail"].startswith("items[1]: the model's output is nan")
    assert "secret words" not in post(server, {"prompt": "secret words", "response": 1}).text


def test_nan_is_an_error_for_its_own_pair_only(server: RunningServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = [NAN_CHARACTER if n % 4 == 0 else f"{n}" for n in range(64)]
        replies = list(pool.map(lambda text: post(server, {"prompt": "p", "response": text}), texts))
    for text, reply in zip(texts, replies, strict=True):
        assert reply.status_code == (500 if text == NAN_CHARACTER else 200)
    assert replies[0].json()["reason"] == "non_finite"


def test_status_pages(server: RunningServer) -> None:
    assert requests.get(f"{server.url}/health", timeout=30).json()["pid"] == server.process.pid
    assert requests.get(f"{server.url}/ready", timeout=30).json() == {"status": "ready"}
    info = requests.get(f"{server.url}/info", timeout=30).json()
    assert (info["ready"], info["input"], info["truncate"]) == (True, "pair", "right")
    assert (info["backend"]["dtype"], info["backend"]["device"]) == ("float32", "cpu")
    assert info["limits"]["max_length"] == 2048
    assert info["limits"]["queue"] == SERVER_QUEUE
    assert info["limits"]["batch_tokens"] >= 1
    assert {"torch", "transformers", "fastapi"} <= info["versions"].keys()
    scores, requested = metric(server, "reward_scores_total"), metric(server, "reward_request_seconds_count")
    post(server, {"prompt": "p", "response": "r"})
    assert metric(server, "reward_scores_total") == scores + 1
    assert metric(server, "reward_request_seconds_count") == requested + 1
    assert metric(server, "reward_ready") == 1


def test_metrics_page_parses(server: RunningServer) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    post(server, {"prompt": "p", "response": NAN_CHARACTER})
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    names = {family.name for family in text_string_to_metric_families(page)}
    assert {
        f"reward_{name}" for name in ("requests", "scores", "errors", "truncations", "request_seconds")
    } <= names


def test_listens_on_the_given_address_only(server: RunningServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    # All of 127/8 is this machine: a server on 0.0.0.0 would answer here too.
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.2", port)) != 0


def test_no_prompt_text_in_the_log(server: RunningServer) -> None:
    word = "xyzzyplugh"
    post(server, {"prompt": word, "response": word})
    post(server, {"prompt": word, "response": word + NAN_CHARACTER})
    post(server, {"prompt": word, "response": 1})
    assert word not in server.log.read_text()


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [("POST", "/scores", 404, "not_found"), ("GET", "/score", 405, "method_not_allowed")],
)
def test_a_wrong_address_is_told_as_every_other_error_is(
    server: RunningServer, method: str, path: str, status: int, reason: str
) -> None:
    reply = requests.request(method, f"{server.url}{path}", json={}, timeout=30)
    assert (reply.status_code, reply.json()["reason"]) == (status, reason)


def test_what_is_wrong_with_a_text_is_told_without_the_librarys_prefix(server: RunningServer) -> None:
    reply = requests.post(f"{server.url}/score", json={"prompt": "", "response": ""}, timeout=30)
    (field,) = reply.json()["detail"]
    assert field["msg"].startswith("prompt and response are both empty")
