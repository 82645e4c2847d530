"""Rules on the keys of a trainer command: those that the version lacks, does not read, or reads for nothing."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from launch.engines.command import TrainerCommand
from launch.engines.compose import Composed, Unknown, value_at
from launch.engines.config_sections import Classes, dotted_names, exists, written_values
from launch.engines.inert_keys import INERT
from launch.engines.source import Source
from launch.engines.wording import shown
from launch.finding import Finding, error, warning

_MOST_UNKNOWN = 20


def check_unknown_keys(composed: Composed, classes: Classes, source: Source) -> Iterator[Finding]:
    """Keys that the version's configuration does not have."""
    for unknown in composed.unknown[:_MOST_UNKNOWN]:
        yield error("unknown-key", *_about_unknown(unknown, composed, classes, source))
    if (more := len(composed.unknown) - _MOST_UNKNOWN) > 0:
        yield error("unknown-key", f"and {more} more unknown keys", "see those above")


def _about_unknown(unknown: Unknown, composed: Composed, classes: Classes, source: Source) -> tuple[str, str]:
    key = unknown.key[:400]
    parent, _, name = key.rpartition(".")
    nearest = [near for near in _nearest(key, composed.defaults) if near != key]
    if exists(composed.defaults, key):  # below an interpolation
        others = [near for near in nearest if near.endswith(f".{name}")]
        return (
            f"verl {source.version} takes {shown(key, 200)} from another section, and it cannot be set by itself",
            f"set {' or '.join(others)}" if others else "drop it",
        )
    remedies = []
    if nearest:
        remedies.append(f"did you mean {' or '.join(nearest)}?")
    found, strict = classes.of_section(parent) if parent else (None, False)
    may_add = isinstance(value_at(composed.defaults, parent), dict)
    if may_add and strict and found is not None:
        may_add = name in found.fields
    elif may_add and not classes.is_free(parent):
        may_add = _is_read(key, source)
    if may_add and not unknown.override.is_delete():
        remedies.append(f"it is read where it is given: write +{key}=...")
    return (
        f"verl {source.version} has no key {shown(key, 200)}",
        " ".join(remedies) or "drop it",
    )


def check_unread_keys(composed: Composed, classes: Classes, source: Source) -> Iterator[Finding]:
    """Keys added with + that the version does not read."""
    told = set()
    for key, _, override in written_values(composed):
        if not (override.is_add() or override.is_force_add()) or exists(composed.defaults, key):
            continue
        parts = key.split(".")
        # The first name that is new decides: what is below it is its own.
        depth = next(
            (
                depth
                for depth in range(1, len(parts) + 1)
                if not exists(composed.defaults, ".".join(parts[:depth]))
            ),
            len(parts),
        )
        parent, name = ".".join(parts[: depth - 1]), parts[depth - 1]
        found, strict = classes.of_section(parent) if parent else (None, False)
        if (found is not None and name in found.fields) or (parent, name) in told:
            continue
        told.add((parent, name))
        near = _nearest(key, composed.defaults)
        remedy = f"did you mean {' or '.join(near)}?" if near else "drop it"
        if found is not None and strict:
            message = (
                f"+{shown(key, 200)}: verl {source.version} makes a {found.name} of {parent}, which has no {name}"
            )
            yield error("unread-key", message, remedy)
        elif not classes.is_free(".".join(parts[:-1]) or name):
            words = dict.fromkeys((name, parts[-1]))
            lost = next((word for word in words if not _occurs(word, source)), None)
            if lost is not None:
                message = f"+{shown(key, 200)}: no code of verl {source.version} reads {shown(lost)!r}"
                yield error("unread-key", message, remedy)


def check_inert_keys(composed: Composed, command: TrainerCommand, source: Source) -> Iterator[Finding]:
    """Keys that compose and do nothing."""
    told = set()
    for key, value, _ in written_values(composed):
        found = next((one for one in INERT if one.concerns(key, source.version, command.module)), None)
        unchanged = exists(composed.defaults, key) and value == value_at(composed.defaults, key)
        if found is None or unchanged or key in told:
            continue
        told.add(key)
        below = key.removeprefix(found.key)
        remedy = f"set {found.instead}{below if ' ' not in found.instead else ''}" if found.instead else "drop it"
        yield warning("inert-key", f"{key} does nothing in verl {source.version}: {found.why}", remedy)


def _nearest(key: str, config: dict[str, Any]) -> list[str]:
    """Up to three keys that may be meant: alike in the same section, the same name elsewhere, alike anywhere."""
    known = list(dotted_names(config))
    parent, _, last = key.rpartition(".")
    section = value_at(config, parent) if parent else config
    siblings = difflib.get_close_matches(last, list(section) if isinstance(section, dict) else [], n=2, cutoff=0.7)
    same = [name for name in known if name.rpartition(".")[2] == last]
    same.sort(key=lambda name: -difflib.SequenceMatcher(None, key, name).ratio())
    found = [*(f"{parent}.{name}" if parent else name for name in siblings), *same[:2]]
    return list(dict.fromkeys(found))[:3] or difflib.get_close_matches(key, known, n=2, cutoff=0.9)


def _occurs(word: str, source: Source) -> bool:
    """Whether the source has the word at all."""
    return re.search(rf"\b{re.escape(word)}\b", source.text) is not None


def _is_read(key: str, source: Source) -> bool:
    """Whether the source takes the key out of its section: SECTION.NAME, ["NAME"] or .get("NAME"."""
    section, name = map(re.escape, key.rsplit(".", 2)[-2:])
    return re.search(rf"""\b{section}\.{name}\b|(?:\[|\.get\(|\bin\s)\s*["']{name}["']""", source.text) is not None
