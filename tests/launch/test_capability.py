"""What a version, a mode or a GPU cannot do is refused with a reason and a way out (C22, C23, C26)."""

from pathlib import Path

import pytest

from launch.checks import check_job
from launch.checks.ignored import check_ignored
from launch.config import load_job
from launch.finding import Finding


def findings(*assignments: str, template: str = "grpo", rehearse: bool = False) -> dict[str, Finding]:
    job = load_job(template, None, assignments)
    found = check_job(job, Path("/nonexistent"), rehearse=rehearse, sample_data=False)
    return {finding.id: finding for finding in found}


def severity(id_: str, *assignments: str, template: str = "grpo") -> str | None:
    found = findings(*assignments, template=template).get(id_)
    return found.severity if found else None


@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_one_step_off_is_not_in_0_6_1(strategy: str, engine: str):
    given = ("engine.verl=0.6.1", f"actor.strategy={strategy}", f"rollout.engine={engine}")
    found = findings(*given)["engine-mode"]
    assert found.severity == "error"
    assert "engine.mode=sync" in found.remedy
    assert "engine-mode" not in findings(*given, "engine.mode=sync")


@pytest.mark.parametrize("verl", ["0.8.0", "0.9.1"])
@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_the_newer_versions_have_both_modes(verl: str, mode: str):
    assert "engine-mode" not in findings(f"engine.verl={verl}", f"engine.mode={mode}")


@pytest.mark.parametrize(
    ("assignments", "refused"),
    [
        (("engine.mode=one_step_off",), True),
        (("engine.mode=sync", "engine.verl=0.8.0"), True),
        (("engine.mode=sync", "engine.verl=0.6.1"), True),
        (("engine.mode=sync", "engine.verl=0.9.1"), False),
    ],
)
def test_dynamic_sampling_is_in_the_v1_trainer_alone(assignments: tuple[str, ...], refused: bool):
    on = "algorithm.filter_groups={enable: true}"
    assert (severity("dynamic-sampling", *assignments, on, template="dapo") == "error") == refused
    if not refused:
        assert severity("reward-errors", *assignments, on, template="dapo") == "warning"


@pytest.mark.parametrize("verl", ["0.8.0", "0.9.1"])
@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
def test_one_step_off_has_no_critic(verl: str, strategy: str):
    given = (f"engine.verl={verl}", f"actor.strategy={strategy}", "engine.mode=one_step_off")
    found = findings(*given, template="ppo")["one-step-off-critic"]
    assert (found.severity, "engine.mode=sync" in found.remedy) == ("error", True)
    assert "one-step-off-critic" not in findings(*given)
    assert "one-step-off-critic" not in findings(template="ppo")


@pytest.mark.parametrize("verl", ["0.6.1", "0.8.0"])
def test_the_vllm_rehearsal_is_there_for_0_9_1_alone(verl: str):
    given = (f"engine.verl={verl}", "engine.mode=sync", "rehearsal.rollout=vllm")
    found = findings(*given, rehearse=True)["rehearsal-rollout"]
    assert (found.severity, found.remedy) == ("error", "set rehearsal.rollout=hf or engine.verl=0.9.1")
    assert "rehearsal-rollout" not in findings("rehearsal.rollout=vllm", rehearse=True)


HOPPER = ("cluster.gpu=h200", "container.cuda='12.9'")


@pytest.mark.parametrize(
    ("gpu", "broken"),
    [
        ("h100", False), ("h200", False), ("nvidia_h100_80gb_hbm3", False), ("gh200", False), ("h20", False),
        ("a100", True), ("a100-sxm4-80gb", True), ("v100", True), ("l40s", True), ("rtx4090", True),
        ("b200", True), ("gb200", True),
    ],
)  # fmt: skip
def test_c26_blockwise_fp8_needs_hopper(gpu: str, broken: bool):
    found = findings(f"cluster.gpu={gpu}", "container.cuda='12.9'")
    assert ("fp8-gpu" in found) == broken
    assert "fp8-unknown" not in found
    if broken:
        assert "actor.fp8=null" in found["fp8-gpu"].remedy
        assert "fp8-gpu" not in findings(f"cluster.gpu={gpu}", "actor.fp8=null")


@pytest.mark.parametrize(
    ("cuda", "broken"), [("12.8", True), ("11.8", True), ("12.9", False), ("13.0", False), ("12.10", False)]
)
def test_c26_blockwise_fp8_needs_cuda_12_9(cuda: str, broken: bool):
    assert ("fp8-cuda" in findings("cluster.gpu=h100", f"container.cuda='{cuda}'")) == broken


