"""Rules on a composed trainer command: unknown keys, types, values that verl refuses, keys that do nothing."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override

from launch.engines.command import TrainerCommand
from launch.engines.compose import IN_THE_JOB, UNRESOLVED, Composed, Unknown, compose_command, value_at
from launch.engines.dataclass_types import ClassReader, ConfigClass, Field
from launch.engines.inert_keys import INERT
from launch.engines.source import Source
from launch.engines.wording import shown
from launch.finding import Finding, error, warning

# Sections that verl turns into dataclasses as a whole, so that an unknown field in them ends the job.
_CONVERTED = (*(f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model")), "critic")
# 0.6.1 names no class for it in the Megatron configuration (workers/megatron_workers.py has this one).
_CLASS_WITHOUT_TARGET = {"actor_rollout_ref.model": "verl.workers.config.HFModelConfig"}
# Sections handed on whole: to transformers, megatron-core, SGLang or vLLM, Ray, a reward manager.
_FREE = re.compile(r".*_kwargs|override_.*|.*_options|ray_init|runtime_env|env_vars|mbridge_config|lora|mtp")
# Values that verl takes besides those of its default's type.
_ALSO: dict[str, type] = {
    "data.train_files": list,
    "data.val_files": list,
    "trainer.logger": str,
    "trainer.esi_redundant_time": float,
}
_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a section",
}
# Managers that turn an exception or a timeout of the reward function into 0.0 (workers/reward_manager/prime.py,
# experimental/reward_loop/reward_manager/limited.py).
_SILENT_MANAGERS = ("rate_limited", "limited", "prime")
_MOST_UNKNOWN = 20


def check_command(
    command: TrainerCommand, source: Source, environment: Mapping[str, str] = IN_THE_JOB
) -> list[Finding]:
    """Everything that is wrong with a trainer command, by the configuration and the source of one verl version.

    Args:
        command: Entry module, configuration and overrides.
        source: verl's source (`launch.engines.source.find_source`).
        environment: Variables that the job will have and this process may lack, for ${oc.env:...}.
    """
    return check_composed(compose_command(command, source, environment), command, source)


def check_composed(composed: Composed | list[Finding], command: TrainerCommand, source: Source) -> list[Finding]:
    """The rules of `check_command` on a command that is composed already."""
    if isinstance(composed, list):
        return composed
    classes = _Classes(composed.config, source)
    return [
        *composed.findings,
        *_unknown(composed, classes, source),
        *_unread(composed, classes, source),
        *_types(composed, classes),
        *_unset(composed),
        *_reward_manager(composed, source),
        *_inert(composed, command, source),
    ]


class _Classes:
    """The dataclass that a section of a configuration becomes."""

    def __init__(self, config: dict[str, Any], source: Source) -> None:
        self._config = config
        self._reader = ClassReader(source.root)

    def of_section(self, key: str) -> tuple[ConfigClass | None, bool]:
        """The class of a section, and whether verl makes it from all of the section's keys."""
        target = value_at(self._config, f"{key}._target_") or _CLASS_WITHOUT_TARGET.get(key)
        if isinstance(target, str) and (found := self._reader.read(target)) is not None:
            return found, f"{key}.".startswith(tuple(f"{section}." for section in _CONVERTED))
        if (annotated := self.field(key)) is not None:
            return self._reader.of_field(annotated), False
        return None, False

    def field(self, key: str) -> Field | None:
        """The field that a key becomes."""
        parent, _, name = key.rpartition(".")
        found = self.of_section(parent)[0] if parent else None
        return found.fields.get(name) if found is not None else None

    def allowed(self, key: str) -> list[object] | None:
        """The values that the class of a key's section allows for it."""
        parent, _, name = key.rpartition(".")
        found = self.of_section(parent)[0] if parent else None
        return found.allowed.get(name) if found is not None else None

    def is_free(self, key: str) -> bool:
        """Whether a section takes any key, because it or one around it is handed on whole."""
        parts = key.split(".")
        for depth in range(1, len(parts) + 1):
            section = ".".join(parts[:depth])
            if _FREE.fullmatch(parts[depth - 1]):
                return True
            if (found := self.field(section)) is not None and found.free:
                return True
        return False


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a section that is not a section itself."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}" if key else name)
    else:
        yield key, value


