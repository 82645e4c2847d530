"""The pools on the allocation and batch arithmetic (C04, C06, C22, C23): what verl finds only once Ray is up."""

import itertools
import re
import time
from pathlib import Path

import pytest
from model_folders import PATHS, QWEN3_4B, project

from launch.checks import check_job
from launch.checks.batch import check_batch
from launch.checks.plan import broken_rules, check_gpus
from launch.config import Job, load_job
from launch.finding import Finding
from launch.sizing.layout import Layout, plan_layout


def job(*assignments: str, template: str = "grpo") -> Job:
    return load_job(template, None, assignments)


def findings(*assignments: str, template: str = "grpo") -> list[Finding]:
    return check_job(job(*assignments, template=template), Path("/nonexistent"), rehearse=False, sample_data=False)


def ways_out(remedy: str) -> list[tuple[str, ...]]:
    """The assignments of each way that a remedy names."""
    return [tuple(re.findall(r"\w+\.\w+=\d+", way)) for way in remedy.split(", or ")]


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
    # A pool is equal on its nodes: the reward server's GPU costs one on each of them.
    needed = (layout.train_nodes if mode == "sync" else layout.rollout_nodes) - 1
    told = "idle-gpus" in ids(*assignments, severity="warning", template=template)
    assert told == (layout.idle_gpus > needed)


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


EXPERTS = ("cluster.nodes=3", "rollout.nodes=1", "actor.gpus_per_node=8", "actor.pipeline_parallel=1")


@pytest.mark.parametrize(
    ("assignments", "remedy"),
    [
        (("reward.gpus=8",), "set reward.gpus=1, or reward.gpus=0"),
        (("cluster.nodes=1", "reward.gpus=9"), "set reward.gpus=1, or reward.gpus=0"),
        (("rollout.nodes=2",), "set rollout.nodes=1, or cluster.nodes=3"),
        (("rollout.gpus_per_node=8",), "set rollout.gpus_per_node=7, or reward.gpus=0"),
        (("cluster.nodes=1", "rollout.gpus_per_node=7"), "set rollout.gpus_per_node=5, or cluster"),
        (
            ("cluster.nodes=1", "rollout.gpus_per_node=4", "actor.gpus_per_node=4"),
            "set rollout.gpus_per_node=3, or actor.gpus_per_node=2, or cluster.nodes=2",
        ),
        (("actor.gpus_per_node=9",), "set actor.gpus_per_node=8"),
        (("engine.mode=sync", "actor.gpus_per_node=8"), "set actor.gpus_per_node=4, or reward.gpus=0"),
        (("rollout.tensor_parallel=2",), "set rollout.gpus_per_node=6, or rollout.tensor_parallel=1"),
        (("rollout.tensor_parallel=4",), "set rollout.gpus_per_node=4, or rollout.tensor_parallel=1"),
        (
            ("engine.mode=sync", "rollout.tensor_parallel=8"),
            "set rollout.tensor_parallel=4, or reward.gpus=0",
        ),
        (("actor.pipeline_parallel=3", "actor.gpus_per_node=8"), "set actor.gpus_per_node=6, or actor.pipeline"),
        (
            ("actor.pipeline_parallel=3", "actor.tensor_parallel=10", "actor.gpus_per_node=8"),
            "set actor.tensor_parallel=2 and actor.pipeline_parallel=1",
        ),
        (("actor.pipeline_parallel=16",), "set actor.pipeline_parallel=8, or cluster.nodes=3"),
        (("actor.strategy=fsdp2", "actor.fp8=null", "actor.context_parallel=16"), "set actor.context_parallel=8"),
        ((*EXPERTS, "actor.expert_parallel=3"), "set actor.expert_parallel=2"),
        ((*EXPERTS, "actor.expert_parallel=32"), "set actor.expert_parallel=16"),
        (
            (*EXPERTS, "actor.expert_parallel=8", "actor.tensor_parallel=4"),
            "set actor.expert_parallel=4, or actor.expert_tensor_parallel=1",
        ),
        ((*EXPERTS, "actor.expert_tensor_parallel=5"), "set actor.expert_tensor_parallel=1"),
    ],
)  # fmt: skip
def test_a_remedy_of_the_plan_works(assignments: tuple[str, ...], remedy: str):
    (found,) = [one for one in findings(*assignments) if one.severity == "error"]
    assert found.remedy.startswith(remedy)
    for way in ways_out(found.remedy):
        assert ids(*assignments, *way) == set(), way


