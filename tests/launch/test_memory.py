"""The memory estimate, against sums that a person can follow, and the rules on it."""

from pathlib import Path

import pytest
from model_folders import PATHS, QWEN3_4B, QWEN3_30B_A3B, QWEN3_REWARD, model_folder, project

from launch.checks.batch import check_batch
from launch.checks.memory import check_memory, estimate_job
from launch.config import load_job
from launch.model.shape import read_shape
from launch.sizing.layout import plan_layout
from launch.sizing.memory import GIB, MemoryEstimate, estimate, gpu_memory
from launch.sizing.training_memory import largest_split, layer_bytes_per_token

DENSE_LAYER = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 2 * 128 + 3 * 2560 * 9728 + 2 * 2560
EMBEDDING = 151936 * 2560


def estimated(root: Path, *assignments: str) -> MemoryEstimate:
    found = estimate_job(load_job("grpo", None, [*PATHS, *assignments]), root)
    assert found is not None
    return found


def parts(root: Path, *assignments: str) -> dict[str, float]:
    return dict(estimated(root, *assignments).training.parts)


def ids(root: Path, *assignments: str) -> set[str]:
    job = load_job("grpo", None, [*PATHS, *assignments])
    return {f"{finding.severity}:{finding.id}" for finding in check_memory(job, root)}


def test_megatron_states_of_a_dense_model(tmp_path: Path):
    """Two stages of 18 layers on 8 GPUs: four copies share the optimizer's states."""
    found = parts(project(tmp_path), "actor.fp8=null", "algorithm.use_kl_loss=false")
    held = 18 * DENSE_LAYER + EMBEDDING + 2560  # the final norm on the last stage
    assert found["weights"] == pytest.approx(2 * held / GIB, rel=1e-6)
    assert found["gradients"] == pytest.approx(4 * held / GIB, rel=1e-6)
    assert found["optimizer"] == pytest.approx(12 * held / 4 / GIB, rel=1e-6)
    assert "reference" not in found
    assert "FP8 copies" not in found


def test_one_stage_holds_tied_embeddings_once(tmp_path: Path):
    shape = read_shape(project(tmp_path) / "models/policy")
    assert largest_split(shape, 1, 1, 1, 1, value_model=False).total == shape.parameters().total
    untied = read_shape(model_folder(tmp_path / "untied", {**QWEN3_4B, "tie_word_embeddings": False}))
    assert largest_split(untied, 1, 1, 1, 1, value_model=False).total == untied.parameters().total


def test_experts_are_spread_over_expert_parallel_gpus(tmp_path: Path):
    shape = read_shape(project(tmp_path, QWEN3_30B_A3B) / "models/policy")
    held = largest_split(shape, 4, 1, 8, 1, value_model=False)
    assert held.experts == 48 * 128 / 8 * 3 * 2048 * 768
    assert held.dense == pytest.approx(
        (shape.parameters().total - shape.parameters().experts) / 4, rel=0.03
    )  # norms and router are on each GPU
    found = parts(
        tmp_path,
        "cluster.nodes=3",
        "rollout.nodes=1",
        "actor.gpus_per_node=8",
        "actor.pipeline_parallel=1",
        "actor.tensor_parallel=4",
        "actor.expert_parallel=8",
        "actor.expert_tensor_parallel=1",
        "actor.fp8=null",
    )
    # 16 GPUs: 4 copies of what is not in experts, 2 of each expert.
    assert found["optimizer"] == pytest.approx(12 * (held.dense / 4 + held.experts / 2) / GIB)


def test_fsdp_states_are_fp32_over_all_gpus(tmp_path: Path):
    found = parts(project(tmp_path), "actor.strategy=fsdp2", "actor.fp8=null", "algorithm.use_kl_loss=false")
    total = 4_022_468_096
    assert found["weights"] == found["gradients"] == pytest.approx(4 * total / 8 / GIB)
    assert found["optimizer"] == pytest.approx(8 * total / 8 / GIB)
    assert found["gathered layers"] == pytest.approx(2 * (EMBEDDING + 2 * (DENSE_LAYER - 2 * 2560)) / GIB)


def test_activations_by_layer(tmp_path: Path):
    shape = read_shape(project(tmp_path) / "models/policy")
    each = layer_bytes_per_token(shape)
    assert each == 2 * (4 * 2560 + 2 * 4096 + 2 * 1024 + 3 * 9728)
    assert layer_bytes_per_token(shape, 4) == each / 4
    assert layer_bytes_per_token(shape, 4, sequence_parallel=False) > each / 4
    base = ("actor.fp8=null", "actor.pipeline_parallel=1")
    tokens = 4 * (2048 + 4096)
    plain = parts(tmp_path, *base)
    assert plain["activations"] == pytest.approx(36 * tokens * each / GIB)
    assert plain["logits"] == pytest.approx(8 * tokens * 151936 / GIB)
    again = parts(tmp_path, *base, "actor.recompute=true")
    assert again["activations"] == pytest.approx(tokens * (36 * 2 * 2560 + each) / GIB)
    halved = parts(tmp_path, *base, "actor.context_parallel=2")
    assert halved["activations"] == pytest.approx(plain["activations"] / 2)
    packed = parts(tmp_path, *base, "actor.dynamic_batch=true", f"actor.max_tokens_per_gpu={tokens // 4}")
    assert packed["logits"] == pytest.approx(plain["logits"] / 4)