def _keys(section: dict[str, Any], place: str = "") -> Iterator[str]:
    """The dotted name of every section and value."""
    for name, below in section.items():
        yield f"{place}{name}"
        if isinstance(below, dict):
            yield from _keys(below, f"{place}{name}.")


def _written(composed: Composed) -> Iterator[tuple[str, Any, Override]]:
    """(key, final value, last override) of every value that the command sets; a dict value has several."""
    last: dict[str, Override] = {}
    for override in composed.overrides:
        if not override.is_delete():
            for key, _ in _leaves(override.value(), override.key_or_group):
                last[_first_value(key, composed.defaults)] = override
    for key, override in last.items():
        yield key, value_at(composed.config, key), override


def _first_value(key: str, config: dict[str, Any]) -> str:
    """The key, or the first part of it where the configuration has a value and not a section."""
    parts = key.split(".")
    for depth in range(1, len(parts)):
        start = ".".join(parts[:depth])
        if not isinstance(value_at(config, start), (dict, type(None))):
            return start
    return key


def _exists(config: dict[str, Any], key: str) -> bool:
    parent, _, name = key.rpartition(".")
    section = value_at(config, parent) if parent else config
    return isinstance(section, dict) and name in section


def _occurs(word: str, source: Source) -> bool:
    """Whether the source has the word at all."""
    return re.search(rf"\b{re.escape(word)}\b", source.text) is not None


def _is_read(key: str, source: Source) -> bool:
    """Whether the source takes the key out of its section: SECTION.NAME, ["NAME"] or .get("NAME"."""
    section, name = map(re.escape, key.rsplit(".", 2)[-2:])
    return re.search(rf"""\b{section}\.{name}\b|(?:\[|\.get\(|\bin\s)\s*["']{name}["']""", source.text) is not None


def _nearest(key: str, config: dict[str, Any]) -> list[str]:
    """Up to three keys that may be meant: alike in the same section, the same name elsewhere, alike anywhere."""
    known = list(_keys(config))
    parent, _, last = key.rpartition(".")
    section = value_at(config, parent) if parent else config
    siblings = difflib.get_close_matches(last, list(section) if isinstance(section, dict) else [], n=2, cutoff=0.7)
    same = [name for name in known if name.rpartition(".")[2] == last]
    same.sort(key=lambda name: -difflib.SequenceMatcher(None, key, name).ratio())
    found = [*(f"{parent}.{name}" if parent else name for name in siblings), *same[:2]]
    return list(dict.fromkeys(found))[:3] or difflib.get_close_matches(key, known, n=2, cutoff=0.9)


def _unknown(composed: Composed, classes: _Classes, source: Source) -> Iterator[Finding]:
    """Keys that the version's configuration does not have."""
    for unknown in composed.unknown[:_MOST_UNKNOWN]:
        yield error("unknown-key", *_about_unknown(unknown, composed, classes, source))
    if (more := len(composed.unknown) - _MOST_UNKNOWN) > 0:
        yield error("unknown-key", f"and {more} more unknown keys", "see those above")


def _about_unknown(unknown: Unknown, composed: Composed, classes: _Classes, source: Source) -> tuple[str, str]:
    key = unknown.key[:400]
    parent, _, name = key.rpartition(".")
    nearest = [near for near in _nearest(key, composed.defaults) if near != key]
    if _exists(composed.defaults, key):  # below an interpolation
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