def test_whoever_follows_the_remedies_gets_there():
    """Several broken rules: the first remedy of the first error, again and again, never goes in circles."""
    grid = itertools.product(
        (1, 2), (2, 8), (1, 8), ("sync", "one_step_off"), (1, 3), (1, 4), (1, 8), (1, 3), (6, 0)
    )
    followed = []
    for nodes, gpus, reward, mode, engine, pipeline, tensor, expert, pool in grid:
        given = [
            f"cluster={{nodes: {nodes}, gpus_per_node: {gpus}}}",
            f"reward.gpus={reward}",
            f"engine.mode={mode}",
            f"rollout.tensor_parallel={engine}",
            f"actor.pipeline_parallel={pipeline}",
            f"actor.tensor_parallel={tensor}",
            f"actor.expert_parallel={expert}",
            *([f"actor.gpus_per_node={pool}", f"rollout.gpus_per_node={pool}"] if pool else []),
        ]
        for _ in range(8):
            now = job(*given)
            found = [*check_gpus(now, rehearse=True), *check_batch(now)]
            if not found:
                break
            given += ways_out(found[0].remedy)[0]
        assert not found, given
        followed.append(len(given))
    assert len(set(followed)) > 3


def test_a_remedy_of_the_plan_takes_the_heads_into_account():
    job_ = job(
        "rollout.tensor_parallel=14", "cluster.gpus_per_node=14", "reward.gpus=0", "rollout.gpus_per_node=12"
    )
    (known,) = [one for one in broken_rules(job_, 28) if one.id == "rollout-tp"]
    (unknown,) = [one for one in broken_rules(job_) if one.id == "rollout-tp"]
    assert next(iter(known.ways[1])) == {"rollout.tensor_parallel": 7}
    assert next(iter(unknown.ways[1])) == {"rollout.tensor_parallel": 8}


def test_heads_are_read_from_the_models_folder(tmp_path: Path):
    project(tmp_path, {**QWEN3_4B, "num_attention_heads": 28, "num_key_value_heads": 4})
    given = job(
        *PATHS,
        "cluster.gpus_per_node=14",
        "rollout.tensor_parallel=8",
        "rollout.gpus_per_node=14",
        "reward.gpus=0",
    )
    (known,) = check_gpus(given, rehearse=True, project=tmp_path)
    (unknown,) = check_gpus(given, rehearse=True)
    assert known.remedy == "set rollout.gpus_per_node=8, or rollout.tensor_parallel=7"
    assert unknown.remedy == "set rollout.gpus_per_node=8, or rollout.tensor_parallel=2"


def test_who_did_not_set_a_pool_is_not_told_it_was_wrong():
    found = findings("engine.mode=sync", "rollout.tensor_parallel=8")
    (told,) = [one.message for one in found if one.id == "rollout-tp"]
    assert told.startswith("the 7 GPUs of a node beside the reward server's 1 are not divisible")


@pytest.mark.parametrize("assignments", [("engine.mode=sync",), ("engine.verl=0.6.1", "engine.mode=sync")])
@pytest.mark.parametrize("strategy", [("megatron", 1), ("megatron", 2), ("fsdp2", 1), ("fsdp2", 2)])
def test_the_remedy_of_a_batch_breaks_no_other_rule(assignments: tuple[str, ...], strategy: tuple[str, int]):
    """Prompts, mini batch, responses, micro batch, GPUs of the pool (0: not set): none goes in circles."""
    grid = itertools.product((250, 64, 1000, 7), (100, 128, 1), (1, 5, 8), (4, 3), (0, 6, 8))
    broken_before = 0
    for batch, mini, n, micro, gpus in grid:
        sizes = (
            *assignments,
            "reward.gpus=0",
            f"actor.strategy={strategy[0]}",
            "actor.fp8=null",
            f"actor.context_parallel={strategy[1]}",
            "actor.pipeline_parallel=1",
            "algorithm.estimator=reinforce_plus_plus",
            f"data.train_batch_size={batch}",
            f"actor.mini_batch_size={mini}",
            f"rollout.n={n}",
            f"actor.micro_batch_size_per_gpu={micro}",
            *([f"actor.gpus_per_node={gpus}"] if gpus else []),
        )
        found = [*check_batch(job(*sizes))]
        broken_before += bool(found)
        for one in found:
            (way,) = ways_out(one.remedy)
            after = job(*sizes, *way)
            assert [*check_batch(after)] == [], (sizes, one)
            assert gpus or plan_layout(after).train_gpus == 8, (sizes, one)
    assert broken_before > 50