def test_the_first_stage_of_a_pipeline_holds_several_micro_batches(tmp_path: Path):
    one = parts(project(tmp_path), "actor.pipeline_parallel=1", "actor.fp8=null")
    two = parts(tmp_path, "actor.pipeline_parallel=2", "actor.fp8=null")
    assert two["activations"] == pytest.approx(one["activations"])  # half the layers, twice the micro batches
    assert "logits" not in two
    last = parts(tmp_path, "actor.pipeline_parallel=2", "actor.fp8=null", "actor.recompute=true")
    assert last["logits"] == pytest.approx(one["logits"])


def test_a_critic_trains_or_rests(tmp_path: Path):
    root = project(tmp_path)
    alone = parts(root, "actor.fp8=null")
    both = parts(root, "actor.fp8=null", "algorithm.estimator=gae", "critic.offload=[]")
    assert both["critic at rest"] == pytest.approx(
        alone["weights"] + alone["gradients"] + alone["optimizer"], rel=0.01
    )
    offloaded = parts(root, "algorithm.estimator=gae", "critic.offload=[param,optimizer]")
    assert "critic at rest" not in offloaded


def test_rollout_weights_and_cache(tmp_path: Path):
    found = estimated(project(tmp_path), "cluster.gpu=h200").rollout
    assert found.weights == pytest.approx(2 * 4_022_468_096 / GIB)
    assert found.kv_gib_per_sequence == pytest.approx(6144 * 36 * 2 * 8 * 128 * 2 / GIB)
    assert found.kv == pytest.approx(0.7 * 140.4 - found.weights)
    split = estimated(tmp_path, "cluster.gpu=h200", "rollout.tensor_parallel=7", "rollout.fp8=true").rollout
    assert split.weights == pytest.approx(((4_022_468_096 - EMBEDDING) + 2 * EMBEDDING) / 7 / GIB, rel=0.01)


def test_memory_of_a_gpu_comes_from_the_job_or_the_name():
    def known(*assignments: str) -> tuple[float, bool] | None:
        found = gpu_memory(load_job("grpo", None, assignments))
        return (found.gib, found.sure) if found else None

    assert known() is None
    assert known("cluster.gpu=fat") is None
    assert known("cluster.gpu=h200") == (140.4, True)
    assert known("cluster.gpu=a100") == (40.0, False)
    assert known("cluster.gpu=a100", "cluster.gpu_memory_gb=80") == (80.0, True)


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        ((), {"warning:memory-unknown"}),
        (("cluster.gpu=fat",), {"warning:memory-unknown"}),
        (("cluster.gpu=h200",), set()),
        # 18 GiB of states, and activations of 82 GiB at full length.
        (("cluster.gpu=nvidia_h100_80gb_hbm3",), {"warning:memory-training"}),
        (("cluster.gpu=nvidia_h100_80gb_hbm3", "actor.recompute=true"), set()),
        (("cluster.gpu=nvidia_h100_80gb_hbm3", "actor.micro_batch_size_per_gpu=1"), set()),
        # One GPU holds the whole model with its optimizer: 4e9 * 18 bytes = 67 GiB.
        (
            ("cluster.gpu_memory_gb=40", "cluster.nodes=1", "rollout.gpus_per_node=6", "actor.gpus_per_node=1"),
            {"error:memory-training"},
        ),
        (
            ("cluster.gpu_memory_gb=10", "actor.tensor_parallel=4"),
            {"error:memory-rollout", "warning:memory-training"},
        ),
        # 0.7*12 - 7.5 GiB of weights: less than one sequence of 0.84 GiB at 8,192 tokens.
        (
            ("cluster.gpu_memory_gb=12", "actor.tensor_parallel=4", "data.max_response_length=6144"),
            {"error:memory-rollout", "warning:memory-training"},
        ),
        # The name covers 16 and 32 GB: nothing is certain.
        (
            ("cluster.gpu=v100", "rollout.gpu_memory_utilization=0.3", "actor.tensor_parallel=4"),
            {"warning:memory-rollout", "warning:memory-training"},
        ),
        (
            ("cluster.gpu=h200", "engine.mode=sync", "reward.gpus=0", "rollout.gpu_memory_utilization=0.9"),
            {"warning:memory-sync"},
        ),
        (
            (
                "cluster.gpu=h200",
                "engine.mode=sync",
                "rollout.gpu_memory_utilization=0.9",
                "actor.offload=[param,optimizer]",
            ),
            set(),
        ),
        (("cluster.gpu=h200", "engine.mode=sync", "rollout.free_cache=false"), {"warning:memory-sync"}),
    ],
)
def test_rules(tmp_path: Path, assignments, broken):
    single = ("actor.pipeline_parallel=1",) if "actor.gpus_per_node=1" in assignments else ()
    assert ids(project(tmp_path), *assignments, *single) == broken