def _unread(composed: Composed, classes: _Classes, source: Source) -> Iterator[Finding]:
    """Keys added with + that the version does not read."""
    told = set()
    for key, _, override in _written(composed):
        if not (override.is_add() or override.is_force_add()) or _exists(composed.defaults, key):
            continue
        parts = key.split(".")
        # The first name that is new decides: what is below it is its own.
        depth = next(
            (
                depth
                for depth in range(1, len(parts) + 1)
                if not _exists(composed.defaults, ".".join(parts[:depth]))
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


def _types(composed: Composed, classes: _Classes) -> Iterator[Finding]:
    """Values of a type that the key does not take, or that verl refuses by name."""
    for key, value, override in _written(composed):
        if value in (UNRESOLVED, "???") or not _exists(composed.config, key):
            continue
        default = value_at(composed.defaults, key)
        known = _exists(composed.defaults, key)
        text = shown(str(override.input_line).partition("=")[2])
        wanted = _wanted(key, value, default, known=known, found=classes.field(key))
        if wanted:
            yield error(
                "value-type",
                f"{shown(key, 200)}={text} is {_kind(value)}, it must be {wanted}",
                _cure(wanted, value, text),
            )
        elif (allowed := classes.allowed(key)) is not None and value not in allowed:
            words = ", ".join(map(str, allowed))
            yield error("value", f"{shown(key, 200)}={text} is refused by verl", f"it takes: {words}")


def _wanted(key: str, value: Any, default: Any, *, known: bool, found: Field | None) -> str | None:
    """What the value of a key must be, if `value` is not."""
    if key in _ALSO and isinstance(value, _ALSO[key]):
        return None
    # verl's own YAML is not always of the type that its class states; then the YAML counts.
    if found is not None and (not known or default in (UNRESOLVED, "???") or found.accepts(default)):
        return None if found.accepts(value) else found.type_text
    if not known or default is None or default in (UNRESOLVED, "???") or value is None:
        return None
    kinds: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if isinstance(value, kinds) and (not isinstance(value, bool) or isinstance(default, bool)):
        return None
    return _WORDS.get(type(default), type(default).__name__)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return f"{'an' if isinstance(value, int) and not isinstance(value, bool) else 'a'} {type(value).__name__}"


def _cure(wanted: str, value: object, text: str) -> str:
    if wanted in {"bool", _WORDS[bool]}:
        return "write true or false"
    if wanted in {"str", _WORDS[str]} and not isinstance(value, (list, dict)):
        return f"quote it: '{text}'"
    return f"write {wanted if wanted in _WORDS.values() else f'a value of type {wanted}'}"


def _unset(composed: Composed) -> Iterator[Finding]:
    """Keys without a default (???) that stay unset in a section that the trainer reads."""
    sections = ["data", "trainer", "algorithm", *_CONVERTED[:-1]]
    if value_at(composed.config, "algorithm.adv_estimator") == "gae":
        sections.append("critic")
    for section in sections:
        for key, value in _leaves(value_at(composed.config, section), section):
            if value == "???":
                yield error("unset-key", f"{key} has no value, and verl has no default for it", f"set {key}=...")


def _reward_manager(composed: Composed, source: Source) -> Iterator[Finding]:
    """A reward manager that hides failures, or that the version does not have."""
    modern = source.root / "verl" / "experimental" / "reward_loop" / "reward_manager"
    folder = modern if modern.is_dir() else source.root / "verl" / "workers" / "reward_manager"
    pattern = re.compile(r"""^@register\w*\(["'](\w+)["']\)""", re.MULTILINE)
    known = {
        name for file in sorted(folder.glob("*.py")) for name in pattern.findall(file.read_text(encoding="utf-8"))
    }
    for key in ("reward.reward_manager.name", "reward_model.reward_manager"):
        name = value_at(composed.config, key)
        if name is None or (
            key.startswith("reward.") and value_at(composed.config, "reward.reward_manager.source") != "register"
        ):
            continue
        if name in _SILENT_MANAGERS:
            yield error(
                "silent-reward",
                f"{key}={name}: this manager turns an exception or a timeout of the reward function into 0.0",
                "use naive, or dapo",
            )
        elif known and isinstance(name, str) and name not in known:
            yield error(
                "value",
                f"{key}={shown(str(name))}: verl {source.version} has no such reward manager",
                f"it has: {', '.join(sorted(known))}",
            )


def _inert(composed: Composed, command: TrainerCommand, source: Source) -> Iterator[Finding]:
    """Keys that compose and do nothing."""
    told = set()
    for key, value, _ in _written(composed):
        found = next((one for one in INERT if one.concerns(key, source.version, command.module)), None)
        unchanged = _exists(composed.defaults, key) and value == value_at(composed.defaults, key)
        if found is None or unchanged or key in told:
            continue
        told.add(key)
        below = key.removeprefix(found.key)
        remedy = f"set {found.instead}{below if ' ' not in found.instead else ''}" if found.instead else "drop it"
        yield warning("inert-key", f"{key} does nothing in verl {source.version}: {found.why}", remedy)
