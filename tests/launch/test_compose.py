"""A trainer command is composed with the real configuration of each verl, and everything wrong is told.

FIELD_CASES: C01 (values that Hydra reads in another way), C02 (keys that a version lacks), C03 (keys that do
nothing), C09 (the reward function's place), C12 (a reward that fails in silence), C23 (one_step_off).
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl_sources import VERSIONS, command, job, source

from launch.engines import hydra_text, key_rules
from launch.engines.command import TrainerCommand
from launch.engines.compose import IN_THE_JOB, Composed, compose_command
from launch.engines.config_rules import check_command
from launch.engines.dataclass_types import ClassReader
from launch.engines.inert_keys import INERT
from launch.engines.post_init import refusals
from launch.finding import Finding

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def findings(*overrides: str, verl: str = "0.9.1", mode: str | None = None) -> list[Finding]:
    wanted = job(verl, *([f"engine.mode={mode}"] if mode else []))
    return check_command(command(wanted, *overrides), source(verl))


def _mention(key: str, line: str) -> re.Match[str] | None:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", line)


def told(*overrides: str, verl: str = "0.9.1", mode: str | None = None) -> dict[str, str]:
    """The override that each finding is about -> "id: message; remedy"."""
    lines = [finding.line() for finding in findings(*overrides, verl=verl, mode=mode)]
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    found: dict[str, str] = {}
    for line in lines:
        about = [(match.start(), -len(key), key) for key in keys if (match := _mention(key, line))]
        found[min(about)[2] if about else line] = line
    return found


@pytest.mark.parametrize("verl", VERSIONS)
@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
def test_our_own_command_has_nothing_wrong_and_is_what_hydra_composes(verl: str, strategy: str):
    """The overrides are applied here one at a time; the result must be the one of Hydra itself."""
    fp8 = ["actor.fp8=null"] if strategy == "fsdp2" else []
    made = command(
        job(verl, f"actor.strategy={strategy}", *fp8), "+trainer.new={a: [1, x]}", "~data.val_max_samples"
    )
    composed = compose_command(made, source(verl))
    assert isinstance(composed, Composed)
    assert (composed.findings, composed.unknown) == ([], [])
    folder = source(verl).root.joinpath(*made.module.split(".")).parent / "config"
    overrides = [
        f"hydra.searchpath=['file://{source(verl).root}/verl/trainer/config']"
        if override.startswith("hydra.searchpath")
        else override
        for override in made.overrides
    ]
    with pytest.MonkeyPatch.context() as patch, initialize_config_dir(str(folder), version_base=None):
        for name, value in IN_THE_JOB.items():
            patch.setenv(name, value)
        theirs = OmegaConf.to_container(compose(made.config_name, overrides), resolve=True)
    assert composed.config == theirs


def test_a_section_that_is_taken_from_another_one():
    key = "actor_rollout_ref.ref.megatron.override_transformer_config.recompute_granularity"
    (found,) = findings(f"{key}=full", verl="0.6.1")
    assert f"takes {key} from another section" in found.message
    assert found.remedy.startswith(f"set {ACTOR}.megatron.override_transformer_config.recompute_granularity")


def test_unknown_keys_name_what_may_be_meant():
    """C02: removed keys, misspelt keys, keys that belong elsewhere; all of them at once."""
    found = told(
        "trainer.nodes=2",
        f"{ACTOR}.tensor_model_parallel_size=2",
        f"{ACTOR}.megatron.grad_offload=true",
        "trainer.project_name.x=1",
        "~trainer.no_such",
        f"{ROLLOUT}={{n: 4, nn: 5}}",
        "k" * 5000 + "=1",
    )
    assert "verl 0.9.1 has no key trainer.nodes; did you mean trainer.nnodes?" in found["trainer.nodes"]
    assert f"did you mean {ACTOR}.megatron.tensor" in found[f"{ACTOR}.tensor_model_parallel_size"]
    assert "did you mean" in found[f"{ACTOR}.megatron.grad_offload"]
    assert "unknown-key" in found["trainer.project_name.x"]
    assert "unknown-key" in found["trainer.no_such"]
    assert f"no key {ROLLOUT}.nn;" in found[ROLLOUT]
    assert len(found) == 7
    assert all(len(line) < 600 for line in found.values())


def test_a_plus_is_proposed_only_where_the_version_reads_the_key():
    key = f"{ROLLOUT}.repetition_penalty"
    assert f"write +{key}=" in told(f"{key}=1.1")[key]
    assert "write +" not in told(f"{key}=1.1", verl="0.6.1")[key]


@pytest.mark.parametrize("verl", VERSIONS)
def test_keys_added_with_a_plus(verl: str):
    """C02, C09: what the version reads, and dicts that are handed on whole, pass; others would end the job."""
    reward = "" if verl == "0.6.1" else "reward."
    assert (
        findings(
            f"+{ACTOR}.megatron.override_transformer_config.moe_router_dtype=fp32",
            f"+{ACTOR}.megatron.override_ddp_config.overlap_grad_reduce=true",
            f"+{ROLLOUT}.engine_kwargs.sglang.attention_backend=fa3",
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            f"+{reward}custom_reward_function.reward_kwargs.url=http://x",
            "+data.apply_chat_template_kwargs.enable_thinking=false",
            "+ray_kwargs.ray_init.runtime_env.env_vars.A=b",
            verl=verl,
        )
        == []
    )
    found = told(
        f"+{ACTOR}.grad_offload=true",
        f"+{ROLLOUT}.no_such=3",
        "+trainer.foo_bar=1",
        "+data.image_patch_sizes=3",
        "+trainer.nnodes=3",
        verl=verl,
    )
    assert "which has no grad_offload" in found[f"{ACTOR}.grad_offload"]
    assert (
        "makes a RolloutConfig of actor_rollout_ref.rollout, which has no no_such" in found[f"{ROLLOUT}.no_such"]
    )
    assert "reads 'foo_bar'" in found["trainer.foo_bar"]
    assert "reads 'image_patch_sizes'" in found["data.image_patch_sizes"]
    assert "drop the +: trainer.nnodes=3" in found["trainer.nnodes"]


@pytest.mark.parametrize("verl", VERSIONS)
def test_types(verl: str):
    """C01: a value of the wrong type passes Hydra and verl's dataclasses, and ends the job once Ray is up."""
    wrong = [
        ("trainer.nnodes=abc", "an integer"),
        ("trainer.total_epochs=1.5", "an integer"),
        (f"{ROLLOUT}.n=many", "int"),
        ("data.train_batch_size=[1]", "an integer"),
        ('trainer.balance_batch="yes"', "true or false"),
        ("data.shuffle=1", "true or false"),
        ("trainer.save_freq=true", "an integer"),
        ("trainer.project_name=1e5", "a text"),
        (f"{ROLLOUT}.gpu_memory_utilization='0.5'", "float"),
        (f"{ROLLOUT}.val_kwargs.temperature=hot", "float"),
        (f"{ACTOR}.clip_ratio=true", "float"),
        (f"{ACTOR}.checkpoint.save_contents=model", "list[str]"),
        (f"{ACTOR}.checkpoint.load_contents=[1]", "list[str]"),
        (f"{ACTOR}.use_kl_loss=null", "bool"),
        ("algorithm.gamma=high", "float"),
        ("data.train_max_samples=", "an integer"),
        ("trainer.critic_warmup={a: 1}", "an integer"),
    ]
    found = told(*(override for override, _ in wrong), verl=verl)
    for override, wanted in wrong:
        key = override.partition("=")[0]
        assert wanted in found[key], override
    assert len(found) == len(wrong)
    assert (
        "trainer.project_name=1e5 is a float, it must be a text; quote it: '1e5'" in found["trainer.project_name"]
    )


