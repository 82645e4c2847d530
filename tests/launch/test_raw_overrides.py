"""Raw overrides become fields, so that the rules see them, and cannot change what the launcher plans.

FIELD_CASES: A03 (num_cpus of a Ray that runs already), C04 (rollout tensor parallel), C09 (the reward function's
key), C22 (groups filtered without end), C23 (the pools of one_step_off).
"""

import json
from pathlib import Path

import pytest

from launch.checks import check_job
from launch.config import Job, load_job
from launch.config.verl_keys import marked_fields
from launch.engines.raw_overrides import check_raw_overrides
from launch.engines.raw_overrides import fold as fold_all
from launch.finding import Finding

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def job(*overrides: str, **fields: str) -> Job:
    given = [f"{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return load_job("grpo", None, [f"overrides={json.dumps(overrides)}", *given])


def fold(given: Job) -> Job:
    """All of them fit their fields."""
    folded, problems = fold_all(given)
    assert problems == []
    return folded


def findings(given: Job) -> list[Finding]:
    return [finding for _, finding in check_raw_overrides(given)]


def errors(*overrides: str, **fields: str) -> list[Finding]:
    return [finding for finding in findings(job(*overrides, **fields)) if finding.severity == "error"]


def test_a_job_without_raw_overrides_stays():
    plain = job()
    assert fold(plain) is plain


def test_a_raw_override_becomes_its_field_and_the_last_one_counts():
    folded = fold(
        job(
            f"{ROLLOUT}.n=4",
            f"++{ROLLOUT}.n=6",
            "data.train_files=/a b.parquet",
            "data.val_files=[/x,/y]",
            "trainer.logger=wandb",
            "actor_rollout_ref.model.path='/m,o=d{e}l'",
            "trainer.total_training_steps=null",
            f"{ACTOR}.optim.lr=1e-5",
            "trainer.resume_mode=disable",
            actor__lr="3.0e-6",
        )
    )
    assert folded.rollout.n == 6
    assert (folded.data.train, folded.data.val) == (["/a b.parquet"], ["/x", "/y"])
    assert folded.logging.loggers == ["wandb"]
    assert folded.model.path == "/m,o=d{e}l"
    assert folded.algorithm.total_steps is None
    assert folded.actor.lr == 1e-5
    assert folded.overrides == ["trainer.resume_mode=disable"]
    assert folded.rollout.model_fields_set == {"n"}
    assert "tensor_parallel" not in folded.actor.model_fields_set


def test_every_marked_field_folds():
    """No key that the job model knows can go past the rules."""
    defaults = Job()
    for place, key in marked_fields():
        value: object = defaults
        for name in place.split("."):
            value = getattr(value, name)
        text = json.dumps(value) if isinstance(value, list) else str(value if value is not None else "null")
        folded = fold(job(f"{key}={text}"))
        assert folded.overrides == [], key
        section, name = place.split(".")
        assert name in getattr(folded, section).model_fields_set


def test_the_rules_see_a_folded_value():
    """C04: a rollout tensor parallel size that does not divide the pool."""
    given = job(f"{ROLLOUT}.tensor_model_parallel_size=3")
    found = check_job(fold(given), Path("/nonexistent"), rehearse=False, sample_data=False)
    assert "rollout-tp" in {finding.id for finding in found}
    assert findings(given) == []


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (f"{ROLLOUT}.n=many", "is the field rollout.n: must be a whole number"),
        (f"{ROLLOUT}.n=true", "is the field rollout.n"),
        (f"{ROLLOUT}.n=0", "is the field rollout.n"),
        (f"{ROLLOUT}.name=trtllm", "is the field rollout.engine"),
        ("data.train_batch_size=1.5", "is the field data.train_batch_size"),
        ("data.train_batch_size=[1]", "is the field data.train_batch_size"),
        ("data.shuffle=yes", "is the field data.shuffle"),
        ("actor_rollout_ref.model.path=", "is the field model.path"),
        ("actor_rollout_ref.model.path=true", "is the field model.path"),
        ("trainer.logger=[console,mlflow]", "is the field logging.loggers"),
        ("data.train_files=[]", "is the field data.train"),
    ],
)
def test_a_value_that_the_field_does_not_take(override: str, told: str):
    folded, problems = fold_all(job(override, "trainer.total_epochs=1.5", "data.seed=3"))
    lines = {text: finding.message for text, finding in problems}
    assert set(lines) == {override, "trainer.total_epochs=1.5"}
    assert lines[override].startswith(f"overrides: {override!r} {told}")
    assert all(finding.remedy for _, finding in problems)
    assert folded.data.seed == 3  # the others fold all the same
    assert set(folded.overrides) == set(lines)