def test_one_cause_is_told_once():
    assert "fp8-unknown" not in findings("cluster.gpu=a100")
    assert "fp8-unknown" not in findings("container.cuda='12.8'")


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        ((), "cluster.gpu and container.cuda"),
        (("cluster.gpu=h100",), "container.cuda"),
        (("container.cuda='12.9'",), "cluster.gpu"),
        (("cluster.gpu=tpu_v5", "container.cuda='12.9'"), "cluster.gpu"),
        (("actor.fp8=null",), None),
        (("actor.strategy=fsdp2", "actor.fp8=null"), None),
        (HOPPER, None),
    ],
)
def test_what_is_not_known_is_told(assignments: tuple[str, ...], told: str | None):
    found = findings(*assignments).get("fp8-unknown")
    assert (found and found.severity) == (told and "warning")
    if found and told:
        assert found.remedy.startswith(f"set {told}, or")
        assert ("container.stack=verl-0.9.1" in found.remedy) == ("container.cuda" in told)


@pytest.mark.parametrize(
    ("gpu", "value", "broken"),
    [("h100", "1", False), ("h100", "0", True), ("b200", "1", True), ("b200", "0", False), ("a100", "1", False)],
)
def test_c26_the_scale_flag_is_1_on_hopper_and_0_on_blackwell(gpu: str, value: str, broken: bool):
    flag = f"container.env.NVTE_FP8_BLOCK_SCALING_FP32_SCALES='{value}'"
    assert (severity("fp8-scales", f"cluster.gpu={gpu}", flag, "actor.fp8=null") == "error") == broken


@pytest.mark.parametrize(
    ("assignments", "wanted"),
    [
        (("engine.verl=0.6.1", "engine.mode=sync"), "error"),
        (("cluster.gpu=a100",), "error"),
        (("cluster.gpu=l40s",), None),
        (("cluster.gpu=h100",), None),
    ],
)
def test_an_fp8_rollout_needs_a_version_and_a_gpu(assignments: tuple[str, ...], wanted: str | None):
    assert severity("rollout-fp8", "rollout.fp8=true", *assignments) == wanted


def test_fp8_on_both_sides_with_sglang_is_told():
    both = (*HOPPER, "rollout.fp8=true")
    assert "rollout.engine=vllm where" in findings("rollout.engine=sglang", *both)["fp8-end-to-end"].remedy
    # What a stack does not have is no way out, and neither is the other end of what no end has.
    remedy = findings(*both, "container.stack=verl-0.9.1")["fp8-end-to-end"].remedy
    assert remedy == "set rollout.fp8=false"
    old = ("engine.verl=0.6.1", "engine.mode=sync")
    assert severity("fp8-end-to-end", *both, *old) is None
    assert severity("rollout-fp8", *both, *old) == "error"
    assert severity("fp8-end-to-end", *both) == "warning"
    assert severity("fp8-end-to-end", *both, "rollout.engine=vllm") is None
    assert severity("fp8-end-to-end", *both, "actor.fp8=null") is None


def test_blockwise_fp8_of_the_0_6_1_image_is_told():
    old = ("engine.verl=0.6.1", "engine.mode=sync", *HOPPER)
    assert severity("fp8-version", *old) == "warning"
    assert severity("fp8-version", *old, "actor.fp8=null") is None


@pytest.mark.parametrize(
    ("assignment", "id_", "wanted"),
    [
        ("actor.tensor_parallel=2", "megatron-only", "error"),
        ("actor.expert_parallel=2", "megatron-only", "error"),
        ("actor.fp8=blockwise", "megatron-only", "error"),
        ("actor.pipeline_parallel=1", "megatron-only", None),
        ("actor.context_parallel=2", "megatron-only", None),
    ],
)
def test_sizes_of_megatron_do_not_vanish_with_fsdp2(assignment: str, id_: str, wanted: str | None):
    assert severity(id_, "actor.strategy=fsdp2", assignment) == wanted


@pytest.mark.parametrize(
    ("assignments", "id_"),
    [
        (("algorithm.use_kl_in_reward=true",), "kl-twice"),
        (("container.env.RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES='1'",), "noset-devices"),
    ],
)
def test_what_is_not_meant_is_told(assignments: tuple[str, ...], id_: str):
    assert severity(id_, *assignments) == "warning"
    assert id_ not in findings()


FUNCTION = ("reward.kind=function", "reward.function=f.py")
UPSTREAM = ("reward.backend=vllm", "reward.upstream=http://models:8000", "reward.gpus=0")
FSDP2 = ("actor.strategy=fsdp2", "actor.fp8=null")


def ignored(*assignments: str, template: str = "grpo") -> list[str]:
    found = [*check_ignored(load_job(template, None, assignments))]
    assert all(one.id == "ignored-field" and one.severity == "warning" for one in found)
    return [one.message.partition(":")[0] for one in found]


