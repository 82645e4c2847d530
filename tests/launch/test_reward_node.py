"""reward.placement=separate: the last node serves rewards, the pools have all GPUs of the others."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.checks import check_job
from launch.checks.plan import broken_rules
from launch.config import Job, load_job
from launch.engines.command import trainer_command
from launch.finding import Finding
from launch.rehearsal.shrink import rehearse
from launch.sizing.cpus import cpus_needed, cpus_on_fullest
from launch.sizing.layout import Layout, plan_layout, ray_nodes
from launch.sizing.plan_table import fits, plan_data, plan_nodes, plan_table

APART = "reward.placement=separate"


def job(*assignments: str, template: str = "grpo") -> Job:
    return load_job(template, None, assignments)


def findings(*assignments: str, template: str = "grpo", small: bool = False) -> list[Finding]:
    given = job(*assignments, template=template)
    return check_job(rehearse(given) if small else given, Path("/nonexistent"), rehearse=small, sample_data=small)


def errors(*assignments: str, template: str = "grpo", small: bool = False) -> list[Finding]:
    return [one for one in findings(*assignments, template=template, small=small) if one.severity == "error"]


def table(*assignments: str) -> list[str]:
    given = job(*assignments)
    return plan_table(given, plan_layout(given)).splitlines()


# ---- the plan


@pytest.mark.parametrize(
    ("assignments", "layout", "drawn"),
    [
        (
            ("cluster.nodes=3",),
            Layout(1, 1, 8, 1, 8, 8, 8, 7, True),
            ["node 0 | G G G G G G G G", "node 1 | T T T T T T T T", "node 2 | . . . . . . . R"],
        ),
        (
            ("cluster.nodes=2", "reward.gpus=8"),
            Layout(8, 1, 4, 1, 4, 8, 8, 0, True),
            ["node 0 | G G G G T T T T", "node 1 | R R R R R R R R"],
        ),
        (
            ("cluster.nodes=5", "engine.mode=sync", "reward.gpus=0"),
            Layout(0, 0, 0, 4, 8, 8, 8, 8, True),
            ["node 0-3 | B B B B B B B B", "node 4   | . . . . . . . ."],
        ),
        (
            ("cluster.nodes=4", "rollout.nodes=2", "reward.gpus=2"),
            Layout(2, 2, 8, 1, 8, 8, 8, 6, True),
            ["node 0-1 | G G G G G G G G", "node 2   | T T T T T T T T", "node 3   | . . . . . . R R"],
        ),
    ],
)
def test_the_last_node_is_the_reward_servers(assignments: tuple[str, ...], layout: Layout, drawn: list[str]):
    given = job(APART, *assignments)
    assert plan_layout(given) == layout
    assert table(APART, *assignments)[: len(drawn)] == drawn
    assert broken_rules(given) == []


def test_it_is_told_in_words_and_to_programs():
    assert "reward:   1 GPU of the last node, apart from Ray" in table(APART, "cluster.nodes=3")
    assert "reward:   CPUs of the last node, apart from Ray" in table(APART, "cluster.nodes=3", "reward.gpus=0")
    for assignments, node in (((APART, "cluster.nodes=3"), 2), ((), 0)):
        given = job(*assignments)
        data = plan_data(given, plan_layout(given))
        assert data["reward"] == {"gpus": 1, "node": node}
    function = job("reward.kind=function", "reward.function=f.py")
    assert plan_data(function, plan_layout(function))["reward"] == {"gpus": 0, "node": None}


def test_verl_gets_the_other_nodes_only():
    words = trainer_command(job(APART, "cluster.nodes=4"), Path("/p"), rehearse=False, sample_data=False).overrides
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=8", "rollout.nnodes=1", "rollout.n_gpus_per_node=8"} <= {
        *words
    }


def test_with_one_node_left_both_pools_and_the_driver_are_on_it():
    one, two = job(APART, "cluster.nodes=2"), job(APART, "cluster.nodes=3")
    assert (ray_nodes(one), ray_nodes(two)) == (1, 2)
    assert cpus_needed(one) == (
        20,
        30,
    )  # 3 for each of 4 training GPUs, 2 for each of 4 of the rollout, the driver
    assert cpus_on_fullest(one) == 30
    assert cpus_on_fullest(two) == cpus_needed(two)[0]
    assert [one.id for one in errors(APART, "cluster.nodes=2", "cluster.cpus_per_node=29")] == ["cpus"]
    assert errors(APART, "cluster.nodes=2", "cluster.cpus_per_node=30") == []


@settings(max_examples=150)
@given(
    nodes=st.integers(2, 4096),
    gpus=st.integers(1, 64),
    mode=st.sampled_from(["sync", "one_step_off"]),
    template=st.sampled_from(["grpo", "ppo", "dapo"]),
    reward=st.integers(0, 3),
)
def test_the_pools_are_those_of_a_job_with_a_node_less(
    nodes: int, gpus: int, mode: str, template: str, reward: int
):
    """And every GPU is drawn once; nothing of the reward node is Ray's."""
    sizes = (f"cluster.gpus_per_node={gpus}", f"engine.mode={mode}")
    apart = job(APART, f"cluster.nodes={nodes}", f"reward.gpus={reward}", *sizes, template=template)
    without = job(f"cluster.nodes={nodes - 1}", "reward.gpus=0", *sizes, template=template)
    layout, other = plan_layout(apart), plan_layout(without)
    for field in ("rollout_nodes", "rollout_gpus", "train_nodes", "train_gpus", "ray_gpus_head", "ray_gpus_other",
                  "ray_nodes", "ray_gpus", "train_room"):  # fmt: skip
        assert getattr(layout, field) == getattr(other, field), field
    assert layout.ray_gpus == gpus * (nodes - 1)
    assert layout.idle_gpus == other.idle_gpus + gpus - reward
    if reward <= gpus:
        assert {one.id for one in broken_rules(apart)} == {one.id for one in broken_rules(without)}
    drawn = plan_nodes(apart, layout)
    assert len(drawn) == nodes
    if fits(apart, layout):
        assert (drawn[-1].reward, drawn[-1].idle) == (reward, gpus - reward)
        assert all(node.reward == 0 and sum(node.counts().values()) == gpus for node in drawn[:-1])
        assert sum(node.idle for node in drawn) == layout.idle_gpus
        assert max(map(len, plan_table(apart, layout).splitlines())) <= 80


