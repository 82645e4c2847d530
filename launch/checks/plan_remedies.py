"""Ways out of a plan that does not fit: values are tried, and only those that work are named."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launch.checks.batch import batch_changes
from launch.config import Job
from launch.sizing.batches import Steps, steps
from launch.sizing.layout import fullest_pool, plan_layout

# Fields with their values, e.g. {"rollout.gpus_per_node": 6}; a way out is several of them, the best first.
Changes = dict[str, int | str]
Way = Iterable[Changes]
_MOST_WAYS = 3
_BEHIND = {
    "gpu-plan": ("rollout-tp", "train-parallel", "expert-parallel"),
    "train-parallel": ("expert-parallel",),
}


@dataclass(frozen=True)
class Broken:
    """A broken rule.

    Attributes:
        ways: of each, the first that works is named.
        last: tried where none of them works.
        part: tells rules with the same id apart.
    """

    id: str
    message: str
    ways: tuple[Way, ...]
    last: Way = ()
    part: str = ""


def each(field: str, values: Iterable[int]) -> list[Changes]:
    """One field with one value after the other."""
    return [{field: value} for value in values]


def divisors(number: int) -> list[int]:
    """Of `number`, the largest first."""
    low = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)}, reverse=True)


def smaller_divisors(field: str, number: int) -> list[Changes]:
    """A smaller size: a divisor of one that divides the model divides it, too."""
    return each(field, divisors(number)[1:])


def changed(job: Job, changes: Mapping[str, Any]) -> Job:
    """The job with other values."""
    sections: dict[str, dict[str, Any]] = {}
    for place, value in changes.items():
        section, _, field = place.partition(".")
        sections.setdefault(section, {})[field] = value
    update = {name: getattr(job, name).model_copy(update=fields) for name, fields in sections.items()}
    return job.model_copy(update=update)


def written(changes: Changes) -> str:
    """As a person types it."""
    return "set " + " and ".join(f"{field}={value}" for field, value in changes.items())


def clean_changes(job: Job, changes: Changes, rule: Steps | None = None) -> Changes:
    """`changes` and what the batches then need to divide."""
    other = changed(job, changes)
    layout = plan_layout(other)
    rule = rule or steps(other, layout.train_world)
    if rule is not None and rule.fit(other.data.train_batch_size, other.actor.mini_batch_size, other.rollout.n):
        return changes
    rule = fullest_pool(other, layout) or rule
    return changes if rule is None else {**changes, **batch_changes(other, rule)}


def remedy_of(job: Job, broken: Broken, rules: Callable[[Job], list[Broken]]) -> str:
    """What to set, as text: of each way the first change that works, with batches that divide if there is one.

    Where several rules are broken and no change mends all, one that mends this rule and breaks no other.
    """
    ways, last = [[*way] for way in broken.ways], [*broken.last]
    before = {(one.id, one.part) for one in rules(job)}
    # Looked at only once this rule holds.
    before |= {(id_, "") for id_ in _BEHIND.get(broken.id, ())}

    def broken_after(other: Job) -> set[tuple[str, str]]:
        return {(one.id, one.part) for one in rules(other)}

    def mends_all(other: Job) -> bool:
        return not rules(other)

    def mends_more(other: Job) -> bool:
        return broken_after(other) <= before - {(broken.id, broken.part)}

    def mends(other: Job) -> bool:
        return (broken.id, broken.part) not in broken_after(other)

    named = [text for way in ways for text in _first(job, way, mends_all)] or _first(job, last, mends_all)
    for works in (mends_more, mends):
        named = named or [text for way in [*ways, last] for text in _first(job, way, works)]
    if not named:
        return "change the nodes, the GPUs of a node, or the sizes"
    first, *others = dict.fromkeys(named[:_MOST_WAYS])
    return ", or ".join([first, *(text.removeprefix("set ") for text in others)])


def _first(job: Job, way: list[Changes], works: Callable[[Job], bool]) -> list[str]:
    fallback: Changes | None = None
    for changes in way:
        if not works(changed(job, changes)):
            continue
        whole = clean_changes(job, changes)
        if whole == changes:
            return [written(changes)]
        fallback = fallback or whole
    return [written(fallback)] if fallback is not None and works(changed(job, fallback)) else []
