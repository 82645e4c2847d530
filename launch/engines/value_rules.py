"""Rules on the values of a trainer command: types, what verl refuses, what is unset, what hides failures."""

import re
from collections.abc import Iterator
from typing import Any

from launch.engines.compose import UNRESOLVED, Composed, value_at
from launch.engines.config_sections import CONVERTED, Classes, exists, leaves, sections, written_values
from launch.engines.dataclass_types import Field
from launch.engines.post_init import refusals
from launch.engines.source import Source
from launch.engines.wording import shown
from launch.finding import Finding, error

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


def check_types(composed: Composed, classes: Classes) -> Iterator[Finding]:
    """Values of a type that the key does not take."""
    for key, value, override in written_values(composed):
        if value in (UNRESOLVED, "???") or not exists(composed.config, key):
            continue
        default = value_at(composed.defaults, key)
        known = exists(composed.defaults, key)
        text = shown(str(override.input_line).partition("=")[2])
        wanted = _wanted(key, value, default, known=known, found=classes.field(key))
        if wanted:
            yield error(
                "value-type",
                f"{shown(key, 200)}={text} is {_kind(value)}, it must be {wanted}",
                _cure(wanted, value, text),
            )


def check_refused_values(composed: Composed, classes: Classes, version: str) -> Iterator[Finding]:
    """Values that the classes of verl refuse when they are made."""
    texts = {
        key: shown(str(override.input_line).partition("=")[2]) for key, _, override in written_values(composed)
    }
    roots = [section for section in CONVERTED if section != "critic" or _has_critic(composed)]
    for section in (below for root in roots for below in sections(value_at(composed.config, root), root)):
        found, strict = classes.of_section(section)
        if found is None or not strict:
            continue
        known = {name: value for name, value in value_at(composed.config, section).items() if value != UNRESOLVED}
        for refusal in refusals(found.checks, found.constants, known):
            keys = [f"{section}.{name}" for name in refusal.fields]
            told = ", ".join(f"{key}={texts.get(key, value_at(composed.config, key))}" for key in keys)
            if refusal.allowed is not None:
                remedy = f"it takes: {', '.join(map(str, refusal.allowed))}"
            else:
                remedy = f"verl ({found.name}) raises when {refusal.condition.replace('self.', '')}"
            verb = "is" if len(keys) == 1 else "are"
            yield error("value", f"{told} {verb} refused by verl {version}", remedy)


def check_unset_keys(composed: Composed) -> Iterator[Finding]:
    """Keys without a default (???) that stay unset in a section that the trainer reads."""
    used = ["data", "trainer", "algorithm", *CONVERTED[:-1]]
    if _has_critic(composed):
        used.append("critic")
    for section in used:
        for key, value in leaves(value_at(composed.config, section), section):
            if value == "???":
                yield error("unset-key", f"{key} has no value, and verl has no default for it", f"set {key}=...")


def check_reward_manager(composed: Composed, source: Source) -> Iterator[Finding]:
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


def _has_critic(composed: Composed) -> bool:
    return bool(
        value_at(composed.config, "algorithm.adv_estimator") == "gae" or value_at(composed.config, "critic.enable")
    )


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