@pytest.mark.parametrize("verl", VERSIONS)
def test_values_that_fit(verl: str):
    assert (
        findings(
            "trainer.logger=console",
            "data.train_files=/a.parquet",
            "data.val_files=[/a.parquet,/b.parquet]",
            f"{ACTOR}.clip_ratio=1",
            f"{ROLLOUT}.temperature=1",
            f"{ACTOR}.checkpoint.save_contents=[model,hf_model]",
            "trainer.total_training_steps=null",
            "trainer.total_training_steps=5",
            "trainer.esi_redundant_time=0.5",
            f"{ROLLOUT}.max_model_len=${{data.max_prompt_length}}",
            "data.max_response_length=${data.max_prompt_length}",
            "trainer.experiment_name='日本語, {x}=1'",
            "trainer.project_name=${oc.env:HOME}",
            "trainer.experiment_name=run-${oc.env:SLURM_JOB_ID}",
            "trainer.rollout_data_dir=${oc.env:RUN_DIR}/rollouts",
            verl=verl,
        )
        == []
    )


def leaves(section: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


@pytest.mark.parametrize("verl", VERSIONS)
@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
def test_every_default_of_verl_may_be_given(verl: str, strategy: str, monkeypatch: pytest.MonkeyPatch):
    """No rule is against what verl's own configuration says, and a word for each of its numbers is an error."""
    monkeypatch.setattr(key_rules, "_MOST_UNKNOWN", 1000)
    given = command(job(verl, f"actor.strategy={strategy}", *(["actor.fp8=null"] if strategy == "fsdp2" else [])))
    composed = compose_command(given, source(verl))
    assert isinstance(composed, Composed)
    defaults = {
        key: value
        for key, value in leaves(composed.defaults)
        # The micro batches are null, and verl wants one of them to be set.
        if value != "???" and "-" not in key and not key.endswith(("_target_", "micro_batch_size_per_gpu"))
    }

    def found_with(overrides: list[str]) -> list[Finding]:
        return check_command(replace(given, overrides=(*given.overrides, *overrides)), source(verl))

    found = found_with([hydra_text.override(key, value) for key, value in defaults.items()])
    # Below an interpolation nothing can be set in Hydra, not even the same.
    fixed = tuple({f"{one.message.split()[3]}." for one in found if "from another section" in one.message})
    assert [one.line() for one in found if "from another section" not in one.message] == []
    numbers = [
        key
        for key, value in defaults.items()
        if type(value) in (int, float, bool) and not f"{key}.".startswith(fixed)
    ]
    flagged = [one.message.partition("=")[0] for one in found_with([f"{key}=word" for key in numbers])]
    either = {"algorithm.rollout_correction.rollout_is_threshold"}  # float or str in verl's own annotation
    assert set(numbers) - set(flagged) <= either
    assert len(numbers) > 200


def test_values_that_verl_refuses_by_name():
    found = told(f"{ACTOR}.loss_agg_mode=tokenmean", f"{ACTOR}.megatron.router_replay.mode=R9")
    assert "token-mean, token-sum, seq-mean" in found[f"{ACTOR}.loss_agg_mode"]
    assert "disabled, R2, R3" in found[f"{ACTOR}.megatron.router_replay.mode"]
    # token-sum came with 0.9
    assert (
        "it takes: token-mean, seq"
        in told(f"{ACTOR}.loss_agg_mode=token-sum", verl="0.8.0")[f"{ACTOR}.loss_agg_mode"]
    )


def test_values_that_verl_refuses_together():
    """What the classes of verl assert once Ray is up."""
    found = told(f"{ACTOR}.ppo_micro_batch_size=4", f"{ROLLOUT}.mode=sync")
    assert "RolloutConfig) raises when mode == 'sync'" in found[f"{ROLLOUT}.mode"]
    assert "are refused by verl 0.9.1" in found[f"{ACTOR}.ppo_micro_batch_size"]
    (expert,) = findings(f"{ROLLOUT}.expert_parallel_size=4")
    assert "expert_parallel_size == tensor_model_parallel_size * data_parallel_size" in expert.remedy
    assert findings(f"{ROLLOUT}.mode=sync", verl="0.6.1") == []


def conditions(body: str, **values: object) -> list[str]:
    function = ast.parse(f"def __post_init__(self):\n{textwrap.indent(textwrap.dedent(body), '    ')}").body[0]
    assert isinstance(function, ast.FunctionDef)
    return [one.condition for one in refusals([function], {"LIMIT": ast.Constant(5)}, values)]


def test_only_what_is_known_is_refused():
    nested = """
        if self.a > 1:
            if self.b == 'x' or self.unknown:
                raise ValueError
        elif self.a < 0:
            raise ValueError
    """
    assert conditions(nested, a=2, b="x") == ["self.a > 1 and (self.b == 'x' or self.unknown)"]
    assert conditions(nested, a=2, b="y") == []  # the unknown part decides
    assert conditions(nested, a=-1) == ["self.a < 0"]
    assert conditions(nested) == []
    assert conditions("assert self.a % LIMIT == 0", a=10) == []
    assert conditions("assert self.a % LIMIT == 0", a=11) == ["not self.a % LIMIT == 0"]
    assert conditions("assert self.a % 0 == 0", a=11) == []
    assert conditions("assert self.a > 1", a="text") == []
    assert conditions("assert self.a.b in (1, 2)", a={"b": 3}) == ["not self.a.b in (1, 2)"]
    assert conditions("self.a = 3\nassert self.a > 5", a=1) == []
    assert conditions("object.__setattr__(self, 'a', 3)\nassert self.a > 5", a=1) == []
    assert conditions("if self.z: self.a = 3\nassert self.a > 5", a=1) == []
    assert conditions("assert os.path.exists(self.a)", a="/no") == []
    assert conditions("assert self.a\nassert self.b", a=0, b=0) == ["not self.a"]
    assert conditions("raise NotImplementedError", a=1) == []


def test_interpolations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    monkeypatch.delenv("NOT_SET", raising=False)
    found = told(
        "data.max_prompt_length=${nope.x}",
        "data.seed=${oc.env:NOT_SET}",
        "data.val_max_samples=${data.train_max_samples}",
        "data.train_max_samples=${data.val_max_samples}",
        "trainer.default_hdfs_dir=${trainer}",
        "data.truncation=${no_resolver:1}",
        "data.train_batch_size=${oc.env:MY_TOKEN}",
    )
    assert "does not resolve: Interpolation key 'nope.x' not found" in found["data.max_prompt_length"]
    assert "variable NOT_SET is not set; set container.env.NOT_SET" in found["data.seed"]
    assert "interpolation" in found["data.val_max_samples"]
    assert "interpolation" in found["data.train_max_samples"]
    assert "interpolation" in found["trainer.default_hdfs_dir"]
    assert "no_resolver" in found["data.truncation"]
    assert "${oc.env:MY_TOKEN} is a str" in found["data.train_batch_size"]
    assert "s3cret" not in str(found)


def test_what_no_key_has_a_value_for():
    assert "unset-key" in told(f"{ROLLOUT}.name=???")[f"{ROLLOUT}.name"]


HOSTILE = [
    "trainer.project_name='" + "a" * 1_000_000 + "'",
    "trainer.project_name='" + "é" * 66_000 + "'",
    "trainer.project_name=" + "[" * 5000,
    "trainer.project_name=" + "${" * 300,
    "trainer.project_name=a,b",
    "trainer.project_name=a=b",
    "trainer.project_name=日本語",
    "trainer.project_name='open",
    "trainer",
    "",
    "=",
    "trainer.nnodes=choice(1,2)",
    "trainer.nnodes=range(1,3)",
    "+nothing@here=x",
    "reward.reward_manager.name=[[9]]",
]
# Choices of files that are not there; composing ends with the first.
NO_CHOICE = ["actor@nowhere=dp_actor", "model_engine=[[9]]", "model_engine='../../../../etc/passwd'"]


@pytest.mark.parametrize("overrides", [HOSTILE, *([one] for one in NO_CHOICE)], ids=["texts", *NO_CHOICE])
def test_hostile_text_is_one_short_error_each(overrides: list[str]):
    errors = [finding for finding in findings(*overrides) if finding.severity == "error"]
    assert len(errors) == len(overrides), [finding.line() for finding in errors]
    for finding in errors:
        assert len(finding.line()) < 700
        assert finding.line().isprintable()


def test_hostile_text_that_passes():
    long = "a" * 130_000
    harmless = [
        "trainer.project_name='yes: [no]'",
        "trainer.experiment_name=no",
        f"trainer.rollout_data_dir='/{long}'",
    ]
    assert findings(*harmless, "trainer.validation_data_dir='\\${oc.env:HOME}'") == []


def test_a_configuration_that_contains_itself_ends():
    looping = ["+data.a=${data}", "+data.apply_chat_template_kwargs.b={c: ${data.apply_chat_template_kwargs}}"]
    assert any(finding.id == "interpolation" for finding in findings(*looping))


@pytest.mark.parametrize("verl", VERSIONS)
def test_a_reward_manager_that_hides_failures_is_an_error(verl: str):
    """C12: `prime` and `rate_limited` turn an exception or a timeout into 0.0."""
    key = "reward_model.reward_manager" if verl == "0.6.1" else "reward.reward_manager.name"
    for name in ("prime", "rate_limited"):
        errors = [finding for finding in findings(f"{key}={name}", verl=verl) if finding.severity == "error"]
        assert [finding.id for finding in errors] == ["silent-reward"]
    assert "it has: " in told(f"{key}=mine", verl=verl)[key]
    assert findings(f"{key}=dapo", verl=verl) == []


def test_keys_that_do_nothing():
    """C03, C09: they compose, and the trainer never looks at them."""
    old = ["custom_reward_function.path=/mine.py", "reward_model.reward_manager=dapo", "critic.nccl_timeout=60"]
    for verl, mode in (("0.9.1", "one_step_off"), ("0.9.1", "sync"), ("0.8.0", "one_step_off")):
        found = told(*old, verl=verl, mode=mode)
        assert "set reward.custom_reward_function.path" in found["custom_reward_function.path"]
        assert "set reward.reward_manager.name" in found["reward_model.reward_manager"]
        assert all(line.startswith("warning: inert-key") for line in found.values())
    # 0.8.0 carries the old reward sections over in main_ppo.
    assert set(told(*old, verl="0.8.0", mode="sync")) == {"critic.nccl_timeout"}
    assert told(*old, verl="0.6.1") == {}
    replay = f"{ACTOR}.router_replay.mode"
    assert f"set {ACTOR}.megatron.router_replay.mode" in told(f"{replay}=R2", verl="0.8.0", mode="sync")[replay]
    # A value that is verl's own default says nothing.
    assert findings("critic.nccl_timeout=600") == []


@pytest.mark.parametrize("verl", VERSIONS)
def test_inert_keys_exist_and_are_not_read(verl: str):
    """The list is right for the wheel: keys that it calls unread are read by no code, and all of them exist."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", source(verl).text)
    yaml = "\n".join(file.read_text() for file in (source(verl).root / "verl").rglob("*.yaml"))
    for inert in INERT:
        if verl in inert.versions:
            name = inert.key.rpartition(".")[2]
            assert re.search(rf"^\s*{name}:", yaml, re.MULTILINE) or f"{name}:" in text, inert
            if inert.unread:
                assert not re.search(rf"""(?<!self)\.{name}\b(?!\s*=)|["']{name}["']""", text), inert


def test_the_version_must_have_the_module_and_the_configuration():
    """C23: 0.6.1 has no one_step_off in its wheel."""
    made = command(job("0.9.1"))
    (missing,) = check_command(made, source("0.6.1"))
    assert (missing.id, missing.severity) == ("engine-module", "error")
    (other,) = check_command(TrainerCommand(made.module, "no_such", made.overrides), source("0.9.1"))
    assert other.id == "engine-config"
    assert "one_step_off_ppo_megatron_trainer" in other.remedy


def test_groups_choose_files():
    made = command(job("0.9.1", "engine.mode=sync", "actor.strategy=fsdp2", "actor.fp8=null"))
    dp = TrainerCommand(made.module, "ppo_trainer", made.overrides)
    assert check_command(dp, source("0.9.1")) == []
    (wrong,) = check_command(TrainerCommand(dp.module, dp.config_name, ("model_engine=nope",)), source("0.9.1"))
    assert wrong.id == "compose"
    assert "model_engine/nope" in wrong.message


def test_no_torch_and_the_environment_stays():
    code = (
        "import os, sys; before = dict(os.environ); from verl_sources import *; "
        "from launch.engines.config_rules import check_command; "
        "assert check_command(command(job('0.9.1')), source('0.9.1')) == []; "
        "assert not {'torch', 'verl', 'ray', 'numpy'} & set(sys.modules); "
        "os.environ.pop('LAUNCH_CACHE'); before.pop('LAUNCH_CACHE', None); assert os.environ == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def test_annotations_are_understood(tmp_path: Path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "types.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from typing import Any, Literal, Optional, Union\n"
        "@dataclass\nclass Base:\n    inherited: int = 1\n"
        "@dataclass\nclass Config(Base):\n"
        "    number: int = 1\n    maybe: Optional[float] = None\n    either: int | str = 1\n"
        "    implicit: int = None\n    words: list[str] = field(default_factory=list)\n"
        "    union: Union[bool, list[int]] = True\n    one: Literal['a', 'b'] = 'a'\n"
        "    any: Any = None\n    open: dict[str, Any] = field(default_factory=dict)\n"
        "    nested: Base = field(default_factory=Base)\n    late: 'Optional[int]' = None\n"
        "    def __post_init__(self):\n        words = ['x', 'y']\n"
        "        if self.one not in words:\n            raise ValueError\n"
        "        assert self.either in (1, 2), 'no'\n"
    )
    reader = ClassReader(tmp_path)
    found = reader.read("verl.types.Config")
    assert found is not None
    accepts = {
        "inherited": ([1], [1.5, "1", True, None]),
        "number": ([0, -3], [1.5, "1", True, None, [1]]),
        "maybe": ([None, 1, 1.5], ["1", False]),
        "either": ([1, "a"], [None, [1]]),
        "implicit": ([None, 3], ["a"]),
        "words": ([[], ["a"]], ["a", [1], None]),
        "union": ([True, [1]], [1, ["a"]]),
        "one": (["a"], ["c", None]),
        "any": ([1, None, [1], {}], []),
        "open": ([{}, {"a": 1}], [1, [1]]),
        "nested": ([{}, None], []),
        "late": ([None, 1], ["a"]),
    }
    for name, (good, bad) in accepts.items():
        for value in good:
            assert found.fields[name].accepts(value), (name, value)
        for value in bad:
            assert not found.fields[name].accepts(value), (name, value)
    refused = refusals(found.checks, found.constants, {"one": "a", "either": 3})
    assert [(one.fields, one.allowed) for one in refused] == [(("one",), ("x", "y"))]
    refused = refusals(found.checks, found.constants, {"one": "x", "either": 3})
    assert [(one.fields, one.allowed) for one in refused] == [(("either",), (1, 2))]
    assert refusals(found.checks, found.constants, {"one": "x"}) == []
    assert [name for name, field in found.fields.items() if field.free] == ["any", "open"]
    assert reader.read("verl.types.Nothing") is None
    assert reader.read("no.such.Module") is None
    assert reader.of_field(found.fields["nested"]) is not None
