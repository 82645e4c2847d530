"""The plan of a job, drawn."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import PATHS, project

from launch.checks.memory import estimate_job
from launch.config import load_job
from launch.sizing.layout import plan_layout
from launch.sizing.plan_table import fits, plan_data, plan_nodes, plan_table


def table(*assignments: str) -> str:
    job = load_job("grpo", None, assignments)
    return plan_table(job, plan_layout(job))


def test_two_nodes():
    assert table() == "\n".join(
        [
            "node 0 | G G G G G G G R",
            "node 1 | T T T T T T T T",
            "G rollout (generation), T training, R reward model",
            "training: 8 GPUs = TP 1 x PP 2 x CP 1 x DP 4 (megatron)",
            "rollout:  7 GPUs = 7 engines x TP 1 (sglang)",
            "reward:   1 GPU of the head node",
        ]
    )


@pytest.mark.parametrize(
    ("assignments", "drawn"),
    [
        (("cluster.nodes=1", "rollout.gpus_per_node=3"), ["node 0 | G G G T T T T R"]),
        (
            ("cluster.nodes=64", "rollout.nodes=16", "actor.gpus_per_node=8"),
            ["node 0     | G G G G G G G R", "node 1-15  | G G G G G G G .", "node 16-63 | T T T T T T T T"],
        ),
        (
            ("engine.mode=sync", "cluster.nodes=3", "reward.gpus=2", "actor.gpus_per_node=6"),
            ["node 0   | B B B B B B R R", "node 1-2 | B B B B B B . ."],
        ),
        (("engine.mode=sync", "reward.gpus=0", "cluster.nodes=2"), ["node 0-1 | B B B B B B B B"]),
        (
            ("reward.kind=function", "reward.function=r.py", "rollout.gpus_per_node=8"),
            ["node 0 | G G G G G G G G"],
        ),
        (("cluster.gpus_per_node=64",), ["node 0 | 63 G, 1 R", "node 1 | 64 T"]),
    ],
)
def test_nodes(assignments, drawn):
    assert table(*assignments).splitlines()[: len(drawn)] == drawn


def test_sizes_of_a_model_with_experts():
    sizes = ("actor.tensor_parallel=4", "actor.expert_parallel=2")
    told = table("cluster.nodes=3", "rollout.nodes=1", *sizes)
    assert "training: 16 GPUs = TP 4 x PP 2 x CP 1 x DP 2 (megatron); experts: EP 2 x TP 4" in told
    assert "(fsdp2)" in table("actor.strategy=fsdp2", "actor.fp8=null")


def test_memory_and_width(tmp_path: Path):
    job = load_job("grpo", None, [*PATHS, "cluster.gpu=h200"])
    found = estimate_job(job, project(tmp_path))
    told = plan_table(job, plan_layout(job), found)
    assert "KV cache 90.8 = 108" in told
    assert max(map(len, told.splitlines())) <= 80
    data = json.loads(json.dumps(plan_data(job, plan_layout(job), found)))
    assert data["nodes"] == [
        {"first": 0, "last": 0, "gpus": {"reward": 1, "rollout": 7}},
        {"first": 1, "last": 1, "gpus": {"train": 8}},
    ]
    assert data["memory"]["gpu"] == 140.4
    assert data["memory"]["training"]["total"] == pytest.approx(sum(data["memory"]["training"]["parts"].values()))
    assert plan_data(job, plan_layout(job))["memory"] is None


@settings(max_examples=200)
@given(
    nodes=st.integers(1, 4096),
    gpus=st.integers(1, 64),
    mode=st.sampled_from(["sync", "one_step_off"]),
    reward=st.integers(0, 2),
)
def test_every_gpu_of_a_legal_plan_is_drawn_once(nodes: int, gpus: int, mode: str, reward: int):
    job = load_job(
        "grpo",
        None,
        [
            f"cluster.nodes={nodes}",
            f"cluster.gpus_per_node={gpus}",
            f"engine.mode={mode}",
            f"reward.gpus={reward}",
        ],
    )
    layout = plan_layout(job)
    told = plan_table(job, layout)
    assert max(map(len, told.splitlines())) <= 80
    drawn = plan_nodes(job, layout)
    assert len(drawn) == nodes
    if fits(job, layout):
        assert all(sum(node.counts().values()) == gpus for node in drawn)
        assert sum(node.idle for node in drawn) == layout.idle_gpus


@pytest.mark.parametrize(
    "assignments",
    [
        ("reward.gpus=5", "cluster.gpus_per_node=4"),
        ("actor.pipeline_parallel=3", "actor.gpus_per_node=8"),
        ("cluster.nodes=1", "rollout.gpus_per_node=4", "actor.gpus_per_node=6"),
        ("actor.gpus_per_node=9",),
        ("rollout.nodes=2",),
        ("rollout.tensor_parallel=2",),
        ("engine.mode=sync", "rollout.tensor_parallel=8"),
        ("actor.expert_parallel=3",),
    ],
)
def test_no_table_of_a_plan_that_does_not_fit(assignments):
    assert table(*assignments) == "no plan to draw: the sizes do not fit on the GPUs"
    job = load_job("grpo", None, assignments)
    assert plan_data(job, plan_layout(job))["nodes"] == []


def test_assumptions_are_told_on_request(tmp_path: Path):
    job = load_job("grpo", None, [*PATHS, "cluster.gpu=h200"])
    found = estimate_job(job, project(tmp_path))
    assert "assumed:" not in plan_table(job, plan_layout(job), found)
    assert "assumed:" in plan_table(job, plan_layout(job), found, assumptions=True)