# ---- the rules


@pytest.mark.parametrize("template", ["grpo", "ppo", "dapo"])
@pytest.mark.parametrize("mode", ["one_step_off", "sync"])
@pytest.mark.parametrize("nodes", [2, 3, 5, 9])
def test_a_default_job_fits_whatever_the_nodes(template: str, mode: str, nodes: int):
    no_critic = {"one-step-off-critic"} if (template, mode) == ("ppo", "one_step_off") else set()
    assignments = (APART, f"cluster.nodes={nodes}", f"engine.mode={mode}")
    assert {one.id for one in errors(*assignments, template=template)} == no_critic
    assert [one.id for one in findings(*assignments, template=template)].count("reward-node") == 1
    assert "idle-gpus" not in {one.id for one in findings(*assignments, template=template)}


def test_a_reward_node_is_one_of_two_or_more():
    (found,) = errors(APART, "cluster.nodes=1")
    assert found.id == "gpu-plan"
    assert "reward.placement=separate takes the last of cluster.nodes=1" in found.message
    assert found.remedy == "set cluster.nodes=2, or reward.placement=head"
    for change in ("cluster.nodes=2", "reward.placement=head"):
        assert errors(APART, "cluster.nodes=1", change) == []


def test_the_server_has_no_more_gpus_than_its_node():
    (found,) = errors(APART, "cluster.nodes=3", "reward.gpus=9")
    assert "reward.gpus=9 is more than the 8 GPUs of the reward server's node" in found.message
    assert found.remedy == "set reward.gpus=1, or reward.gpus=0"
    # All of them are its own: on the head node that would leave none for the rollout.
    assert errors(APART, "cluster.nodes=3", "reward.gpus=8") == []
    assert [one.id for one in errors("cluster.nodes=3", "reward.gpus=8")] == ["gpu-plan"]


