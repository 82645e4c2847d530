"""What differs between the versions of verl: entry point, pools, and where keys live."""

from collections.abc import Callable
from dataclasses import dataclass

from launch.config import Job
from launch.engines.fields import marked_values
from launch.engines.hydra_text import Value
from launch.engines.inputs import Inputs
from launch.sizing.layout import Layout

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Version:
    """One version of verl, as functions of the job."""

    entry: Callable[[Job], tuple[str, str]]
    preamble: Callable[[Job], list[str]]
    values: Callable[[Job, Layout, Inputs], dict[str, Value]]


def _megatron_sizes(job: Job, role: str) -> dict[str, Value]:
    """The actor's parallel sizes for another model that trains on its GPUs."""
    sizes = f"{_ACTOR}.megatron."
    return {
        f"{role}.megatron.{key.removeprefix(sizes)}": value
        for key, value in marked_values(job).items()
        if key.startswith(sizes)
    }


def _offload(kinds: list[str], section: str) -> dict[str, Value]:
    return {f"{section}.{kind}_offload": kind in kinds for kind in ("param", "optimizer")}


def _fp8(job: Job) -> dict[str, Value]:
    # verl docs/low_precision/fp8.md (0.9): the recipe in the model and in the optimizer.
    if job.actor.fp8 is None:
        return {}
    return {
        f"+{_ACTOR}.megatron.override_transformer_config.fp8": "e4m3",
        f"+{_ACTOR}.megatron.override_transformer_config.fp8_recipe": job.actor.fp8,
        f"+{_ACTOR}.optim.override_optimizer_config.fp8_recipe": job.actor.fp8,
    }


def _training(job: Job, *, ref_of_its_own: bool, critic_fsdp: str) -> dict[str, Value]:
    """Offload, FP8, sizes of reference and critic; `critic_fsdp` is where the critic's FSDP part is."""
    critic = job.algorithm.estimator == "gae"
    if job.actor.strategy == "fsdp2":
        values = _offload([*job.actor.offload], f"{_ACTOR}.fsdp_config")
        if job.actor.context_parallel > 1:
            values[f"{_ACTOR}.ulysses_sequence_parallel_size"] = job.actor.context_parallel
            # Ulysses wants it (workers/config/actor.py); only 0.6.1 has it off by default (config/model).
            values["actor_rollout_ref.model.use_remove_padding"] = True
        return values | (_offload([*job.critic.offload], critic_fsdp) if critic else {})
    values = _offload([*job.actor.offload], f"{_ACTOR}.megatron") | _fp8(job)
    if ref_of_its_own:
        values |= _megatron_sizes(job, _REF)
    if critic:
        values |= _megatron_sizes(job, "critic") | _offload([*job.critic.offload], "critic.megatron")
    return values


def _overlong(job: Job, section: str) -> dict[str, Value]:
    buffer = job.algorithm.overlong_buffer
    if not buffer.enable:
        return {}
    return {
        f"+{section}.reward_kwargs.overlong_buffer_cfg.enable": True,
        f"+{section}.reward_kwargs.overlong_buffer_cfg.len": buffer.length,
        f"+{section}.reward_kwargs.overlong_buffer_cfg.penalty_factor": buffer.penalty_factor,
        f"+{section}.reward_kwargs.overlong_buffer_cfg.log": buffer.log,
        f"+{section}.reward_kwargs.max_resp_len": job.data.max_response_length,
    }


def _config_name(job: Job, prefix: str = "") -> str:
    return f"{prefix}ppo_megatron_trainer" if job.actor.strategy == "megatron" else f"{prefix}ppo_trainer"


def _entry(job: Job) -> tuple[str, str]:
    if job.engine.mode == "one_step_off":
        return "verl.experimental.one_step_off_policy.main_ppo", _config_name(job, "one_step_off_")
    return "verl.trainer.main_ppo", _config_name(job)


def _preamble(job: Job) -> list[str]:
    # Its own searchpath is relative to the current folder and breaks with an installed verl.
    return ["hydra.searchpath=[pkg://verl.trainer.config]"] if job.engine.mode == "one_step_off" else []


def _values_080(job: Job, layout: Layout, inputs: Inputs) -> dict[str, Value]:
    values: dict[str, Value] = {
        # The top-level custom_reward_function of older scripts composes and is ignored by one_step_off.
        "reward.custom_reward_function.path": inputs.reward_function,
        "reward.custom_reward_function.name": inputs.reward_function_name,
        "reward.reward_manager.name": "dapo" if job.algorithm.overlong_buffer.enable else "naive",
        **_overlong(job, "reward"),
        # The reference model takes its sizes from the actor (0.8.0, config/ref/megatron_ref.yaml).
        **_training(job, ref_of_its_own=False, critic_fsdp="critic.fsdp"),
    }
    if job.engine.mode == "one_step_off":
        values |= {
            "actor_rollout_ref.hybrid_engine": False,
            "rollout.nnodes": layout.rollout_nodes,
            "rollout.n_gpus_per_node": layout.rollout_gpus,
        }
    return values


def _values_091(job: Job, layout: Layout, inputs: Inputs) -> dict[str, Value]:
    values = _values_080(job, layout, inputs)
    if job.engine.mode == "sync":
        groups = job.algorithm.filter_groups
        # The V1 trainer logs an exception of the reward function and goes on, and does not save before the time
        # limit (verl/trainer/ppo/v1); dynamic sampling exists in it alone.
        values["trainer.use_v1"] = groups.enable
        if groups.enable:
            values |= {
                "algorithm.filter_groups.enable": True,
                "algorithm.filter_groups.metric": groups.metric,
            }
    return values


def _values_061(job: Job, layout: Layout, inputs: Inputs) -> dict[str, Value]:
    return {
        "custom_reward_function.path": inputs.reward_function,
        "custom_reward_function.name": inputs.reward_function_name,
        "reward_model.reward_manager": "dapo" if job.algorithm.overlong_buffer.enable else "naive",
        **_overlong(job, "reward_model"),
        **_training(job, ref_of_its_own=True, critic_fsdp="critic.model.fsdp_config"),
    }


VERSIONS: dict[str, Version] = {
    "0.9.1": Version(_entry, _preamble, _values_091),
    "0.8.0": Version(_entry, _preamble, _values_080),
    "0.6.1": Version(_entry, _preamble, _values_061),
}
