"""The trainer's command line: entry module, configuration, and the overrides that the versions share.

Keys were read off the configuration of the wheels (verl/trainer/config, 0.6.1 and 0.9.1); the tests compose
every command with the installed version's own configuration.
"""

from dataclasses import dataclass
from pathlib import Path

from launch.config import Job
from launch.engines import versions
from launch.engines.hydra_text import Resolved, Value, override
from launch.engines.inputs import Inputs, inputs_of
from launch.layout import Layout, plan_layout
from launch.rehearsal.overrides import cpu_overrides


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


def _data(job: Job, inputs: Inputs) -> dict[str, Value]:
    return {
        "data.train_files": inputs.train_files,
        "data.val_files": inputs.val_files,
        "data.train_batch_size": job.data.train_batch_size,
        "data.max_prompt_length": job.data.max_prompt_length,
        "data.max_response_length": job.data.max_response_length,
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "data.return_raw_chat": True,
    }


def _algorithm(job: Job) -> dict[str, Value]:
    actor = "actor_rollout_ref.actor"
    return {
        "algorithm.adv_estimator": job.algorithm.estimator,
        "algorithm.use_kl_in_reward": False,
        f"{actor}.use_kl_loss": job.algorithm.use_kl_loss,
        f"{actor}.kl_loss_coef": job.algorithm.kl_loss_coef,
        f"{actor}.kl_loss_type": job.algorithm.kl_loss_type,
        f"{actor}.entropy_coeff": job.algorithm.entropy_coeff,
    }


def _actor(job: Job, inputs: Inputs) -> dict[str, Value]:
    actor = "actor_rollout_ref.actor"
    micro = job.actor.micro_batch_size_per_gpu
    return {
        "actor_rollout_ref.model.path": inputs.policy,
        f"{actor}.strategy": job.actor.strategy,
        f"{actor}.optim.lr": job.actor.lr,
        f"{actor}.ppo_mini_batch_size": job.actor.mini_batch_size,
        f"{actor}.ppo_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
    }


def _rehearsed_checkpoint(job: Job, inputs: Inputs) -> dict[str, Value]:
    """Start from and save mcore's own format, so that the rehearsal goes through the merge step for real."""
    if job.actor.strategy != "megatron":
        return {}
    return {
        f"actor_rollout_ref.{role}.megatron.{key}": value
        for role in (("actor", "ref") if job.algorithm.use_kl_loss else ("actor",))
        for key, value in (
            ("use_dist_checkpointing", True),
            ("dist_checkpointing_path", inputs.policy_mcore),
        )
    }


def _rollout(job: Job) -> dict[str, Value]:
    rollout = "actor_rollout_ref.rollout"
    values: dict[str, Value] = {
        f"{rollout}.name": job.rollout.engine,
        f"{rollout}.mode": "async",
        f"{rollout}.n": job.rollout.n,
        f"{rollout}.tensor_model_parallel_size": job.rollout.tensor_parallel,
        f"{rollout}.gpu_memory_utilization": job.rollout.gpu_memory_utilization,
        f"{rollout}.temperature": job.rollout.temperature,
        f"{rollout}.top_p": job.rollout.top_p,
    }
    if job.rollout.fp8:
        values[f"{rollout}.quantization"] = "fp8"
    return values


def _trainer(job: Job, layout: Layout, inputs: Inputs) -> dict[str, Value]:
    return {
        "trainer.nnodes": layout.train_nodes,
        "trainer.n_gpus_per_node": layout.train_gpus,
        "trainer.logger": list(job.logging.loggers),
        "trainer.project_name": job.logging.project,
        "trainer.experiment_name": job.logging.experiment or job.name,
        "trainer.default_local_dir": inputs.checkpoints,
        # Hydra would make ./outputs/DATE/TIME in the run directory.
        "hydra.run.dir": Resolved("${oc.env:RUN_DIR}/hydra"),
        "trainer.resume_mode": "auto",
        "trainer.save_freq": job.checkpoint.every,
        "trainer.test_freq": job.algorithm.test_every,
        "trainer.val_before_train": False,
        "trainer.total_epochs": job.algorithm.epochs,
        "trainer.total_training_steps": job.algorithm.total_steps,
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
        **_algorithm(job),
        **_data(job, inputs),
        **_actor(job, inputs),
        **version.parallel(job),
        **_rollout(job),
        **version.pools(job, layout),
        **version.reward(inputs),
        **_trainer(job, layout, inputs),
    }
    if rehearse:
        values |= _rehearsed_checkpoint(job, inputs)
    lines = [*version.preamble(job), *(override(key, value) for key, value in values.items())]
    if rehearse:
        one_step_off = job.engine.mode == "one_step_off"
        lines = _merged(
            [
                *lines,
                *cpu_overrides(
                    job.engine.verl, job.actor.strategy, job.rehearsal.rollout, one_step_off=one_step_off
                ),
            ]
        )
    module, config_name = version.entry(job)
    return TrainerCommand(module, config_name, (*lines, *job.overrides))
