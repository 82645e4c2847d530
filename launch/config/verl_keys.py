"""verl's keys that a field of the job stands for, and those that the launcher plans.

For raw overrides, and for a key of verl that stands in a job file by mistake.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from launch.config.job import Job

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_TRANSFORMER = f"{_ACTOR}.megatron.override_transformer_config"

# Top-level sections of verl's configuration (verl/trainer/config, 0.6.1 to 0.9.1).
VERL_SECTIONS = (
    "actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "data", "global_profiler", "hydra",
    "ray_kwargs", "reward", "reward_model", "rollout", "sandbox_fusion", "trainer", "transfer_queue",
)  # fmt: skip

# Fields that are more than their key to the launcher (a path, a part of a list) and so carry no mark.
ALSO_FIELDS = {
    "actor_rollout_ref.model.path": "model.path",
    "critic.model.path": "critic.path",
    "critic.ppo_micro_batch_size_per_gpu": "critic.micro_batch_size_per_gpu",
    "data.train_files": "data.train",
    "data.val_files": "data.val",
    "trainer.experiment_name": "logging.experiment",
    **{f"algorithm.filter_groups.{name}": f"algorithm.filter_groups.{name}" for name in ("enable", "metric")},
}
# Keys of verl with a value that stands for a field being true.
QUANTIZATION = {f"{_ROLLOUT}.quantization": ("rollout.fp8", "fp8")}

# Keys that the launcher plans, and what to set instead. A name that ends in a dot is a whole section.
PLANNED = {
    "trainer.nnodes": "cluster.nodes (in one_step_off mode the rollout pool takes rollout.nodes of them)",
    "trainer.n_gpus_per_node": "actor.gpus_per_node, or cluster.gpus_per_node",
    "rollout.nnodes": "rollout.nodes",
    "rollout.n_gpus_per_node": "rollout.gpus_per_node",
    f"{_ROLLOUT}.nnodes": "rollout.nodes",
    f"{_ROLLOUT}.n_gpus_per_node": "rollout.gpus_per_node",
    "actor_rollout_ref.hybrid_engine": "engine.mode",
    "trainer.v1.trainer_mode": "engine.mode",
    "trainer.device": "nothing: verl finds the GPUs by itself",
    "trainer.default_local_dir": "checkpoint.dir",
    "hydra.run.": "checkpoint.dir; the run directory is below it",
    "hydra.searchpath": "nothing: the launcher names the configuration of verl",
    "hydra.sweep.": "nothing: a job is one run",
    "hydra.mode": "nothing: a job is one run",
    "custom_reward_function.path": "reward.kind=function and reward.function",
    "custom_reward_function.name": "reward.function_name",
    "reward.custom_reward_function.path": "reward.kind=function and reward.function",
    "reward.custom_reward_function.name": "reward.function_name",
    "reward_model.enable": "reward.kind=server; verl's own reward model would take GPUs of the plan",
    "reward.reward_model.enable": "reward.kind=server; verl's own reward model would take GPUs of the plan",
    f"{_ACTOR}.ppo_micro_batch_size": "actor.micro_batch_size_per_gpu; verl refuses both",
    "critic.ppo_micro_batch_size": "critic.micro_batch_size_per_gpu; verl refuses both",
    "critic.ppo_mini_batch_size": "actor.mini_batch_size, which is the critic's, too",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor.micro_batch_size_per_gpu; verl refuses both",
    f"{_ROLLOUT}.log_prob_micro_batch_size": "actor.micro_batch_size_per_gpu; verl refuses both",
    f"{_TRANSFORMER}.fp8": "actor.fp8",
    f"{_TRANSFORMER}.fp8_recipe": "actor.fp8",
}


def marked_fields(section: type[BaseModel] = Job, place: str = "") -> Iterator[tuple[str, str]]:
    """(place of the field in a job, e.g. "rollout.n"; verl's key) of every marked field."""
    for name, field in section.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "verl" in extra:
            yield f"{place}{name}", str(extra["verl"])
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from marked_fields(field.annotation, f"{place}{name}.")


def instead_of(key: str) -> str | None:
    """What to set in a job for verl's `key`; None where no field stands for it."""
    fields = {marked: place for place, marked in marked_fields()} | ALSO_FIELDS
    fields |= {name: place for name, (place, _) in QUANTIZATION.items()}
    planned = PLANNED.get(key)
    if planned is not None and not planned.startswith("nothing: "):
        return planned
    return fields.get(key)
