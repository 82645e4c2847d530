"""The pools on the allocation and batch arithmetic (C04, C06, C22, C23): what verl finds only once Ray is up."""

import itertools
from pathlib import Path

import pytest

from launch.checks import check_job
from launch.config import Job, load_job
from launch.finding import Finding
from launch.sizing.layout import Layout, plan_layout


def job(*assignments: str, template: str = "grpo") -> Job:
    return load_job(template, None, assignments)


def findings(*assignments: str, template: str = "grpo") -> list[Finding]:
    return check_job(job(*assignments, template=template), Path("/nonexistent"), rehearse=False, sample_data=False)


def ids(*assignments: str, severity: str = "error", template: str = "grpo") -> set[str]:
    return {found.id for found in findings(*assignments, template=template) if found.severity == severity}


@pytest.mark.parametrize("template", ["grpo", "ppo", "dapo"])
@pytest.mark.parametrize("mode", ["one_step_off", "sync"])
@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16])
def test_a_default_job_fits_whatever_the_nodes(template: str, mode: str, nodes: int):
    assignments = (f"cluster.nodes={nodes}", f"engine.mode={mode}")
    no_critic = {"one-step-off-critic"} if (template, mode) == ("ppo", "one_step_off") else set()
    assert ids(*assignments, template=template) == no_critic
    layout = plan_layout(job(*assignments, template=template))
    used = layout.reward_gpus + layout.rollout_nodes * layout.rollout_gpus + layout.train_world
    assert used + layout.idle_gpus == nodes * 8
    assert ("idle-gpus" in ids(*assignments, severity="warning", template=template)) == bool(layout.idle_gpus)


def test_three_nodes_in_one_pool_do_not_divide_the_default_batch():
    assert ids("cluster.nodes=3") == set()
    assert ids("cluster.nodes=3", "engine.mode=sync") == {"train-parallel"}
    assert ids("cluster.nodes=3", "engine.mode=sync", "actor.gpus_per_node=4") == {"train-batch"}


def test_one_node_of_eight_is_reward_1_rollout_3_training_4():
    assert plan_layout(job("cluster.nodes=1")) == Layout(1, 1, 3, 1, 4, 7, 8)


def test_two_nodes_of_eight_are_reward_1_rollout_7_training_8():
    assert plan_layout(job()) == Layout(1, 1, 7, 1, 8, 7, 8)


_SIX = ("actor.gpus_per_node=6", "reward.gpus=0", "actor.pipeline_parallel=1")


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        ((*_SIX, "rollout.gpus_per_node=2"), False),
        ((*_SIX, "rollout.gpus_per_node=4"), True),
        (("actor.gpus_per_node=4", "rollout.gpus_per_node=4"), True),  # the reward model's GPU is Ray's, too
        (("rollout.gpus_per_node=7",), True),
        (("reward.gpus=8",), True),
        (("reward.gpus=9",), True),
        (("cluster.gpus_per_node=1", "reward.gpus=0", "actor.pipeline_parallel=1"), True),
        (("cluster.gpus_per_node=2", "reward.gpus=0", "actor.pipeline_parallel=1"), False),
        (("engine.mode=sync", "actor.gpus_per_node=8"), True),
        (("engine.mode=sync", "actor.gpus_per_node=8", "reward.gpus=0"), False),
    ],
)
def test_c23_pools_on_one_node(assignments: tuple[str, ...], broken: bool):
    smaller = ("data.train_batch_size=384", "actor.mini_batch_size=192")
    assert ("gpu-plan" in ids("cluster.nodes=1", *smaller, *assignments)) == broken


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        (("rollout.nodes=2",), True),  # both nodes: nothing to train on
        (("rollout.gpus_per_node=8",), True),
        (("rollout.gpus_per_node=8", "reward.gpus=0"), False),
        (("actor.gpus_per_node=9",), True),
        (("cluster.nodes=4", "rollout.nodes=3"), False),
    ],
)
def test_c23_pools_on_several_nodes(assignments: tuple[str, ...], broken: bool):
    assert ("gpu-plan" in ids(*assignments)) == broken