@pytest.mark.parametrize(
    "assignments",
    [
        ("cluster.nodes=2", "rollout.gpus_per_node=9"),
        ("cluster.nodes=3", "rollout.gpus_per_node=9"),
        ("cluster.nodes=2", "rollout.gpus_per_node=4", "actor.gpus_per_node=6"),
        ("cluster.nodes=3", "rollout.nodes=2"),
        ("cluster.nodes=3", "rollout.tensor_parallel=3"),
        ("cluster.nodes=3", "engine.mode=sync", "actor.gpus_per_node=9"),
        ("cluster.nodes=4", "engine.mode=sync", "actor.pipeline_parallel=5", "actor.gpus_per_node=8"),
    ],
)
def test_what_does_not_fit_is_named_with_ways_that_work(assignments: tuple[str, ...]):
    """Without a word of the reward server's GPUs: they are not in the way."""
    batches = {"train-batch", "mini-batch-split"}
    (found,) = [one for one in errors(APART, *assignments) if one.id not in batches]
    assert "beside the reward server's 1" not in found.message
    assert "reward.gpus" not in found.remedy
    for way in found.remedy.split(", or "):
        assert errors(APART, *assignments, *re.findall(r"\w+\.\w+=\d+", way)) == [], way


def test_a_function_has_no_server_to_place():
    found = errors(APART, "cluster.nodes=3", "reward.kind=function", "reward.function=/nonexistent/f.py")
    assert {one.id for one in found} == {"reward-placement", "missing-file"}
    assert plan_layout(job(APART, "reward.kind=function", "reward.function=f.py")).ray_nodes == 2


def test_a_whole_node_for_a_small_model_is_told():
    (told,) = [one for one in findings(APART, "cluster.nodes=3") if one.id == "reward-node"]
    assert told.severity == "warning"
    assert "a node of 8 GPUs, of which it uses 1" in told.message
    full = ("cluster.nodes=3", "cluster.gpus_per_node=2", "reward.gpus=2", "actor.pipeline_parallel=1")
    assert "reward-node" not in {one.id for one in findings(APART, *full)}


# ---- the rehearsal


@pytest.mark.parametrize(
    ("assignments", "nodes", "in_ray", "slots", "total"),
    [
        ((), 3, 2, 2, 4),
        (("cluster.nodes=8",), 3, 2, 2, 4),
        (("cluster.nodes=2",), 2, 1, 3, 3),
        (("cluster.nodes=3", "engine.mode=sync"), 3, 2, 1, 2),
        (("cluster.nodes=2", "engine.mode=sync"), 2, 1, 2, 2),
        (("actor.pipeline_parallel=1",), 3, 2, 1, 2),
    ],
)
def test_a_rehearsal_has_a_reward_node(
    assignments: tuple[str, ...], nodes: int, in_ray: int, slots: int, total: int
):
    """At most three nodes as ever, of which the last one serves rewards."""
    small = rehearse(job(APART, *assignments))
    layout = plan_layout(small)
    assert (small.cluster.nodes, small.cluster.gpus_per_node) == (nodes, slots)
    assert (layout.ray_nodes, layout.reward_node, layout.ray_gpus) == (in_ray, True, total)
    assert errors(APART, *assignments, small=True) == []


def test_a_rehearsal_does_not_hide_that_there_is_no_node_for_it():
    assert [one.id for one in errors(APART, "cluster.nodes=1", small=True)] == ["gpu-plan"]
