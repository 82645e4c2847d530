"""Raw Hydra overrides of a job: what is a field of the job becomes that field, what breaks the plan is refused.

A raw override has the last word, but not behind the back of the rules: one that a field of the job stands for is
moved into the field, so that the plan, the batch arithmetic and the memory estimate see it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from launch.config import Job
from launch.config.base import WrittenFloat, WrittenInt
from launch.config.problems import wrong
from launch.config.verl_keys import ALSO_FIELDS, PLANNED, QUANTIZATION, marked_fields
from launch.engines.wording import MAX_ARGUMENT_BYTES, shown, sweep
from launch.finding import Finding, error, warning
from launch.tokens import hide

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_PADDING = "actor_rollout_ref.model.use_remove_padding"
_OVERLONG = {"enable": "enable", "len": "length", "penalty_factor": "penalty_factor", "log": "log"}
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


class RawFinding(NamedTuple):
    """What is wrong with one raw override."""

    override: str
    finding: Finding


class Folded(NamedTuple):
    """A job whose raw overrides became fields, as far as their fields take them."""

    job: Job
    problems: list[RawFinding]


def fold(job: Job) -> Folded:
    """The job with every raw override that a field stands for moved into that field; the last one counts.

    One whose value its field does not take stays where it is and is a problem.
    """
    moved: dict[str, tuple[str, Any]] = {}
    kept = []
    for text in job.overrides:
        override = _parse(text)
        target = _target(job, override, moved) if override is not None and _foldable(override) else None
        if target is None:
            kept.append(text)
        else:
            moved[target[0]] = (text, target[1])
    problems: list[RawFinding] = []
    while moved:
        data = job.model_dump(exclude_unset=True)
        for place, (_, value) in moved.items():
            _put(data, place, value)
        data["overrides"] = kept
        try:
            # Strict: `n=true` is not 1. Numbers of YAML are numbers already.
            folded = Job.model_validate(data, strict=True)
        except ValidationError as refused:
            for place, finding in _refused(refused, moved):
                text, _ = moved.pop(place)
                kept.append(text)
                problems.append(RawFinding(text, finding))
        else:
            if "actor.strategy" not in moved or not kept:
                return Folded(folded, problems)
            again = fold(folded)  # the switches of the other strategy are fields now
            return Folded(again.job, [*dict.fromkeys([*problems, *again.problems])])
    return Folded(job, problems)


def _refused(refused: ValidationError, moved: dict[str, tuple[str, Any]]) -> list[tuple[str, Finding]]:
    """(field, what is wrong) of every moved value that does not validate; of all, where none is to blame alone."""
    found: dict[str, Finding] = {}
    for item in refused.errors(include_url=False):
        told, loc = wrong(item), ".".join(str(part) for part in item["loc"])
        to_blame = [place for place in moved if f"{loc}.".startswith(f"{place}.")] or [*moved]
        for place in to_blame:
            message = f"overrides: {_said(moved[place][0])!r} is the field {told.message}"
            found.setdefault(place, error("field", message, told.remedy))
    return [*found.items()]


def _target(job: Job, override: "Override", moved: dict[str, tuple[str, Any]]) -> tuple[str, Any] | None:
    """(field, its value) that an override stands for."""
    key, value = override.key_or_group, override.value()
    places, switches = _places(job), _switches(job, megatron=job.actor.strategy == "megatron")
    if key in places:
        return places[key], _written(value, str(override.input_line))
    if key in QUANTIZATION:
        place, on = QUANTIZATION[key]
        return (place, value == on) if value in (on, None) else None
    if key in switches and isinstance(value, bool):
        place, item = switches[key]
        before = moved[place][1] if place in moved else _get(job, place)
        return place, [*(one for one in before if one != item), *([item] if value else [])]
    return None


def _written(value: Any, text: str) -> Any:
    """A number that knows its text, in case its field is text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    number = WrittenInt(value) if isinstance(value, int) else WrittenFloat(value)
    number.written = text.partition("=")[2].strip()
    return number


def check_raw_overrides(job: Job) -> Iterator[RawFinding]:
    """Raw overrides that contradict what the launcher plans, or each other.

    `job` has the values of the fields that count (after `fold`) and the raw overrides as the user wrote them.
    """
    hidden = _places(job) | {key: place for key, (place, _) in QUANTIZATION.items()}
    values: dict[str, tuple[Any, str]] = {}
    for text in job.overrides:
        override = _parse(text)
        if override is None:
            continue  # no override at all: reported by check_text and by the composition
        said = _said(text)
        if override.is_sweep_override():
            yield RawFinding(text, sweep(hide(text)))
            continue
        for key, value in _leaves(override.key_or_group, override.value()):
            if key in values and values[key][0] != value:
                told = f"overrides: {values[key][1]!r} and {said!r} differ in {key}, and the last one counts"
                yield RawFinding(text, warning("override-twice", told, "keep one of them"))
            values[key] = (value, said)
            for finding in _against_the_plan(job, key, value, said, override.is_delete()):
                yield RawFinding(text, finding)
            if key in hidden and not _foldable(override):
                told = f"overrides: {said!r} hides {key} from the rules"
                yield RawFinding(text, error("plan-override", told, f"set {hidden[key]}"))


def _said(text: str) -> str:
    """An override in a message; what looks like a secret goes before the text is cut."""
    return shown(hide(text))


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
    return {key: place for place, key in marked_fields()} | ALSO_FIELDS | overlong


def _switches(job: Job, *, megatron: bool) -> dict[str, tuple[str, str]]:
    """verl's key that is true or false -> the list of the job that it is an item of."""
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


def _against_the_plan(job: Job, key: str, value: Any, said: str, deleted: bool) -> Iterator[Finding]:
    for planned, instead in PLANNED.items():
        if key == planned or (planned.endswith(".") and f"{key}.".startswith(planned)):
            if value is not None or deleted:
                yield _plan(said, f"{key}, which the launcher plans", instead)
            return
    other = _switches(job, megatron=job.actor.strategy != "megatron")
    if key in other:
        strategy = f"which is not of actor.strategy={job.actor.strategy}"
        yield _plan(said, f"{key}, {strategy}", other[key][0])
    if key == _PADDING and value is False and job.actor.strategy == "megatron" and job.actor.fp8 is not None:
        # verl 0.8.0 and 0.9.1, models/mcore/model_forward.py.
        yield error(
            "fp8-padding",
            f"overrides: {said!r} with actor.fp8={job.actor.fp8}: verl asserts, fp8 is not supported for bshd "
            "format yet",
            "drop it, or set actor.fp8=null",
        )
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