def test_the_numbers_and_the_remedy_of_a_pool_that_is_too_large():
    found = findings("cluster.nodes=1", "rollout.gpus_per_node=4", "actor.gpus_per_node=6")[0]
    assert "rollout 4 + training 6 GPUs are more than the 7 of 8" in found.message
    assert "cluster.nodes=2" in found.remedy


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        (("rollout.tensor_parallel=2",), True),  # of 7
        (("rollout.tensor_parallel=7",), False),
        (("rollout.tensor_parallel=3", "reward.gpus=0"), True),
        (("rollout.tensor_parallel=2", "reward.gpus=0"), False),
        (("rollout.tensor_parallel=4", "engine.mode=sync", "actor.gpus_per_node=6"), True),
        (("rollout.tensor_parallel=2", "engine.mode=sync", "actor.gpus_per_node=6"), False),
    ],
)
def test_c04_rollout_engines_are_whole(assignments: tuple[str, ...], broken: bool):
    assert ("rollout-tp" in ids(*assignments)) == broken


def refused_by_verl(gpus: int, sizes: tuple[int, int, int], micro: int, batch: int, mini: int, n: int) -> bool:
    """verl 0.9.1: validate_config (utils/config.py), workers/config/actor.py, and the even split of a mini batch
    that engine_workers.py asserts."""
    tensor, pipeline, context = sizes
    size = tensor * pipeline * context
    if gpus % size or batch < mini:
        return True
    copies = gpus // size
    return bool(batch * n % (copies * micro) or mini * n % copies)


def test_c06_the_grid_of_sizes():
    """Whatever verl refuses is refused here, and a batch that is not whole mini batches of whole micro batches."""
    grid = itertools.product((8, 16), ((1, 1, 1), (2, 4, 1), (8, 4, 1), (1, 3, 1), (2, 1, 2)), (1, 4, 3),
                             (64, 256, 96), (32, 128), (1, 6, 8))  # fmt: skip
    verdicts = set()
    for gpus, sizes, micro, batch, mini, n in grid:
        tensor, pipeline, context = sizes
        broken = ids(
            "cluster.nodes=" + str(gpus // 8),
            "engine.mode=sync",
            "algorithm.estimator=reinforce_plus_plus",
            "reward.gpus=0",
            "actor.gpus_per_node=8",
            f"actor.tensor_parallel={tensor}",
            f"actor.pipeline_parallel={pipeline}",
            f"actor.context_parallel={context}",
            f"actor.micro_batch_size_per_gpu={micro}",
            f"data.train_batch_size={batch}",
            f"actor.mini_batch_size={mini}",
            f"rollout.n={n}",
        )
        copies = max(gpus // (tensor * pipeline * context), 1)
        stricter = bool(batch % mini or mini * n % (copies * micro))
        assert bool(broken) == (refused_by_verl(gpus, sizes, micro, batch, mini, n) or stricter), (
            gpus, sizes, micro, batch, mini, n, broken,
        )  # fmt: skip
        verdicts.add(bool(broken))
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        (("actor.max_tokens_per_gpu=6144",), set()),
        (("actor.max_tokens_per_gpu=6143",), {"token-budget"}),
        (("actor.max_tokens_per_gpu=3072", "actor.context_parallel=2"), set()),
        (("data.max_response_length=20000",), {"token-budget"}),
        (("actor.max_tokens_per_gpu=9999", "data.train_batch_size=64"), {"mini-batch"}),
        (("actor.max_tokens_per_gpu=9999", "data.train_batch_size=130", "actor.mini_batch_size=65", "rollout.n=2",
          "actor.gpus_per_node=8"), {"mini-batch-split"}),
    ],
)  # fmt: skip
def test_c06_dynamic_batches_divide_too(assignments: tuple[str, ...], broken: set[str]):
    """verl skips its own rules there."""
    assert ids("actor.dynamic_batch=true", *assignments) == broken


def test_a_group_of_one_has_no_advantage():
    assert "group-size" in ids("rollout.n=1")
    assert "group-size" not in ids("rollout.n=1", template="ppo")
    assert "greedy-group" in ids("rollout.temperature=0")


def test_the_critic_has_batches_of_its_own():
    assert "critic-batch" in ids("critic.micro_batch_size_per_gpu=3", template="ppo")
    assert ids("critic.micro_batch_size_per_gpu=2", template="ppo") == set()


def test_c22_sampling_without_an_end_is_told():
    on = ("engine.mode=sync", "algorithm.filter_groups={enable: true}")
    assert "endless-sampling" in ids(*on, severity="warning")
    assert "endless-sampling" not in ids(severity="warning")