@pytest.mark.parametrize(
    ("assignments", "remedy"),
    [
        (("data.train_batch_size=250",), "set data.train_batch_size=256"),
        (("actor.mini_batch_size=100",), "set data.train_batch_size=300"),
        (
            ("actor.gpus_per_node=6", "data.train_batch_size=250", "actor.mini_batch_size=125"),
            "set data.train_batch_size=252 and actor.mini_batch_size=126",
        ),
        (("data.train_batch_size=64",), "set actor.mini_batch_size=64"),
    ],
)
def test_the_nearest_batches_are_named(assignments: tuple[str, ...], remedy: str):
    found = [one for one in findings(*assignments) if one.severity == "error"]
    assert {one.remedy for one in found} == {remedy}


def test_the_remedy_of_a_critics_batch():
    (found,) = check_batch(job("critic.micro_batch_size_per_gpu=3", template="ppo"))
    assert found.remedy == "set critic.micro_batch_size_per_gpu=2"


def test_fsdp2_divides_a_step_by_all_gpus_whatever_the_context():
    """verl/utils/config.py: minimal_bsz = n_gpus for every strategy but megatron."""
    split = ("actor.strategy=fsdp2", "actor.fp8=null", "actor.context_parallel=2", "actor.gpus_per_node=8",
             "actor.micro_batch_size_per_gpu=1", "rollout.n=3", "actor.mini_batch_size=4")  # fmt: skip
    assert ids(*split, "data.train_batch_size=4") == {"train-batch"}
    assert ids(*split, "data.train_batch_size=8") == set()
    assert ids(*split, "data.train_batch_size=4", "actor.dynamic_batch=true") == set()


@pytest.mark.parametrize(
    ("assignments", "remedy"),
    [
        ((), None),
        (("cluster.nodes=4",), None),  # rollout 2*7 of 7+8
        (("engine.mode=sync", "actor.gpus_per_node=7", "actor.pipeline_parallel=1", "data.train_batch_size=252",
          "actor.mini_batch_size=252"), None),
        (("engine.mode=sync",), "set data.train_batch_size=252 and actor.mini_batch_size=126"),
        (("rollout.gpus_per_node=5",), "set rollout.gpus_per_node=7"),
        (("actor.gpus_per_node=4",), "set actor.gpus_per_node=8"),
        (("cluster.nodes=1", "rollout.gpus_per_node=2"), "set rollout.gpus_per_node=3"),
    ],
)  # fmt: skip
def test_idle_gpus_are_told_where_values_would_use_them(assignments: tuple[str, ...], remedy: str | None):
    found = [one for one in findings(*assignments) if one.id == "idle-gpus"]
    assert [one.remedy for one in found] == ([remedy] if remedy else [])
    for one in found:
        assert "0*0" not in one.message
        (way,) = ways_out(one.remedy)
        assert "idle-gpus" not in ids(*assignments, *way, severity="warning")


@pytest.mark.parametrize("field", ["actor.pipeline_parallel", "actor.gpus_per_node", "rollout.gpus_per_node",
                                   "rollout.tensor_parallel", "actor.expert_parallel", "reward.gpus",
                                   "data.train_batch_size", "actor.mini_batch_size", "rollout.nodes"])  # fmt: skip
def test_a_senseless_number_is_answered_at_once(field: str):
    before = time.process_time()
    assert ids(f"{field}=1000000007")
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    "assignments",
    [
        ("actor.tensor_parallel=5040", "actor.pipeline_parallel=5040", "actor.context_parallel=5040"),
        ("cluster.nodes=4096", "cluster.gpus_per_node=64", "rollout.gpus_per_node=5", "actor.gpus_per_node=4"),
        ("cluster.nodes=4096", "cluster.gpus_per_node=64", "actor.pipeline_parallel=4095"),
        ("cluster.nodes=1", "cluster.gpus_per_node=64", "rollout.gpus_per_node=5", "actor.gpus_per_node=4"),
    ],
)
def test_many_candidates_are_tried_at_once(assignments: tuple[str, ...]):
    before = time.process_time()
    assert findings(*assignments)
    assert time.process_time() - before < 20
