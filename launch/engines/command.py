"""The trainer's command line: entry module, configuration, and the overrides.

Most overrides are fields of the job that carry their key (`launch.config.base.becomes`); here is what is computed
from several fields, `versions` has what differs between the versions of verl. Keys were read off the configuration
of the wheels (verl/trainer/config, 0.6.1, 0.8.0, 0.9.1), with which the tests compose every command.
"""

from dataclasses import dataclass
from pathlib import Path

from launch.config import Job
from launch.engines import versions
from launch.engines.fields import marked_values
from launch.engines.hydra_text import Resolved, Value, override
from launch.engines.inputs import Inputs, inputs_of
from launch.rehearsal.overrides import cpu_overrides
from launch.sizing.layout import Layout, plan_layout

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class TrainerCommand:
    """`python3 -m module --config-name=config_name overrides...`"""

    module: str
    config_name: str
    overrides: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """Everything behind the Python interpreter."""
        return ["-m", self.module, f"--config-name={self.config_name}", *self.overrides]


def _of_the_job(job: Job) -> dict[str, Value]:
    """Marked fields, without those of parts that this job does not have."""
    absent = [] if job.actor.strategy == "megatron" else [f"{_ACTOR}.megatron."]
    if job.algorithm.estimator != "gae":
        absent += ["critic.", "trainer.critic_warmup"]
    return {key: value for key, value in marked_values(job).items() if not key.startswith(tuple(absent))}


def _data(inputs: Inputs) -> dict[str, Value]:
    return {
        "data.train_files": inputs.train_files,
        "data.val_files": inputs.val_files,
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "data.return_raw_chat": True,
    }


def _models(job: Job, inputs: Inputs) -> dict[str, Value]:
    micro = job.actor.micro_batch_size_per_gpu
    values: dict[str, Value] = {
        "actor_rollout_ref.model.path": inputs.policy,
        f"{_REF}.log_prob_micro_batch_size_per_gpu": micro,
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        f"{_ROLLOUT}.mode": "async",
    }
    if job.rollout.max_model_len is None:
        # verl's null is the model's own limit, and the KV cache of one such sequence may not fit.
        values[f"{_ROLLOUT}.max_model_len"] = job.longest_sequence
    if job.actor.recompute is not None:
        values |= _recompute(job.actor.recompute, megatron=job.actor.strategy == "megatron")
    if job.rollout.fp8:
        values[f"{_ROLLOUT}.quantization"] = "fp8"
    if job.algorithm.estimator == "gae":
        values |= {
            # Without a path of its own verl would look for the one that its own configuration names.
            "critic.model.path": inputs.critic,
            "critic.strategy": job.actor.strategy,
            "critic.ppo_micro_batch_size_per_gpu": job.critic.micro_batch_size_per_gpu or micro,
        }
    elif job.actor.strategy == "fsdp2":
        values["critic.strategy"] = "fsdp2"
    return values


def _recompute(on: bool, *, megatron: bool) -> dict[str, Value]:
    if not megatron:
        return {"actor_rollout_ref.model.enable_gradient_checkpointing": on}
    transformer = f"{_ACTOR}.megatron.override_transformer_config"
    if not on:
        return {f"{transformer}.recompute_granularity": None}
    # megatron-core 0.16 TransformerConfig: `full` needs a method and a number of layers.
    return {
        f"{transformer}.recompute_granularity": "full",
        f"{transformer}.recompute_method": "uniform",
        f"{transformer}.recompute_num_layers": 1,
    }


def _rehearsed_checkpoint(job: Job, inputs: Inputs) -> dict[str, Value]:
    """Start from and save mcore's own format, so that the rehearsal goes through the merge step for real.

    verl 0.6.1 loads the critic so too: its own loader of Hugging Face weights needs CUDA. Newer ones use mbridge.
    """
    if job.actor.strategy != "megatron":
        return {}
    roles = [_ACTOR, _REF] if job.needs_reference else [_ACTOR]
    if job.algorithm.estimator == "gae" and job.engine.verl == "0.6.1":
        roles.append("critic")
    return {
        f"{role}.megatron.{key}": value
        for role in roles
        for key, value in (
            ("use_dist_checkpointing", True),
            ("dist_checkpointing_path", inputs.policy_mcore),
        )
    }


def _trainer(job: Job, layout: Layout, inputs: Inputs) -> dict[str, Value]:
    return {
        "trainer.nnodes": layout.train_nodes,
        "trainer.n_gpus_per_node": layout.train_gpus,
        "trainer.experiment_name": job.logging.experiment or job.name,
        "trainer.default_local_dir": inputs.checkpoints,
        # Hydra would make ./outputs/DATE/TIME in the run directory.
        "hydra.run.dir": Resolved("${oc.env:RUN_DIR}/hydra"),
        "trainer.resume_mode": "auto",
        "trainer.val_before_train": False,
    }


def _merged(overrides: list[str]) -> list[str]:
    """Each key once, with its last value, at the place of its first."""
    return list({text.partition("=")[0]: text for text in overrides}.values())


def trainer_command(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> TrainerCommand:
    """The command that trains `job`; relative paths of the job start from `project`.

    For a rehearsal the CPU backend's overrides follow the job's; raw `job.overrides` come last, as the user's
    last word.
    """
    layout = plan_layout(job)
    inputs = inputs_of(job, project, rehearse=rehearse, sample_data=sample_data)
    version = versions.VERSIONS[job.engine.verl]
    values: dict[str, Value] = {
        **_of_the_job(job),
        **_data(inputs),
        **_models(job, inputs),
        **version.values(job, layout, inputs),
        **_trainer(job, layout, inputs),
    }
    if rehearse:
        values |= _rehearsed_checkpoint(job, inputs)
    lines = [*version.preamble(job), *(override(key, value) for key, value in sorted(values.items()))]
    if rehearse:
        one_step_off = job.engine.mode == "one_step_off"
        lines = _merged(
            [
                *lines,
                *cpu_overrides(
                    job.engine.verl,
                    job.actor.strategy,
                    job.rehearsal.rollout,
                    one_step_off=one_step_off,
                    critic=job.algorithm.estimator == "gae",
                ),
            ]
        )
    module, config_name = version.entry(job)
    return TrainerCommand(module, config_name, (*lines, *job.overrides))