def test_offload_switches_become_items_of_the_list():
    megatron = fold(job(f"{ACTOR}.megatron.param_offload=true", f"{ACTOR}.megatron.optimizer_offload=false"))
    assert megatron.actor.offload == ["param"]
    fsdp = fold(job(f"{ACTOR}.fsdp_config.param_offload=true", actor__strategy="fsdp2"))
    assert fsdp.actor.offload == ["optimizer", "param"]
    both = fold(job(f"{ACTOR}.fsdp_config.param_offload=true", f"{ACTOR}.strategy=fsdp2"))
    assert (both.actor.offload, both.overrides) == (["optimizer", "param"], [])


def test_dynamic_sampling_is_seen():
    """C22: groups that are filtered without end must be found, however they are asked for."""
    assert fold(job("algorithm.filter_groups.enable=true")).algorithm.filter_groups.enable


@pytest.mark.parametrize(
    ("verl", "section"), [("0.6.1", "reward_model"), ("0.8.0", "reward"), ("0.9.1", "reward")]
)
def test_the_overlong_buffer_has_its_place_in_each_version(verl: str, section: str):
    given = job(f"+{section}.reward_kwargs.overlong_buffer_cfg.len=64", engine__verl=verl)
    assert fold(given).algorithm.overlong_buffer.length == 64


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("trainer.nnodes=2", "cluster.nodes"),
        ("+trainer.n_gpus_per_node=8", "actor.gpus_per_node"),
        ("rollout.nnodes=1", "rollout.nodes"),
        ("++rollout.n_gpus_per_node=1", "rollout.gpus_per_node"),
        ("~rollout.n_gpus_per_node", "rollout.gpus_per_node"),
        ("actor_rollout_ref.hybrid_engine=true", "engine.mode"),
        ("hydra.run.dir=/tmp", "checkpoint.dir"),
        ("hydra.searchpath=[file:///x]", "drop it; the launcher"),
        ("trainer.default_local_dir=/x", "checkpoint.dir"),
        ("custom_reward_function.path=/x.py", "reward.function"),
        ("reward.custom_reward_function.name=f", "reward.function_name"),
        ("reward.custom_reward_function={path: /x.py}", "reward.function"),
        ("trainer={nnodes: 2}", "cluster.nodes"),
        ("trainer.device=cpu", "finds the GPUs"),
        ("ray_kwargs.ray_init.num_cpus=16", "cluster.cpus_per_node"),
        ("+ray_kwargs.ray_init.num_gpus=8", "cluster.gpus_per_node"),
        ("+ray_kwargs.ray_init.address=auto", "the launcher starts Ray"),
        ("reward.reward_model.enable=true", "reward.kind=server"),
        ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4", "actor.tensor_parallel"),
        ("critic.megatron.pipeline_model_parallel_size=1", "actor.pipeline_parallel"),
        ("critic.strategy=fsdp", "actor.strategy"),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", "actor.context_parallel"),
        (f"{ROLLOUT}.response_length=10", "data.max_response_length"),
        ("critic.ppo_mini_batch_size=8", "actor.mini_batch_size"),
        (f"+{ACTOR}.megatron.override_transformer_config.fp8=e4m3", "actor.fp8"),
        (f"+{ACTOR}.megatron.override_transformer_config.fp8_recipe=delayed", "actor.fp8"),
        (f"+{ACTOR}.megatron.override_transformer_config={{fp8: e4m3}}", "actor.fp8"),
        (f"{ACTOR}.fsdp_config.param_offload=true", "actor.offload"),
        ("critic.fsdp.optimizer_offload=true", "critic.offload"),
        (f"+{ROLLOUT}.quantization=fp8", "rollout.fp8"),
        (f"{ACTOR}.ppo_micro_batch_size=8", "actor.micro_batch_size_per_gpu"),
        ("data.seed=${data.max_prompt_length}", "data.seed"),
        ("data.train_files=${oc.env:HOME}/a.parquet", "data.train"),
        (f"~{ACTOR}.optim.lr", "actor.lr"),
        (f"+{ROLLOUT}.n=2", "rollout.n"),
        ("data={train_batch_size: 3}", "data.train_batch_size"),
    ],
)
def test_what_the_launcher_plans_cannot_be_changed_raw(override: str, instead: str):
    """A03, C09, C23: each is refused and names the field of the job."""
    (found,) = errors(override)
    assert found.id == "plan-override"
    assert override in found.message
    assert instead in found.remedy
    assert fold(job(override)).overrides == [override]


