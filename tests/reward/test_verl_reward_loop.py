"""verl's own reward managers (0.9.1 and 0.6.1) call the client, and what they make of an outage."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reward_servers import ROOT, RunningServer, free_port

from reward.client import RewardOutageError

pytestmark = pytest.mark.engine

ROWS = 6


def config(model_dir: Path, manager: str, name: str = "compute_score", **keywords: object) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": str(model_dir), "tokenizer_path": None}},
            "reward": {
                "num_workers": 1,
                "custom_reward_function": {
                    "path": str(ROOT / "reward" / "client.py"),
                    "name": name,
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


def run_manager(
    model_dir: Path, manager: str, name: str = "compute_score", **keywords: object
) -> list[dict[str, Any]]:
    """The rewards of :func:`samples`, as RewardLoopWorker.compute_score_batch computes them."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.reward import load_reward_manager

    async def scores() -> list[dict[str, Any]]:
        loaded = load_reward_manager(
            config(model_dir, manager, name, **keywords), AutoTokenizer.from_pretrained(model_dir)
        )
        data = samples()
        return list(await asyncio.gather(*(loaded.run_single(data[n : n + 1]) for n in range(ROWS))))

    return asyncio.run(scores())


FORMS = pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])


@FORMS
@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_scores_of_the_real_server(model_dir: Path, server: RunningServer, manager: str, name: str) -> None:
    outputs = run_manager(model_dir, manager, name, server_url=server.url)
    keys = outputs[0]["reward_extra_info"].keys()
    assert "score" in keys
    assert "reward" not in keys
    for output in outputs:
        assert output["reward_extra_info"].keys() == keys
        assert output["reward_score"] == output["reward_extra_info"]["score"]


@FORMS
@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_outage_passes_the_reward_manager(model_dir: Path, manager: str, name: str) -> None:
    with pytest.raises(RewardOutageError):
        run_manager(model_dir, manager, name, server_url=f"http://127.0.0.1:{free_port()}", deadline=0.5)


@FORMS
def test_rate_limited_manager_hides_an_outage_but_the_mark_is_there(
    model_dir: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the launcher must refuse this manager, or watch for the mark."""
    from verl.experimental.reward_loop.reward_manager.limited import RateLimitedRewardManager

    # Its semaphore belongs to the loop of the first test.
    monkeypatch.setattr(RateLimitedRewardManager, "_class_initialized", False)
    keywords = {"server_url": f"http://127.0.0.1:{free_port()}", "deadline": 0.5, "log_path": str(tmp_path)}
    outputs = run_manager(model_dir, "rate_limited", name, **keywords)
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


VERL_061 = """
import asyncio, json, sys, types
import numpy as np
import torch
import verl.experimental
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

# Without its __init__, which imports openai for another class.
package = types.ModuleType("verl.experimental.reward")
package.__path__ = [f"{place}/reward" for place in verl.experimental.__path__]
sys.modules[package.__name__] = package
from verl.experimental.reward.reward_loop import get_reward_loop_manager_cls

client, model, url = sys.argv[1:]
ROWS = 6
ids = torch.randint(260, 300, (ROWS, 8), generator=torch.Generator().manual_seed(3))

def samples():
    mask = torch.ones(ROWS, 16, dtype=torch.long)
    return DataProto(
        batch=TensorDict({"prompts": ids, "responses": ids.clone(), "attention_mask": mask}, batch_size=ROWS),
        non_tensor_batch={
            "reward_model": np.array([{"ground_truth": f"q{n}"} for n in range(ROWS)], dtype=object),
            "data_source": np.array(["math", "code"] * 3, dtype=object),
            "extra_info": np.array([{"index": n} for n in range(ROWS)], dtype=object),
        },
    )

def config(manager, name):
    function = {"path": client, "name": name, "reward_kwargs": {"server_url": url}}
    return OmegaConf.create({
        "custom_reward_function": function,
        "reward_model": {"reward_manager": manager, "overlong_buffer": {"enable": False}},
        "data": {"reward_fn_key": "data_source"},
    })

# The model was saved by a transformers that names its tokenizer class otherwise.
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{model}/tokenizer.json", eos_token="<|endoftext|>")

def in_the_driver(manager, name):
    buffer = OmegaConf.create({"enable": False, "len": 0, "log": False})
    keywords = {"max_resp_len": 8, "overlong_buffer_cfg": buffer} if manager == "dapo" else {}
    loaded = load_reward_manager(config(manager, name), tokenizer, 0, **keywords)
    got = loaded(samples(), return_dict=True)
    return {"scores": got["reward_tensor"].sum(-1).tolist(), "info": got["reward_extra_info"]}

async def in_the_loop(manager, name):
    conf = config(manager, name)
    loaded = get_reward_loop_manager_cls(manager)(conf, tokenizer, get_custom_reward_fn(conf))
    data = samples()
    got = await asyncio.gather(*(loaded.run_single(data[n : n + 1]) for n in range(ROWS)))
    infos = [one["reward_extra_info"] for one in got]
    columns = {key: [info[key] for info in infos] for key in infos[0]}
    return {"scores": [one["reward_score"] for one in got], "info": columns}

found = {
    "naive": in_the_driver("naive", "compute_score"),
    "dapo": in_the_driver("dapo", "compute_score"),
    "batch": in_the_driver("batch", "compute_score_batch"),
    "alias": in_the_driver("naive", "safe_hack_reward"),
    "loop": asyncio.run(in_the_loop("naive", "compute_score")),
    "async loop": asyncio.run(in_the_loop("naive", "compute_score_async")),
}
print("FOUND " + json.dumps(found))
"""


def test_managers_of_verl_061(model_dir: Path, server: RunningServer, tmp_path: Path) -> None:
    """In the driver one by one and as a batch, in its reward loop by thread and awaited: the same scores."""
    python = Path(os.environ.get("VERL061_PYTHON") or ROOT / ".envs/verl-0.6.1/bin/python")
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make env-061`, or set VERL061_PYTHON to such a Python")
    script = tmp_path / "managers.py"
    script.write_text(VERL_061)
    command = [str(python), str(script), str(ROOT / "reward" / "client.py"), str(model_dir), server.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    scores = found["naive"]["scores"]
    assert len(set(scores)) > 1
    for way, got in found.items():
        assert got["scores"] == pytest.approx(scores, abs=1e-4), way
        if way != "alias":
            assert got["info"]["status"] == [0.0] * ROWS, way
