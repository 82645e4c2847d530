"""compute_score against a stub with scripted replies, and against the real server."""

from __future__ import annotations

import json
import math
import pickle
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from reward_servers import ROOT, RunningServer, free_port, reply, scored, stub_server

from reward.client import (
    RewardConfigError,
    RewardError,
    RewardOutageError,
    RewardReplyError,
    compute_score,
)

KEYS = {"score", "raw_score", "status", "clamped", "truncated", "attempts", "latency_s"}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER_URL", "LOG_PATH", "ON_OUTAGE", "MIN_SCORE", "MAX_SCORE", "DEADLINE", "SERVER_TOKEN_FILE"):
        monkeypatch.delenv(f"REWARD_{name}", raising=False)


def unreachable() -> str:
    """A URL where nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


def test_pair_that_is_sent() -> None:
    with stub_server(scored(1.5)) as stub:
        result = compute_score("d", "<think>plan</think> It is 72.", "What is 6 * 12?", server_url=stub.url)
    assert stub.requests == [{"prompt": "What is 6 * 12?", "response": "It is 72."}]
    assert (result["score"], result["raw_score"], result["status"], result["attempts"]) == (1.5, 1.5, 0, 1)


@pytest.mark.parametrize(
    ("ground_truth", "prompt"),
    [
        ("text", "text"),
        (np.str_("text"), "text"),
        (72, "72"),
        (np.int64(72), "72"),
        (np.float64(0.5), "0.5"),
        (["a", "b"], "a\nb"),
        (np.array(["a", "b"], dtype=object), "a\nb"),
        ([1, 2], "[1, 2]"),
        ({"k": "é"}, '{"k": "é"}'),
        ("half \ud800 pair", "half \ufffd pair"),
        ("whole \ud83d\ude00 pair", "whole \U0001f600 pair"),
    ],
)
def test_ground_truth_becomes_the_prompt(ground_truth: object, prompt: str) -> None:
    with stub_server(scored(0.0)) as stub:
        compute_score("d", "r", ground_truth, server_url=stub.url)
    assert stub.requests[0]["prompt"] == prompt


@pytest.mark.parametrize("ground_truth", [None, float("nan"), np.float64("nan"), {(1, 2): 3}])
def test_ground_truth_that_is_no_text(ground_truth: object) -> None:
    with pytest.raises(RewardError, match="ground_truth is"):
        compute_score("d", "r", ground_truth, server_url="http://127.0.0.1:1")


def test_same_keys_and_finite_floats_in_every_case() -> None:
    with stub_server(scored(1.0), scored(1e6), scored(-1e6)) as stub:
        results = [compute_score("math", "r", "g", server_url=stub.url) for _ in range(3)]
        results.append(compute_score("code", "<think>never closed", "g", server_url=stub.url))
    results.append(compute_score("down", "r", "g", server_url=unreachable(), on_outage="penalty", deadline=0.3))
    assert [result["score"] for result in results] == [1.0, 30.0, -40.0, -40.0, -40.0]
    assert [result["status"] for result in results] == [0, 0, 0, 1, 2]
    assert [result["clamped"] for result in results] == [0, 1, 1, 0, 0]
    for result in results:
        assert result.keys() == KEYS
        assert all(type(value) is float and math.isfinite(value) for value in result.values())


def test_stray_tag_costs_no_request() -> None:
    with stub_server(scored(1.0)) as stub:
        result = compute_score("d", "a</think>b</think>c", "g", server_url=stub.url, min_score=-3)
    assert stub.requests == []
    assert (result["score"], result["status"], result["attempts"]) == (-3.0, 1.0, 0.0)


def test_limits_from_keywords_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_server(scored(100.0)) as stub:
        monkeypatch.setenv("REWARD_SERVER_URL", stub.url + "/")
        monkeypatch.setenv("REWARD_MAX_SCORE", "5")
        assert compute_score("d", "r", "g")["score"] == 5
        assert compute_score("d", "r", "g", max_score=7)["score"] == 7
        assert compute_score("d", "r", "g", reward_max_score="8.5")["score"] == 8.5


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "REWARD_SERVER_URL is not set"),
        *(
            ({"server_url": url}, rf"REWARD_SERVER_URL is '{re.escape(url)}'; expected http://HOST:PORT")
            for url in (
                "head:8000",
                "http://",
                "http://[::1",
                "http://h:x",
                "http://h:0",
                "http://a b",
                "http://h?x",
            )
        ),
        ({"server_url": "http://h", "min_score": "low"}, "REWARD_MIN_SCORE.*'low'"),
        ({"server_url": "http://h", "max_score": "nan"}, "REWARD_MAX_SCORE.*'nan'"),
        ({"server_url": "http://h", "min_score": 2, "max_score": 1}, "above"),
        ({"server_url": "http://h", "on_outage": "zero"}, "REWARD_ON_OUTAGE is 'zero'"),
        ({"server_url": "http://h", "on_outage": "wait:soon"}, "wait:SECONDS"),
        ({"server_url": "http://h", "on_outage": "wait:-1"}, "wait:SECONDS"),
        ({"server_url": "http://h", "deadline": 0}, "REWARD_DEADLINE.*above 0"),
        (
            {"server_url": "http://h", "max_in_flight": 1.5},
            "REWARD_MAX_IN_FLIGHT .* is 1.5; expected a whole number",
        ),
        ({"server_url": "http://h", "log_max_chars": -1}, "REWARD_LOG_MAX_CHARS .* is -1; .* from 0 on"),
        ({"server_url": "http://h", "server_token_file": "/nowhere"}, "REWARD_SERVER_TOKEN_FILE /nowhere"),
    ],
)
def test_settings_that_are_wrong(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(RewardConfigError, match=message):
        compute_score("d", "r", "g", **keywords)


def test_refused_connection_raises_after_the_deadline() -> None:
    url = unreachable()
    started = time.monotonic()
    with pytest.raises(RewardOutageError, match="Connection refused") as error:
        compute_score("d", "r", "g", server_url=url, deadline=2)
    assert time.monotonic() - started < 60  # the default deadline is twice that
    assert error.value.attempts >= 2
    assert url in str(error.value)
    assert f"({error.value.attempts} attempts)" in str(error.value)


def test_outage_error_survives_pickle() -> None:
    error = RewardOutageError("message", url="u", cause="c", attempts=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.url, copy.cause, copy.attempts) == ("message", "u", "c", 3)


def test_256_threads_on_the_real_server(server: RunningServer) -> None:
    def score(n: int) -> float:
        limits = {"min_score": -1e9, "max_score": 1e9}
        return compute_score("d", f"{n % 64} " * (n % 64), "q", server_url=server.url, **limits)["score"]

    with ThreadPoolExecutor(256) as pool:
        scores = list(pool.map(score, range(512)))
    for n in range(64, 512):
        assert scores[n] == pytest.approx(scores[n % 64], abs=1e-4)
    assert len(set(scores[:64])) > 32


PROBE = """
import builtins, importlib.util, os, pickle, socket, sys
def refuse(*args, **kwargs): raise AssertionError("network at import")
socket.socket.connect = socket.getaddrinfo = refuse
os.chdir("/")
for name in [name for name in os.environ if name.startswith("REWARD_")]: del os.environ[name]
spec = importlib.util.spec_from_file_location("custom_module_17", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
copy = pickle.loads(pickle.dumps(module.compute_score))
assert copy is module.compute_score
try: copy("d", "r", "g")
except module.RewardConfigError as error: print(error)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def test_import_by_path_from_anywhere_touches_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", PROBE, str(ROOT / "reward" / "client.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "REWARD_SERVER_URL is not set" in done.stdout


def test_name_taken_by_another_package(tmp_path: Path) -> None:
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "__init__.py").touch()
    code = "import runpy, sys; sys.path.insert(0, sys.argv[2]); runpy.run_path(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(ROOT / "reward" / "client.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "the name 'reward' is taken by" in done.stderr