@pytest.mark.parametrize(
    "override",
    [
        "ray_kwargs.ray_init.num_cpus=null",
        "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2",
        "critic.strategy=megatron",
        f"{ROLLOUT}.response_length=4096",
        "+custom_reward_function.reward_kwargs.url=http://x",
        "+ray_kwargs.ray_init.runtime_env.env_vars.A=b",
        f"{ACTOR}.loss_agg_mode=token-mean",
        "trainer.resume_mode=disable",
    ],
)
def test_what_agrees_with_the_plan_passes(override: str):
    assert findings(job(override)) == []


def test_sweeps():
    assert [finding.id for finding in errors("trainer.save_freq=1,2")] == ["override"]
    assert fold(job("trainer.save_freq=1,2")).overrides == ["trainer.save_freq=1,2"]


def test_the_same_key_twice():
    found = findings(job("trainer.save_freq=5", "trainer.save_freq=6", "a.b=1", "a.b=1"))
    assert [(finding.id, finding.severity) for finding in found] == [("override-twice", "warning")]
    assert "'trainer.save_freq=5' and 'trainer.save_freq=6'" in found[0].message


def test_the_v1_trainer_that_goes_on_after_an_exception():
    """Its sync mode logs what the reward function raises (verl 0.9.1)."""
    assert [one.id for one in errors("trainer.use_v1=true", engine__mode="sync")] == ["silent-reward"]
    assert errors("trainer.use_v1=false", engine__mode="sync") == []
    assert errors("trainer.use_v1=true", engine__mode="sync", algorithm__filter_groups__enable="true") == []
    dynamic = errors("trainer.use_v1=false", engine__mode="sync", algorithm__filter_groups__enable="true")
    assert [one.id for one in dynamic] == ["plan-override"]


@pytest.mark.parametrize(
    "override",
    [
        "trainer.project_name='" + "a" * 1_000_000 + "'",
        "trainer.project_name=" + "[" * 3000,
        "trainer.project_name='open",
        "trainer.project_name=日本語",
        "",
        "=",
        "~",
    ],
    ids=range(7),
)
def test_what_is_no_override_is_left_to_others(override: str):
    given = job(override)
    assert fold(given).overrides == [override]
    assert findings(given) == []


@pytest.mark.parametrize(("value", "on"), [("fp8", True), ("null", False)])
def test_quantization_is_the_field_fp8(value: str, on: bool):
    folded = fold(job(f"{ROLLOUT}.quantization={value}"))
    assert (folded.rollout.fp8, folded.overrides) == (on, [])


def test_another_quantization_stays():
    assert fold(job(f"{ROLLOUT}.quantization=torchao")).overrides == [f"{ROLLOUT}.quantization=torchao"]


def test_the_critics_micro_batch_is_a_field():
    assert fold(job("critic.ppo_micro_batch_size_per_gpu=3")).critic.micro_batch_size_per_gpu == 3


def test_text_keeps_its_digits_and_other_fields_get_plain_numbers():
    folded = fold(job("trainer.experiment_name=1.50", "data.seed=3", f"{ACTOR}.optim.lr=1e-5"))
    assert folded.logging.experiment == "1.50"
    assert [type(one) for one in (folded.data.seed, folded.actor.lr)] == [int, float]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [({}, ["fp8-padding"]), ({"actor__fp8": "null"}, []), ({"actor__strategy": "fsdp2"}, [])],
)
def test_fp8_needs_sequences_without_padding(fields: dict[str, str], ids: list[str]):
    """verl 0.9.1 models/mcore/model_forward.py: fp8 is not supported for bshd format yet."""
    found = errors("actor_rollout_ref.model.use_remove_padding=false", **fields)
    assert [one.id for one in found] == ids


def test_a_secret_in_an_override_is_not_shown():
    token = "https://me:pass-word-" + "x" * 60 + "@host/a"
    for override in (f"trainer.nnodes='{token}'", f"{ROLLOUT}.n='{token}'", f"trainer.save_freq='{token}',2"):
        given = job(override)
        told = [*fold_all(given).problems, *check_raw_overrides(given)]
        assert told
        assert not any("pass-word" in finding.line() for _, finding in told)