def test_messages_carry_the_numbers(tmp_path: Path):
    job = load_job("grpo", None, [*PATHS, "cluster.gpu_memory_gb=10", "actor.tensor_parallel=4"])
    rollout = next(f for f in check_memory(job, project(tmp_path)) if f.id == "memory-rollout")
    assert rollout.message == (
        "the rollout's weights take 7.5 GiB on a GPU, its share is gpu_memory_utilization*memory = 0.7*10.0 = "
        "7.0 GiB (cluster.gpu_memory_gb=10)"
    )


@pytest.mark.parametrize(
    ("template", "assignments", "remedy"),
    [
        (
            "grpo",
            ("cluster.gpu=h100", "cluster.gpu_memory_gb=80"),
            "set actor.micro_batch_size_per_gpu=2, or actor.recompute=true, or actor.tensor_parallel=2",
        ),
        # A micro batch of one is not enough there.
        ("grpo", ("cluster.gpu_memory_gb=60", "data.max_response_length=14336", "actor.fp8=null"),
         "set actor.micro_batch_size_per_gpu=1 and actor.recompute=true"),
        ("grpo", ("cluster.gpu_memory_gb=80", "actor.dynamic_batch=true"),
         "set actor.max_tokens_per_gpu=6144, or actor.recompute=true"),
        ("ppo", ("cluster.gpu_memory_gb=135", "critic.offload=[]"),
         "set actor.micro_batch_size_per_gpu=2, or actor.recompute=true, or critic.offload=[param,optimizer]"),
        ("ppo", ("cluster.gpu_memory_gb=80", "actor.recompute=true"),
         "set rollout.gpu_memory_utilization=0.6, or actor.offload=[param,optimizer]"),
        ("ppo", ("cluster.gpu_memory_gb=80", "actor.recompute=true", "rollout.free_cache=false"),
         "set actor.offload=[param,optimizer] and rollout.free_cache=true"),
        ("grpo", ("cluster.gpu_memory_gb=20",), "set actor"),
    ],
)  # fmt: skip
def test_a_remedy_suffices(tmp_path: Path, template, assignments, remedy):
    root = project(tmp_path)
    reward = "reward.max_length=null"
    (found,) = check_memory(load_job(template, None, [*PATHS, *assignments, reward]), root)
    assert found.remedy.startswith(remedy)
    for way in found.remedy.removeprefix("set ").split(", or "):
        after = load_job(template, None, [*PATHS, *assignments, reward, *way.split(" and ")])
        assert found.id not in {one.id for one in check_memory(after, root)}, way
        assert [one for one in check_batch(after) if one.severity == "error"] == []


def test_a_reward_model_that_is_too_large(tmp_path: Path):
    project(tmp_path)
    model_folder(
        tmp_path / "models/reward", {**QWEN3_REWARD, "num_hidden_layers": 200, "intermediate_size": 90000}
    )
    assert "error:memory-reward" in ids(tmp_path, "cluster.gpu_memory_gb=80")
    assert "error:memory-reward" not in ids(tmp_path, "cluster.gpu_memory_gb=80", "reward.gpus=0")


@pytest.mark.parametrize(
    "assignments",
    [
        ("model.path=models/none",),
        ("actor.tensor_parallel=3", "actor.gpus_per_node=8"),  # pools that do not divide: check_gpus
        ("cluster.nodes=1", "cluster.gpus_per_node=1"),
        ("actor.expert_parallel=3",),
    ],
)
def test_nothing_is_said_where_other_rules_speak(tmp_path: Path, assignments):
    assert ids(project(tmp_path), *assignments, "cluster.gpu_memory_gb=1") == set()


def test_every_assumption_is_a_line(tmp_path: Path):
    shape = read_shape(project(tmp_path) / "models/policy")
    job = load_job("grpo", None, ["cluster.gpu=a100", "actor.dynamic_batch=true", "engine.mode=sync"])
    told = "\n".join(estimate(job, shape, plan_layout(job)).lines(assumptions=True))
    for words in (
        "40.0 GiB a GPU: the smallest usual A100",
        "a micro batch of 16384 tokens",
        "no activations recomputed",
        "offloaded optimizer: back on the GPU during an update",
        "both on one GPU while generating",
        "sequences of 6144 tokens",
    ):
        assert words in told
