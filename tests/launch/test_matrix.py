"""Every template x mode x version x number of nodes is either refused with a reason, or verl itself agrees.

"Agrees" is verl's own validate_config and its conversion of every section to dataclasses, in the environment of
that version (one process a version). FIELD_CASES: C02, C04, C23.
"""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from verl_sources import CHECKOUT, VERSIONS, source

from launch.checks import check_job
from launch.config import Job, load_job
from launch.engines.command import TrainerCommand, trainer_command
from launch.engines.compose import Composed, compose_command
from launch.engines.config_rules import check_command
from launch.rehearsal.tokenizer import build_tokenizer

MODES = ("sync", "one_step_off")
# Qwen3-4B, whose shape the rules on models look at.
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
TEMPLATES = ("grpo", "ppo", "dapo")
CELLS = [
    *((*cell, "megatron") for cell in itertools.product(VERSIONS, TEMPLATES, MODES, (1, 2, 4, 8))),
    *((*cell, "fsdp2") for cell in itertools.product(VERSIONS, ("grpo", "ppo"), MODES, (2,))),
    # The last of three nodes serves rewards alone.
    *((*cell, "megatron-apart") for cell in itertools.product(VERSIONS, TEMPLATES, MODES, (3,))),
    # Sequences split over two GPUs.
    *(
        (version, "grpo", "sync", 2, f"{strategy}-cp2")
        for version in VERSIONS
        for strategy in ("megatron", "fsdp2")
    ),
]
# On top of the default job the rules and verl must say the same: (override, versions that take it).
AGREED = [
    ("+actor_rollout_ref.rollout.repetition_penalty=1.1", ("0.8.0", "0.9.1")),
    ("+actor_rollout_ref.rollout.limit_images=2", VERSIONS),
    ("+actor_rollout_ref.actor.grad_offload=true", ()),
    ("++actor_rollout_ref.actor.megatron.grad_offload=true", ("0.6.1", "0.8.0")),
    ("+actor_rollout_ref.model.no_such=1", ()),
    ("+actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32", VERSIONS),
    ("+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3", VERSIONS),
    ("actor_rollout_ref.actor.loss_agg_mode=token-sum", ("0.9.1",)),
    ("actor_rollout_ref.actor.megatron.dtype=float8", ()),
    ("actor_rollout_ref.rollout.mode=sync", ("0.6.1",)),
    ("actor_rollout_ref.rollout.expert_parallel_size=4", ()),
    ("actor_rollout_ref.rollout.pipeline_model_parallel_size=2", ()),
    ("actor_rollout_ref.actor.ppo_micro_batch_size=4", ()),
    ("trainer.no_such=1", ()),
    ("+trainer.nnodes=3", ()),
    ("data.max_prompt_length=${no.such}", ()),
]