def test_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_LOG_PATH", str(tmp_path / "log"))
    with stub_server(scored(50.0), reply(422, {"detail": "no"})) as stub:
        compute_score("math", "<think>r</think>72 \ud800", "q" * 70_000, server_url=stub.url)
        with pytest.raises(RewardReplyError):
            compute_score("math", "r", "q", server_url=stub.url)
        compute_score("code", "<think>", "q", server_url=stub.url)
    with pytest.raises(RewardOutageError):
        compute_score("math", "r", "q", server_url=unreachable(), deadline=0.3)
    (file,) = (tmp_path / "log").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok", "error", "penalty", "outage"]
    assert [line["score"] for line in lines] == [30.0, None, -40.0, None]
    first = lines[0]
    assert (first["raw_score"], first["prompt_len"], first["response_len"]) == (50.0, 70_000, 20)
    assert (len(first["prompt"]), first["response"], first["answer_len"]) == (65_536, "72 \ufffd", 4)
    assert (first["tokens"], first["dropped_tokens"]) == (3, None)
    assert [line.get("response_snippet") for line in lines] == [None, None, "<think>", None]
    assert (first["data_source"], first["node"], first["server_url"]) == ("math", socket.gethostname(), stub.url)
    assert {"timestamp", "timestamp_epoch", "pid", "latency_s", "attempts"} <= first.keys()
    # What the launcher watches for names the first failure of the process.
    (mark,) = (tmp_path / "log").glob("failure-*.json")
    assert "HTTP 422" in json.loads(mark.read_text())["error"]


@pytest.mark.parametrize(("limit", "kept"), [("0", 0), ("7", 7)])
def test_texts_in_the_log_are_bounded(tmp_path: Path, limit: str, kept: int) -> None:
    with stub_server(scored(1.0)) as stub:
        for response in ("secret response", "<think>secret response"):
            compute_score(
                "d", response, "secret prompt", server_url=stub.url, log_path=str(tmp_path), log_max_chars=limit
            )
    (file,) = tmp_path.glob("*.jsonl")
    scored_line, penalty = (json.loads(line) for line in file.read_text().splitlines())
    assert (scored_line["prompt"], scored_line["response"]) == ("secret prompt"[:kept], "secret response"[:kept])
    assert (penalty["response_snippet"], penalty["response_len"]) == ("<think>secret response"[:kept], 22)


def test_wrong_settings_leave_the_failure_mark_too(tmp_path: Path) -> None:
    with pytest.raises(RewardConfigError):
        compute_score("d", "r", "g", log_path=str(tmp_path))
    (mark,) = tmp_path.glob("failure-*.json")
    assert "REWARD_SERVER_URL is not set" in json.loads(mark.read_text())["error"]
