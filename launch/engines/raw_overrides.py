"""Raw Hydra overrides of a job: what is a field of the job becomes that field, what breaks the plan is refused.

A raw override has the last word, but not behind the back of the rules: one that a field of the job stands for is
moved into the field, so that the plan, the batch arithmetic and the memory estimate see it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from launch.config import Job, JobError
from launch.engines.fields import marked_fields
from launch.engines.wording import MAX_ARGUMENT_BYTES, shown, sweep
from launch.finding import Finding, error, warning

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
# Fields that are more than their key to the launcher (a path, a part of a list) and so carry no mark.
_ALSO_FIELDS = {
    "actor_rollout_ref.model.path": "model.path",
    "critic.model.path": "critic.path",
    "data.train_files": "data.train",
    "data.val_files": "data.val",
    "trainer.experiment_name": "logging.experiment",
    **{f"algorithm.filter_groups.{name}": f"algorithm.filter_groups.{name}" for name in ("enable", "metric")},
}
_OVERLONG = {"enable": "enable", "len": "length", "penalty_factor": "penalty_factor", "log": "log"}
_LISTS = ("data.train", "data.val", "logging.loggers")

# Keys that the launcher plans, and what to set instead. A name that ends in a dot is a whole section.
_PLANNED = {
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
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor.micro_batch_size_per_gpu; verl refuses both",
    f"{_ROLLOUT}.log_prob_micro_batch_size": "actor.micro_batch_size_per_gpu; verl refuses both",
}
# Ray runs before the trainer connects, and then these are refused (ray.init: "When connecting to an existing
# cluster, num_cpus and num_gpus must not be provided").
_RAY = {
    "num_cpus": "cluster.cpus_per_node",
    "num_gpus": "cluster.gpus_per_node",
    "address": "nothing: the launcher starts Ray and hands its address on",
    "resources": "nothing: Ray has the GPUs of the plan",
    "object_store_memory": "cluster.mem",
    "_temp_dir": "nothing: the launcher gives each job a folder of its own",
}


def fold(job: Job) -> Job:
    """The job with every raw override that a field stands for moved into that field; the last one counts.

    Raises:
        JobError: With one line for each value that its field does not take, naming the key and the field.
    """
    if not job.overrides:
        return job
    places, switches = _places(job), _switches(job)
    moved: dict[str, tuple[str, Any]] = {}
    kept = []
    for text in job.overrides:
        override = _parse(text)
        if override is None or not _foldable(override):
            kept.append(text)
            continue
        key, value = override.key_or_group, override.value()
        if key in places:
            place = places[key]
            moved[place] = (text, [value] if place in _LISTS and isinstance(value, str) else value)
        elif key in switches and isinstance(value, bool):
            place, item = switches[key]
            before = moved[place][1] if place in moved else _get(job, place)
            moved[place] = (text, [*(one for one in before if one != item), *([item] if value else [])])
        else:
            kept.append(text)
    if not moved:
        return job
    data = job.model_dump(exclude_unset=True)
    for place, (_, value) in moved.items():
        _put(data, place, value)
    data["overrides"] = kept
    try:
        # Strict: `n=true` is not 1. Numbers of YAML are numbers already.
        return Job.model_validate(data, strict=True)
    except ValidationError as problem:
        raise JobError([_explained(item, moved) for item in problem.errors(include_url=False)]) from problem


def check_raw_overrides(job: Job) -> Iterator[Finding]:
    """Raw overrides that contradict what the launcher plans, or each other. Takes a job before or after `fold`."""
    places = _places(job)
    values: dict[str, tuple[Any, str]] = {}
    for text in job.overrides:
        override = _parse(text)
        if override is None:
            continue  # no override at all: reported by check_text and by the composition
        said = shown(text)
        if override.is_sweep_override():
            yield sweep(text)
            continue
        for key, value in _leaves(override.key_or_group, override.value()):
            if key in values and values[key][0] != value:
                yield warning(
                    "override-twice",
                    f"overrides: {values[key][1]!r} and {said!r} differ in {key}, and the last one counts",
                    "keep one of them",
                )
            values[key] = (value, said)
            yield from _against_the_plan(job, key, value, said, override.is_delete())
            if key in places and not _foldable(override):
                yield error(
                    "plan-override", f"overrides: {said!r} hides {key} from the rules", f"set {places[key]}"
                )


def _parse(text: str) -> "Override | None":
    # Only a job with raw overrides pays for the import (80 ms).
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if len(text) > MAX_ARGUMENT_BYTES:
        return None
    try:
        override = OverridesParser.create().parse_override(text)
        if not override.is_sweep_override():
            override.value()
    except (HydraException, RecursionError, ValueError):
        return None
    return override


def _places(job: Job) -> dict[str, str]:
    """verl's key -> the field of the job that stands for it."""
    section = "reward_model" if job.engine.verl == "0.6.1" else "reward"
    overlong = {
        f"{section}.reward_kwargs.overlong_buffer_cfg.{theirs}": f"algorithm.overlong_buffer.{ours}"
        for theirs, ours in _OVERLONG.items()
    }
    return {key: place for place, key in marked_fields()} | _ALSO_FIELDS | overlong