@pytest.mark.parametrize(
    ("assignment", "idle", "used"),
    [
        ("rollout.gpus_per_node=7", ("engine.mode=sync",), ()),
        ("rollout.nodes=1", ("engine.mode=sync",), ()),
        ("critic.lr=1e-5", (), ("algorithm.estimator=gae",)),
        ("reward.model=m", FUNCTION, ()),
        ("reward.gpus=1", FUNCTION, ()),
        ("reward.max_length=9", FUNCTION, ()),
        ("reward.timeout_s=9", FUNCTION, ()),
        ("reward.deadline_s=9", FUNCTION, ()),
        ("reward.deadline_s=9", ("reward.on_outage=wait:60",), ()),
        ("reward.on_outage=penalty", FUNCTION, ()),
        ("reward.input=chat", FUNCTION, ()),
        ("reward.truncate=error", FUNCTION, ()),
        ("reward.dtype=float32", FUNCTION, ()),
        ("reward.dtype=float32", UPSTREAM, ()),
        ("reward.batch_tokens=512", FUNCTION, UPSTREAM),
        ("reward.trust_remote_code=true", FUNCTION, UPSTREAM),
        ("reward.ready_timeout_s=9", FUNCTION, ()),
        ("reward.min_score=-9", FUNCTION, ()),
        ("reward.max_score=9", FUNCTION, ()),
        ("reward.function_name=f", (), FUNCTION),
        ("actor.max_tokens_per_gpu=9999", (), ("actor.dynamic_batch=true",)),
        ("actor.sequence_parallel=true", FSDP2, ()),
        ("algorithm.lam=0.95", (), ("algorithm.estimator=gae",)),
        ("algorithm.norm_by_std=false", ("algorithm.estimator=rloo",), ()),
        ("algorithm.kl_loss_coef=0.01", ("algorithm.use_kl_loss=false",), ()),
        ("algorithm.kl_loss_type=k3", ("algorithm.use_kl_loss=false",), ()),
        ("algorithm.kl_coef=0.01", (), ("algorithm.use_kl_in_reward=true",)),
        ("algorithm.overlong_buffer.length=9", (), ("algorithm.overlong_buffer.enable=true",)),
        ("algorithm.overlong_buffer.penalty_factor=2.0", (), ("algorithm.overlong_buffer.enable=true",)),
        ("algorithm.filter_groups.metric=acc", (), ("algorithm.filter_groups.enable=true",)),
    ],
)
def test_a_field_without_effect_is_told(assignment: str, idle: tuple[str, ...], used: tuple[str, ...]):
    (told,) = ignored(assignment, *idle)
    assert told == f"{assignment.partition('=')[0]} has no effect"
    assert ignored(assignment, *used) == []


@pytest.mark.parametrize(
    ("template", "assignments"),
    [
        ("grpo", ()),
        ("ppo", ()),
        ("dapo", ()),
        # The template set its length, not the user.
        ("dapo", ("algorithm.overlong_buffer.enable=false",)),
        ("grpo", ("actor.max_tokens_per_gpu=null", "actor.sequence_parallel=false")),
    ],
)
def test_what_the_user_did_not_set_is_not_told(template: str, assignments: tuple[str, ...]):
    assert ignored(*assignments, template=template) == []


def test_fields_of_one_kind_share_a_line():
    assert ignored("reward.gpus=1", "reward.timeout_s=9", *FUNCTION) == [
        "reward.gpus, reward.timeout_s have no effect"
    ]


def test_a_function_that_nothing_would_call_is_an_error():
    assert severity("reward-function", "reward.function=mine.py") == "error"
    assert findings("reward.function=mine.py", rehearse=True)["reward-function"].severity == "error"
    assert "reward-function" not in findings("reward.function=mine.py", "reward.kind=function")


@pytest.mark.parametrize(
    ("contents", "wanted"),
    [
        ("[model, optimizer, extra]", None),
        ("[model]", "warning"),
        ("[hf_model]", "warning"),
        ("[optimizer, extra]", "error"),
        ("null", None),
    ],
)
def test_what_is_merged_is_in_the_checkpoint(contents: str, wanted: str | None):
    assert severity("checkpoint-contents", f"checkpoint.contents={contents}") == wanted
    assert severity("checkpoint-contents", f"checkpoint={{contents: {contents}, merge: false}}") != "error"


def test_the_cache_stays_in_one_step_off():
    assert severity("free-cache", "rollout.free_cache=true") == "error"
    assert severity("free-cache", "rollout.free_cache=true", "engine.mode=sync") is None


@pytest.mark.parametrize(("length", "broken"), [(4096, False), (4097, True), (1, False)])
def test_the_overlong_buffer_is_within_the_response(length: int, broken: bool):
    """verl's manager asserts it when the first reward is computed (reward_manager/dapo.py)."""
    found = severity("overlong-buffer", f"algorithm.overlong_buffer.length={length}", template="dapo")
    assert (found == "error") == broken


def test_a_rehearsal_needs_no_gpu_of_any_kind():
    assert not {id_ for id_ in findings("cluster.gpu=a100", rehearse=True) if id_.startswith("fp8")}