def name_of(cell: tuple[str, str, str, int, str]) -> str:
    return "-".join(map(str, cell))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights: verl reads its configuration and its tokenizer."""
    folder = tmp_path_factory.mktemp("Qwen3-4B")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    build_tokenizer().save_pretrained(folder)
    # transformers 5 names a class that transformers 4, which verl 0.6.1 runs with, does not have.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder


def job_of(cell: tuple[str, str, str, int, str], model: Path) -> Job:
    version, template, mode, nodes, way = cell
    way, apart, _ = way.partition("-apart")
    strategy, _, context = way.partition("-cp")
    fields = [f"engine.verl={version}", f"engine.mode={mode}", f"cluster.nodes={nodes}", f"model.path={model}"]
    fields += [f"actor.strategy={strategy}", *(["actor.fp8=null"] if strategy == "fsdp2" else [])]
    fields += [f"actor.context_parallel={context}"] if context else []
    fields += ["reward.placement=separate"] if apart else []
    return load_job(template, None, fields)


def refusals(job: Job) -> list[str]:
    found = check_job(job, Path("/nonexistent"), rehearse=False, sample_data=False)
    return [finding.line() for finding in found if finding.severity == "error"]


def command_of(job: Job) -> TrainerCommand:
    return trainer_command(job, Path("/project"), rehearse=False, sample_data=False)


def ask_verl(version: str, commands: dict[str, TrainerCommand]) -> dict[str, Any]:
    """verl's verdict on each command, from verl itself."""
    python, first = sys.executable, []
    if version == "0.6.1":
        python = str(CHECKOUT / ".envs" / "verl-0.6.1" / "bin" / "python")
        assert Path(python).exists(), "no environment of verl 0.6.1; run: make env-061"
    elif source(version).origin != "installed":
        first = [str(source(version).root)]
    asked = {name: [one.module, one.config_name, list(one.overrides)] for name, one in commands.items()}
    done = subprocess.run(
        [python, str(Path(__file__).with_name("verl_driver.py")), *first],
        input=json.dumps(asked),
        env={**os.environ, "RUN_DIR": "/run-dir", "CHECKPOINT_DIR": "/checkpoint-dir", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts: dict[str, Any] = json.loads(done.stdout)
    return verdicts


def with_override(version: str, override: str, model: Path) -> TrainerCommand:
    made = command_of(job_of((version, "grpo", "sync", 2, "megatron"), model))
    return TrainerCommand(made.module, made.config_name, (*made.overrides, override))


@pytest.fixture(scope="module")
def verdicts(model: Path) -> dict[str, Any]:
    """Name of a cell, or version and override -> verl's verdict; what is refused here is not asked."""

    def of_version(version: str) -> dict[str, Any]:
        jobs = {name_of(cell): job_of(cell, model) for cell in CELLS if cell[0] == version}
        commands = {name: command_of(job) for name, job in jobs.items() if not refusals(job)}
        commands |= {f"{version} {override}": with_override(version, override, model) for override, _ in AGREED}
        return ask_verl(version, commands)

    with ThreadPoolExecutor() as pool:  # the work is in other processes
        return {name: verdict for found in pool.map(of_version, VERSIONS) for name, verdict in found.items()}


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_refused_with_a_reason_or_accepted_by_verl(cell, model: Path, verdicts: dict[str, Any]):
    version, template, mode, nodes, strategy = cell
    job = job_of(cell, model)
    refused = refusals(job)
    # 0.6.1 has no one_step_off in its wheel, and the one_step_off of the others has no critic.
    reason = None
    if mode == "one_step_off" and version == "0.6.1":
        reason = "error: engine-mode: verl 0.6.1 has no one_step_off"
    elif mode == "one_step_off" and template == "ppo":
        reason = f"error: one-step-off-critic: algorithm.estimator=gae: the one_step_off trainer of verl {version}"
    assert bool(refused) == (reason is not None), refused
    if reason is not None:
        assert any(line.startswith(reason) for line in refused)
        return
    verdict = verdicts[name_of(cell)]
    assert verdict["against"] is None
    pools = verdict["config"]["trainer"], verdict["config"].get("rollout")
    gpus = pools[0]["nnodes"] * pools[0]["n_gpus_per_node"]
    if mode == "one_step_off":
        gpus += pools[1]["nnodes"] * pools[1]["n_gpus_per_node"]
        assert verdict["config"]["actor_rollout_ref"]["hybrid_engine"] is False
    others = job.cluster.gpus_per_node * nodes
    if job.reward.placement == "separate":
        assert gpus == others - job.cluster.gpus_per_node
    assert 0 < gpus <= others - job.reward.gpus
    if nodes == 1 or strategy != "megatron":  # the overrides of the others differ in numbers alone
        assert check_command(command_of(job), source(version)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_composition_here_is_the_one_of_verl(version: str, model: Path, verdicts: dict[str, Any]):
    cell = (version, "grpo", "sync" if version == "0.6.1" else "one_step_off", 4, "megatron")
    composed = compose_command(command_of(job_of(cell, model)), source(version))
    assert isinstance(composed, Composed)
    theirs = verdicts[name_of(cell)]["config"]
    if "rollout" in composed.config:  # the entry module copies its pool (one_step_off_policy/main_ppo.py)
        composed.config["actor_rollout_ref"]["rollout"] |= composed.config["rollout"]
    assert composed.config == theirs


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("override", "takes"), AGREED, ids=[override for override, _ in AGREED])
def test_our_rules_and_verl_say_the_same(
    version: str, override: str, takes: tuple[str, ...], model: Path, verdicts: dict[str, Any]
):
    found = check_command(with_override(version, override, model), source(version))
    ours = not any(finding.severity == "error" for finding in found)
    theirs = verdicts[f"{version} {override}"]["against"] is None
    assert (ours, theirs) == (version in takes, version in takes), (found, verdicts[f"{version} {override}"])
