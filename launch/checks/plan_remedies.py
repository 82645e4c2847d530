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
Changes = dict[str, int]
Way = Iterable[Changes]
_MOST_WAYS = 3


@dataclass(frozen=True)
class Broken:
    """A broken rule.

    Attributes:
        ways: of each, the first that works is named.
        last: tried where none of them works.
    """

    id: str
    message: str
    ways: tuple[Way, ...]
    last: Way = ()


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


def remedy_of(job: Job, broken: Broken, works: Callable[[Job], bool]) -> str:
    """What to set, as text: of each way the first change that works, with batches that divide if there is one."""
    named: list[str] = []
    for way in broken.ways:
        named += _first(job, way, works)
    if not named:
        named = _first(job, broken.last, works)
    if not named:
        return "change the nodes, the GPUs of a node, or the sizes"
    first, *others = dict.fromkeys(named[:_MOST_WAYS])
    return ", or ".join([first, *(text.removeprefix("set ") for text in others)])


def _first(job: Job, way: Way, works: Callable[[Job], bool]) -> list[str]:
    fallback: Changes | None = None
    for changes in way:
        if not works(changed(job, changes)):
            continue
        whole = clean_changes(job, changes)
        if whole == changes:
            return [written(changes)]
        fallback = fallback or whole
    return [written(fallback)] if fallback is not None and works(changed(job, fallback)) else []
