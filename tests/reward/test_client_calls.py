"""The ways in which verl, its process pools and older scripts call the client."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_processes import wait_until
from reward_servers import ROOT, free_port, reply, scored, stub_server

from reward.client import (
    RewardConfigError,
    RewardError,
    RewardOutageError,
    RewardReplyError,
    compute_score,
    compute_score_async,
    compute_score_batch,
    safe_hack_reward,
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REWARD_")]:
        monkeypatch.delenv(name)


def by_loop(*args: Any, **keywords: Any) -> dict[str, float]:
    return asyncio.run(compute_score_async(*args, **keywords))


@pytest.mark.parametrize("score", [compute_score, by_loop], ids=["sync", "async"])
def test_styles_of_every_version(score: Callable[..., dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: by keyword with and without more of them, by position, numpy for any of them."""
    sample = {
        "data_source": np.str_("d"),
        "solution_str": np.str_("r"),
        "ground_truth": np.array(["a", "b"], dtype=object),
    }
    with stub_server(scored(2.0)) as stub:
        monkeypatch.setenv("REWARD_SERVER_URL", stub.url)
        results = [
            score(**sample),
            score(**sample, extra_info=None),
            score(**sample, extra_info={"index": np.int64(3), "num_turns": None, "rollout_reward_scores": {}}),
            score(**sample, extra_info={}, reward_router_address=None, reward_model_tokenizer=object(), unknown=1),
            score("d", "r", ["a", "b"], {}),
            score("d", np.array("r", dtype=object), ["a", "b"]),
        ]
    assert [result["score"] for result in results] == [2.0] * len(results)
    assert stub.requests == [{"prompt": "a\nb", "response": "r"}] * len(results)


def test_math_code_and_an_outage_have_the_same_keys() -> None:
    """C11: verl takes the keys of a batch from its first sample; None, text and `reward` break its metrics."""
    with stub_server(scored(1.0)) as stub:
        batch = [
            compute_score("math", "r", "g", server_url=stub.url),
            compute_score("code", "</think></think>", "g", server_url=stub.url),
            compute_score("math", "r", "g", server_url="http://127.0.0.1:9", on_outage="penalty", deadline=0.2),
        ]
    for result in batch:
        assert list(result) == list(batch[0])
        assert "reward" not in result
        assert all(type(value) is float and math.isfinite(value) for value in result.values())


def test_old_scripts_name_and_signature() -> None:
    with stub_server(scored(41.5)) as stub:
        assert safe_hack_reward("r", "g", server_url=stub.url) == 30.0
        assert safe_hack_reward("<think>", "g", server_url=stub.url) == -40.0
        verl = {"data_source": "d", "solution_str": "r", "ground_truth": "g", "extra_info": {"index": 1}}
        assert safe_hack_reward(**verl, server_url=stub.url) == 30.0
    # What was -40 there is an error here: no number stands in for an outage.
    with pytest.raises(RewardOutageError):
        safe_hack_reward("r", "g", server_url=f"http://127.0.0.1:{free_port()}", deadline=0.2)


def test_batch_is_sent_many_at_a_time() -> None:
    texts = [str(n) for n in range(100)]
    with stub_server(scored(1.0), crowd=8) as stub:
        results = compute_score_batch(
            data_sources=np.array(["d"] * 100, dtype=object),
            solution_strs=texts,
            ground_truths=texts,
            extra_infos=[{}] * 100,
            server_url=stub.url,
            max_in_flight=8,
        )
    assert len(results) == 100
    assert stub.peak == 8
    assert sorted(sent["prompt"] for sent in stub.requests) == sorted(texts)


def test_batch_keeps_each_score_with_its_response() -> None:
    """The stray tags at known places are what is told apart without a server that knows the texts."""
    texts = ["<think>" if n % 3 == 0 else "r" for n in range(30)]
    with stub_server(scored(5.0)) as stub:
        results = compute_score_batch(["d"] * 30, texts, ["g"] * 30, server_url=stub.url)
    assert [result["status"] for result in results] == [float(n % 3 == 0) for n in range(30)]