def _switches(job: Job) -> dict[str, tuple[str, str]]:
    """verl's key that is true or false -> the list of the job that it is an item of."""
    megatron = job.actor.strategy == "megatron"
    critic = "critic.model.fsdp_config" if job.engine.verl == "0.6.1" else "critic.fsdp"
    sections = {
        "actor.offload": f"{_ACTOR}.megatron" if megatron else f"{_ACTOR}.fsdp_config",
        "critic.offload": "critic.megatron" if megatron else critic,
    }
    return {
        f"{section}.{item}_offload": (place, item)
        for place, section in sections.items()
        for item in ("param", "optimizer")
    }


def _foldable(override: "Override") -> bool:
    """Whether an override says a plain value of a key: no sweep, no deletion, nothing that resolves later."""
    if override.is_sweep_override() or override.is_delete() or override.package is not None:
        return False
    # A key that verl's configuration lacks can only be given with a plus.
    if override.is_add() and not override.key_or_group.startswith(("algorithm.filter_groups.", "reward")):
        return False
    value = override.value()
    return not isinstance(value, dict) and not any("${" in str(one) for one in _flat(value))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below)
    else:
        yield key, value


def _get(job: Job, place: str) -> Any:
    value: Any = job
    for name in place.split("."):
        value = getattr(value, name)
    return value


def _put(data: dict[str, Any], place: str, value: Any) -> None:
    *parents, last = place.split(".")
    for name in parents:
        data = data.setdefault(name, {})
    data[last] = value


def _explained(item: Any, moved: dict[str, tuple[str, Any]]) -> str:
    loc = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    for place, (text, _) in moved.items():
        if f"{loc}.".startswith(f"{place}."):
            said = shown(text)
            return f"overrides: {said!r} is the field {place}: {message}"
    return (
        f"{loc or 'job'}: {message} (after the raw overrides {', '.join(text[:80] for text, _ in moved.values())})"
    )


def _against_the_plan(job: Job, key: str, value: Any, said: str, deleted: bool) -> Iterator[Finding]:
    for planned, instead in _PLANNED.items():
        if key == planned or (planned.endswith(".") and f"{key}.".startswith(planned)):
            if value is not None or deleted:
                yield _plan(said, f"{key}, which the launcher plans", instead)
            return
    ray = key.removeprefix("ray_kwargs.ray_init.")
    if ray != key and ray in _RAY and value is not None:
        yield _plan(said, f"{key}, and Ray is started before the trainer connects to it", _RAY[ray])
    for name, wanted, field in _followers(job):
        if key == name and (deleted or value != wanted):
            yield _plan(said, f"{key}, which must be {wanted} as {field} says", field)
    if key == "trainer.use_v1" and job.engine.verl == "0.9.1" and job.engine.mode == "sync":
        if value and not job.algorithm.filter_groups.enable:
            yield error(
                "silent-reward",
                f"overrides: {said!r}: the V1 trainer logs an exception of the reward function and trains on",
                "drop it",
            )
        elif not value and job.algorithm.filter_groups.enable:
            yield _plan(said, f"{key}, without which there is no dynamic sampling", "algorithm.filter_groups")


def _plan(said: str, what: str, instead: str) -> Finding:
    remedy = instead.removeprefix("nothing: ") if instead.startswith("nothing: ") else f"set {instead}"
    return error("plan-override", f"overrides: {said!r} changes {what}", f"drop it; {remedy}")


def _followers(job: Job) -> Iterator[tuple[str, Any, str]]:
    """(verl's key, the value it must have, the field that says so) of keys that follow another one."""
    roles = ("actor_rollout_ref.ref", "critic")
    for place, key in marked_fields():
        section, name = place.split(".")[:2]
        if section == "actor" and key.startswith(f"{_ACTOR}.megatron."):
            value = getattr(job.actor, name)
            if value is not None:
                for role in roles:
                    yield key.replace(_ACTOR, role), value, place
    for role in roles:
        yield f"{role}.strategy", job.actor.strategy, "actor.strategy"
    for part in (_ACTOR, f"{_ACTOR}.fsdp_config", "actor_rollout_ref.ref", "critic"):
        yield f"{part}.ulysses_sequence_parallel_size", job.actor.context_parallel, "actor.context_parallel"
    yield f"{_ROLLOUT}.prompt_length", job.data.max_prompt_length, "data.max_prompt_length"
    yield f"{_ROLLOUT}.response_length", job.data.max_response_length, "data.max_response_length"
