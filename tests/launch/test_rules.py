"""Layout of the pools, the rehearsal's shrinking, and the rules on a job."""

import json
from pathlib import Path

import pytest

from launch.checks import check_job
from launch.config import Job, load_job
from launch.rehearsal.shrink import rehearse
from launch.sizing.layout import Layout, plan_layout


def job(*assignments: str) -> Job:
    return load_job("grpo", None, assignments)


def ids(*assignments: str, project: Path = Path("/nonexistent"), **options: bool) -> set[str]:
    options = {"rehearse": False, "sample_data": False, **options}
    given = job(*assignments)
    found = check_job(rehearse(given) if options["rehearse"] else given, project, **options)
    return {finding.id for finding in found if finding.severity == "error"}


def test_two_nodes_reward_and_rollout_on_the_head():
    assert plan_layout(job()) == Layout(1, 1, 7, 1, 8, 7, 8)


def test_one_node_holds_all_three():
    one = job("cluster.nodes=1", "rollout.gpus_per_node=3")
    assert plan_layout(one) == Layout(1, 1, 3, 1, 4, 7, 8)


def test_sync_shares_one_pool():
    assert plan_layout(job("engine.mode=sync", "reward.gpus=0")) == Layout(0, 0, 0, 2, 8, 8, 8)


@pytest.mark.parametrize(
    ("assignments", "nodes", "slots", "tensor", "pipeline"),
    [
        ((), 3, 1, 1, 2),
        (("cluster.nodes=1",), 1, 3, 1, 2),
        (("cluster.nodes=2",), 2, 2, 1, 2),
        (("cluster.nodes=64",), 3, 1, 1, 2),
        (("actor.tensor_parallel=8", "actor.pipeline_parallel=4"), 3, 1, 2, 1),
        (("actor.pipeline_parallel=1", "cluster.nodes=1"), 1, 2, 1, 1),
        (("actor.strategy=fsdp2", "cluster.nodes=3"), 3, 1, 1, 1),
        (("engine.verl=0.6.1", "engine.mode=sync"), 2, 1, 1, 2),
        (("engine.verl=0.6.1", "engine.mode=sync", "cluster.nodes=1"), 1, 2, 1, 2),
    ],
)
def test_a_rehearsal_is_small_and_legal(assignments, nodes, slots, tensor, pipeline):
    small = rehearse(job(*assignments))
    assert (small.cluster.nodes, small.cluster.gpus_per_node) == (nodes, slots)
    assert (small.actor.tensor_parallel, small.actor.pipeline_parallel) == (tensor, pipeline)
    assert ids(*assignments, rehearse=True, sample_data=True) == set()


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        ((), set()),
        (("engine.verl=0.6.1",), {"engine-mode"}),
        (("cluster.nodes=1",), set()),
        (("cluster.nodes=1", "rollout.gpus_per_node=7"), {"gpu-plan"}),
        (("rollout.gpus_per_node=8",), {"gpu-plan"}),
        (("rollout.tensor_parallel=2",), {"rollout-tp"}),
        (("actor.pipeline_parallel=3", "actor.gpus_per_node=8"), {"train-parallel"}),
        (("data.train_batch_size=64",), {"mini-batch"}),
        (("data.train_batch_size=256", "actor.mini_batch_size=100"), {"mini-batch"}),
        (
            ("data.train_batch_size=130", "actor.mini_batch_size=130", "rollout.n=2", "actor.gpus_per_node=8"),
            {"train-batch"},
        ),
        (("actor.mini_batch_size=1", "rollout.n=10"), {"mini-batch-split"}),
        (("rollout.n=1",), {"group-size"}),
        (("overrides=['a b']",), {"override"}),
        (("overrides=['::trainer']",), {"override"}),
        *(
            ((f"overrides={json.dumps([text])}",), {"override"})
            for text in (
                "--help",
                "-m",
                "--multirun",
                "--cfg=job",
                "trainer.foo",
                "+++a=1",
                "a=\n",
                "é=1",
                "/x=1",
                "=1",
            )
        ),
        (("overrides=['++a.b=c d', '~a', '~a=1', '+a=', 'hydra/x@y.z=1']",), set()),
        (("container.env.HF_TOKEN=x",), {"secret"}),
        (("container.env.my_api_key=x",), {"secret"}),
        (("container.env.TOKENIZERS_PARALLELISM=x",), set()),
        (("checkpoint.dir='/a:b'",), {"bind-path"}),
        (("model.path=/no/such/model",), {"missing-file"}),
        (("data.train=[/no/such/file]", "data.val=[/no]"), {"missing-file"}),
        (("reward.kind=function", "reward.function=/no.py"), {"missing-file"}),
    ],
)
def test_rules(assignments, broken):
    assert ids(*assignments) == broken


def test_messages_carry_the_numbers():
    found = check_job(
        job("data.train_batch_size=130", "actor.mini_batch_size=130", "rollout.n=2", "actor.gpus_per_node=8"),
        Path("/nonexistent"),
        rehearse=False,
        sample_data=False,
    )
    assert "train_batch_size*n = 130*2 = 260 is not divisible" in found[0].message
    assert found[0].remedy == "set data.train_batch_size=128 and actor.mini_batch_size=128"


def test_default_paths_that_are_missing_warn_and_named_ones_fail(tmp_path: Path):
    default = check_job(job(), tmp_path, rehearse=False, sample_data=False)
    assert {finding.severity for finding in default} == {"warning"}
    named = check_job(job("model.path=models/Qwen3-4B-Thinking-2507"), tmp_path, rehearse=False, sample_data=False)
    assert [f.message for f in named if f.severity == "error"] == [
        f"model.path: no {tmp_path}/models/Qwen3-4B-Thinking-2507"
    ]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kw): ...", True),
        ("async def compute_score(**kw): ...", True),
        ("def compute_score(data_source, solution_str, *, ground_truth, extra_info): ...", True),
        ("from mine import score as compute_score", True),
        ("compute_score = print", True),
        ("def compute_score(prompt, answer): ...", False),
        ("def score(**kw): ...", False),
        ("name: yaml", False),
        ("def f(:", False),
        ("\0", False),
    ],
)
def test_the_reward_function_is_looked_at_before_the_queue(tmp_path: Path, text: str, good: bool):
    (tmp_path / "mine.py").write_text(text)
    found = ids("reward.kind=function", "reward.function=mine.py", project=tmp_path)
    assert found == (set() if good else {"reward-function"})