def test_batch_ends_with_the_first_error(tmp_path: Path) -> None:
    with stub_server(reply(422, {"detail": "no"}), 0.05) as stub:
        with pytest.raises(RewardReplyError, match="HTTP 422"):
            compute_score_batch(["d"] * 500, ["r"] * 500, ["g"] * 500, server_url=stub.url, max_in_flight=2)
        assert len(stub.requests) < 250
    for wrong, error in (
        ({"solution_strs": ["r"]}, RewardError),
        ({"max_in_flight": 0}, RewardConfigError),
        ({"max_in_flight": 1.5}, RewardConfigError),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        batch = {"data_sources": ["d"] * 2, "solution_strs": ["r"] * 2, "ground_truths": ["g"] * 2, **wrong}
        with pytest.raises(error):
            compute_score_batch(**batch, server_url="http://h:1", log_path=str(folder))
        assert list(folder.glob("failure-*.json"))


def _in_pool(function: Callable[..., Any], url: str) -> list[float]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return [
            pool.submit(function, "d", "r", "g", None, server_url=url).result(timeout=60)["score"]
            for _ in range(2)
        ]


def test_process_pool() -> None:
    """C15, as 0.6.1's reward manager `prime` does it: the function crosses by its name."""
    with stub_server(scored(3.0)) as stub:
        assert _in_pool(compute_score, stub.url) == [3.0, 3.0]


def test_child_that_is_forked_while_all_slots_are_taken() -> None:
    """The parent's calls end in the parent only; the child has slots and a connection of its own."""
    # The parent's call has its answer when the child has asked, too.
    with stub_server(scored(3.0), crowd=2) as stub:
        keywords = {"server_url": stub.url, "max_in_flight": 1}
        call = threading.Thread(target=compute_score, args=("d", "r", "g"), kwargs=keywords)
        call.start()
        wait_until(lambda: bool(stub.requests), "request of the parent")
        child = get_context("fork").Process(target=compute_score, args=("d", "r", "g"), kwargs=keywords)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of 3.12: fork beside threads, as it is meant here
            child.start()
        child.join(60)
        child.kill()
        call.join()
    assert child.exitcode == 0
    assert len(stub.requests) == 2


SENDER = """
import importlib.util, os, pickle, sys
from functools import partial
os.chdir("/")
spec = importlib.util.spec_from_file_location("custom_module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["custom_module"] = module
spec.loader.exec_module(module)
names = ["compute_score", "compute_score_async", "compute_score_batch", "safe_hack_reward"]
functions = [getattr(module, name) for name in names]
bound = partial(functions[0], server_url="http://127.0.0.1:9", deadline=0.1)
sys.stdout.buffer.write(pickle.dumps([*functions, bound]))
"""
RECEIVER = """
import os, pickle, sys
os.chdir("/")
*functions, bound = pickle.load(sys.stdin.buffer)
print([function.__name__ for function in functions])
try: bound("d", "r", "g")
except Exception as error: print(type(error).__name__, pickle.loads(pickle.dumps(error)).url)
"""


def test_loaded_by_path_and_sent_to_another_process() -> None:
    """C15: no process needs a module named custom_module, and none a certain working folder."""
    client = str(ROOT / "reward" / "client.py")
    sent = subprocess.run(
        [sys.executable, "-I", "-c", SENDER, client], capture_output=True, timeout=60, check=False
    )
    assert sent.returncode == 0, sent.stderr
    got = subprocess.run(
        [sys.executable, "-c", RECEIVER],
        input=sent.stdout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert got.returncode == 0, got.stderr
    assert b"['compute_score', 'compute_score_async', 'compute_score_batch', 'safe_hack_reward']" in got.stdout
    assert b"RewardOutageError http://127.0.0.1:9" in got.stdout
    assert pickle.loads(pickle.dumps(compute_score)) is compute_score


def test_calls_from_256_threads_stay_in_their_bound() -> None:
    """C12 d and C17: never on the main thread, up to all of verl's executors at once."""
    results: list[dict[str, float]] = []
    with stub_server(scored(1.0), crowd=16) as stub:

        def calls() -> None:
            results.extend(compute_score("d", "r", "g", server_url=stub.url, max_in_flight=16) for _ in range(3))

        threads = [threading.Thread(target=calls) for _ in range(256)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(stub.requests) == 768
    assert len(results) == 768
    assert all(result["score"] == 1.0 and result["attempts"] == 1.0 for result in results)
    assert stub.peak == 16


def test_ten_megabytes_of_one_pattern_answer_in_time() -> None:
    """C16."""
    with stub_server(scored(1.0)) as stub:
        started = time.monotonic()
        result = compute_score(
            "d", "<think>\\frac{1}{" * 600_000 + "</think>" + "\\frac{1}{" * 600_000, "g", server_url=stub.url
        )
        assert time.monotonic() - started < 60
    assert result["score"] == 1.0
    assert len(stub.requests[0]["response"]) == 9 * 600_000
