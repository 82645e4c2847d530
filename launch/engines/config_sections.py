"""The sections of a composed configuration: their keys, their values, and the classes that verl makes of them."""

import re
from collections.abc import Iterator
from typing import Any

from hydra.core.override_parser.types import Override

from launch.engines.compose import Composed, value_at
from launch.engines.dataclass_types import ClassReader, ConfigClass, Field
from launch.engines.source import Source

# Sections that verl turns into dataclasses as a whole, so that an unknown field in them ends the job.
CONVERTED = (*(f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model")), "critic")
# 0.6.1 names no class for it in the Megatron configuration (workers/megatron_workers.py has this one).
_CLASS_WITHOUT_TARGET = {"actor_rollout_ref.model": "verl.workers.config.HFModelConfig"}
# Sections handed on whole: to transformers, megatron-core, SGLang or vLLM, Ray, a reward manager.
_FREE = re.compile(r".*_kwargs|override_.*|.*_options|ray_init|runtime_env|env_vars|mbridge_config|lora|mtp")


class Classes:
    """The dataclass that a section of a configuration becomes."""

    def __init__(self, config: dict[str, Any], source: Source) -> None:
        self._config = config
        self._reader = ClassReader(source.root)

    def of_section(self, key: str) -> tuple[ConfigClass | None, bool]:
        """The class of a section, and whether verl makes it from all of the section's keys."""
        target = value_at(self._config, f"{key}._target_") or _CLASS_WITHOUT_TARGET.get(key)
        if isinstance(target, str) and (found := self._reader.read(target)) is not None:
            return found, f"{key}.".startswith(tuple(f"{section}." for section in CONVERTED))
        if (annotated := self.field(key)) is not None:
            return self._reader.of_field(annotated), False
        return None, False

    def field(self, key: str) -> Field | None:
        """The field that a key becomes."""
        parent, _, name = key.rpartition(".")
        found = self.of_section(parent)[0] if parent else None
        return found.fields.get(name) if found is not None else None

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


def leaves(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a section that is not a section itself."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, f"{key}.{name}" if key else name)
    else:
        yield key, value


def dotted_names(section: dict[str, Any], place: str = "") -> Iterator[str]:
    """The dotted name of every section and value."""
    for name, below in section.items():
        yield f"{place}{name}"
        if isinstance(below, dict):
            yield from dotted_names(below, f"{place}{name}.")


def exists(config: dict[str, Any], key: str) -> bool:
    parent, _, name = key.rpartition(".")
    section = value_at(config, parent) if parent else config
    return isinstance(section, dict) and name in section


def _first_value(key: str, config: dict[str, Any]) -> str:
    """The key, or the first part of it where the configuration has a value and not a section."""
    parts = key.split(".")
    for depth in range(1, len(parts)):
        start = ".".join(parts[:depth])
        if not isinstance(value_at(config, start), (dict, type(None))):
            return start
    return key


def written_values(composed: Composed) -> Iterator[tuple[str, Any, Override]]:
    """(key, final value, last override) of every value that the command sets; a dict value has several."""
    last: dict[str, Override] = {}
    for override in composed.overrides:
        if not override.is_delete():
            for key, _ in leaves(override.value(), override.key_or_group):
                last[_first_value(key, composed.defaults)] = override
    for key, override in last.items():
        yield key, value_at(composed.config, key), override


def sections(section: object, key: str) -> Iterator[str]:
    """The dotted names of a section and of those in it that have a class."""
    if isinstance(section, dict):
        if "_target_" in section or key in _CLASS_WITHOUT_TARGET:
            yield key
        for name, below in section.items():
            yield from sections(below, f"{key}.{name}")
