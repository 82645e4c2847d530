"""verl's own reward loop (0.9.1) calls compute_score, and what it makes of an outage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reward_servers import ROOT, RunningServer, free_port

from reward.client import RewardOutageError

pytestmark = pytest.mark.engine

ROWS = 6


def config(model_dir: Path, manager: str, **keywords: object) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": str(model_dir), "tokenizer_path": None}},
            "reward": {
                "num_workers": 1,
                "custom_reward_function": {
                    "path": str(ROOT / "reward" / "client.py"),
                    "name": "compute_score",
                    "reward_kwargs": keywords,
                },
                "reward_manager": {"source": "register", "name": manager},
                "reward_model": {"enable": False},
            },
        }
    )


def samples() -> Any:
    """Responses of two data sources."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    # Merged tokens only: single bytes would not decode, or spell NAN_CHARACTER.
    ids = torch.randint(260, 300, (ROWS, 8), generator=torch.Generator().manual_seed(3))
    return DataProto(
        batch=TensorDict(
            {"prompts": ids, "responses": ids.clone(), "attention_mask": torch.ones(ROWS, 16, dtype=torch.long)},
            batch_size=ROWS,
        ),
        non_tensor_batch={
            "reward_model": np.array(
                [{"style": "model", "ground_truth": f"q{n}"} for n in range(ROWS)], dtype=object
            ),
            "data_source": np.array(["math", "code"] * (ROWS // 2), dtype=object),
            "extra_info": np.array([{"index": n} for n in range(ROWS)], dtype=object),
        },
    )


def run_manager(model_dir: Path, manager: str, **keywords: object) -> list[dict[str, Any]]:
    """The rewards of :func:`samples`, as RewardLoopWorker.compute_score_batch computes them."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.reward import load_reward_manager

    async def scores() -> list[dict[str, Any]]:
        loaded = load_reward_manager(
            config(model_dir, manager, **keywords), AutoTokenizer.from_pretrained(model_dir)
        )
        data = samples()
        return list(await asyncio.gather(*(loaded.run_single(data[n : n + 1]) for n in range(ROWS))))

    return asyncio.run(scores())


@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_scores_of_the_real_server(model_dir: Path, server: RunningServer, manager: str) -> None:
    outputs = run_manager(model_dir, manager, server_url=server.url)
    keys = outputs[0]["reward_extra_info"].keys()
    assert "score" in keys
    assert "reward" not in keys
    for output in outputs:
        assert output["reward_extra_info"].keys() == keys
        assert output["reward_score"] == output["reward_extra_info"]["score"]


@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_outage_passes_the_reward_manager(model_dir: Path, manager: str) -> None:
    with pytest.raises(RewardOutageError):
        run_manager(model_dir, manager, server_url=f"http://127.0.0.1:{free_port()}", deadline=0.5)


def test_rate_limited_manager_hides_an_outage_but_the_mark_is_there(model_dir: Path, tmp_path: Path) -> None:
    """Why the launcher must refuse this manager, or watch for the mark."""
    keywords = {"server_url": f"http://127.0.0.1:{free_port()}", "deadline": 0.5, "log_path": str(tmp_path)}
    outputs = run_manager(model_dir, "rate_limited", **keywords)
    assert [output["reward_score"] for output in outputs] == [0.0] * ROWS
    (mark,) = tmp_path.glob("failure-*.json")
    assert "RewardOutageError" in json.loads(mark.read_text())["error"]


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    import ray

    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("_ray")
def test_outage_crosses_the_ray_actor_as_itself(model_dir: Path, server: RunningServer) -> None:
    import ray
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    worker = ray.remote(RewardLoopWorker)
    url = f"http://127.0.0.1:{free_port()}"
    down = worker.remote(config(model_dir, "naive", server_url=url, deadline=0.5))
    up = worker.remote(config(model_dir, "remote", server_url=server.url))
    with pytest.raises(RewardOutageError, match=url):
        ray.get(down.compute_score_batch.remote(samples()))
    # The manager "remote" pickles the function to yet another actor.
    assert len(ray.get(up.compute_score_batch.remote(samples()))) == ROWS
