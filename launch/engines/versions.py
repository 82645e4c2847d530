"""What differs between the versions of verl: entry point, pools, and where keys live."""

from collections.abc import Callable
from dataclasses import dataclass

from launch.config import Job
from launch.engines.hydra_text import Value
from launch.engines.inputs import Inputs
from launch.layout import Layout

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Version:
    """One version of verl, as functions of the job."""

    entry: Callable[[Job], tuple[str, str]]
    preamble: Callable[[Job], list[str]]
    pools: Callable[[Job, Layout], dict[str, Value]]
    parallel: Callable[[Job], dict[str, Value]]
    reward: Callable[[Inputs], dict[str, Value]]


def _megatron_sizes(job: Job, role: str) -> dict[str, Value]:
    return {
        f"{role}.megatron.tensor_model_parallel_size": job.actor.tensor_parallel,
        f"{role}.megatron.pipeline_model_parallel_size": job.actor.pipeline_parallel,
        f"{role}.megatron.context_parallel_size": job.actor.context_parallel,
        f"{role}.megatron.expert_model_parallel_size": job.actor.expert_parallel,
    }


def _offload(job: Job) -> dict[str, Value]:
    section = "megatron" if job.actor.strategy == "megatron" else "fsdp_config"
    return {f"{_ACTOR}.{section}.{kind}_offload": kind in job.actor.offload for kind in ("param", "optimizer")}


def _fp8(job: Job) -> dict[str, Value]:
    # verl docs/low_precision/fp8.md (0.9): the recipe in the model and in the optimizer.
    if job.actor.fp8 is None:
        return {}
    return {
        f"+{_ACTOR}.megatron.override_transformer_config.fp8": "e4m3",
        f"+{_ACTOR}.megatron.override_transformer_config.fp8_recipe": job.actor.fp8,
        f"+{_ACTOR}.optim.override_optimizer_config.fp8_recipe": job.actor.fp8,
    }


def _parallel_091(job: Job) -> dict[str, Value]:
    if job.actor.strategy == "fsdp2":
        return {"critic.strategy": "fsdp2", **_offload(job)}
    # The reference model takes its sizes from the actor (0.9.1, config/ref/megatron_ref.yaml).
    return {**_megatron_sizes(job, _ACTOR), **_offload(job), **_fp8(job)}


def _parallel_061(job: Job) -> dict[str, Value]:
    if job.actor.strategy == "fsdp2":
        return {"critic.strategy": "fsdp2", **_offload(job)}
    return {**_megatron_sizes(job, _ACTOR), **_megatron_sizes(job, _REF), **_offload(job), **_fp8(job)}


def _entry_091(job: Job) -> tuple[str, str]:
    megatron = job.actor.strategy == "megatron"
    if job.engine.mode == "one_step_off":
        config = "one_step_off_ppo_megatron_trainer" if megatron else "one_step_off_ppo_trainer"
        return "verl.experimental.one_step_off_policy.main_ppo", config
    return "verl.trainer.main_ppo", "ppo_megatron_trainer" if megatron else "ppo_trainer"


def _entry_061(job: Job) -> tuple[str, str]:
    config = "ppo_megatron_trainer" if job.actor.strategy == "megatron" else "ppo_trainer"
    return "verl.trainer.main_ppo", config


def _preamble_091(job: Job) -> list[str]:
    # Its own searchpath is relative to the current folder and breaks with an installed verl.
    return ["hydra.searchpath=[pkg://verl.trainer.config]"] if job.engine.mode == "one_step_off" else []


def _pools_091(job: Job, layout: Layout) -> dict[str, Value]:
    if job.engine.mode == "sync":
        return {}
    return {
        "actor_rollout_ref.hybrid_engine": False,
        "rollout.nnodes": layout.rollout_nodes,
        "rollout.n_gpus_per_node": layout.rollout_gpus,
    }


def _reward_091(inputs: Inputs) -> dict[str, Value]:
    # The top-level custom_reward_function of older scripts composes and is ignored here.
    return {
        "reward.custom_reward_function.path": inputs.reward_function,
        "reward.custom_reward_function.name": inputs.reward_function_name,
    }


def _reward_061(inputs: Inputs) -> dict[str, Value]:
    return {
        "custom_reward_function.path": inputs.reward_function,
        "custom_reward_function.name": inputs.reward_function_name,
    }


VERSIONS: dict[str, Version] = {
    "0.9.1": Version(_entry_091, _preamble_091, _pools_091, _parallel_091, _reward_091),
    "0.6.1": Version(_entry_061, lambda job: [], lambda job, layout: {}, _parallel_061, _reward_061),
}
