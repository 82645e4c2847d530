"""Compose a trainer command with the real configuration of one verl version, and say everything that is wrong.

Hydra composes verl's own YAML; the overrides are then applied one at a time, as Hydra does it (1.3,
_internal/config_loader_impl.py), so that every wrong one is told and not only the first. No torch is imported.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from launch.engines.command import TrainerCommand
from launch.engines.hydra_text import quote
from launch.engines.source import Source
from launch.engines.wording import MAX_ARGUMENT_BYTES, shown, sweep, too_long
from launch.finding import Finding, error

# What the supervisor sets in the job; a login node has neither.
IN_THE_JOB = {"RUN_DIR": "/run-dir", "CHECKPOINT_DIR": "/checkpoint-dir", "LAUNCH_TOOLKIT": "/opt/toolkit"}
_MAX_NODES, _MAX_DEPTH = 200_000, 100
UNRESOLVED = "<unresolved>"


@dataclass(frozen=True)
class Unknown:
    """An override whose key the configuration does not have; in a dict value, the key in it."""

    key: str
    override: Override


@dataclass
class Composed:
    """A composed command. `config` and `defaults` (without the overrides) are plain and resolved."""

    config: dict[str, Any]
    defaults: dict[str, Any]
    overrides: list[Override]
    unknown: list[Unknown]
    findings: list[Finding]


@dataclass
class _Walk:
    """Errors of one resolution, and how many nodes it has seen."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    nodes: int = 0


def compose_command(
    command: TrainerCommand, source: Source, environment: Mapping[str, str] = IN_THE_JOB
) -> Composed | list[Finding]:
    """Compose `command` with the configuration of `source`; only findings when there is nothing to compose.

    Args:
        command: Entry module, configuration and overrides.
        source: verl's source.
        environment: Variables that the job will have and this process may lack, for ${oc.env:...}.
    """
    folder = _config_folder(command, source)
    if isinstance(folder, Finding):
        return [folder]
    overrides, findings = _parsed(command.overrides)
    base_overrides = [_translated(one, source) for one in overrides if _chooses_files(one, folder, source)]
    overrides = [one for one in overrides if not _chooses_files(one, folder, source)]
    with _variables(environment):
        try:
            with initialize_config_dir(str(folder), version_base=None):
                config = compose(command.config_name, [text for text in base_overrides if text])
        # Hydra fails in many ways on a choice that makes no sense (TypeError for a list); each one is told.
        except Exception as problem:  # noqa: BLE001
            told = " ".join(str(problem).split())
            remedy = "correct the override that chooses a part of the configuration"
            return [*findings, error("compose", f"verl {source.version}: {shown(told, 400)}", remedy)]
        defaults = _resolved(config, _Walk())
        applied, unknown = [], []
        for override in overrides:
            wrong = _apply(config, override)
            if wrong is None:
                applied.append(override)
            elif isinstance(wrong, Unknown):
                unknown.append(wrong)
            else:
                findings.append(wrong)
        walk = _Walk()
        resolved = _resolved(config, walk)
    findings += _unresolved(walk, applied)
    return Composed(resolved, defaults, applied, unknown, findings)


def value_at(config: object, key: str) -> Any:
    """The value at a dotted key of a plain configuration; None when there is none."""
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return None
        config = config[part]
    return config


def _config_folder(command: TrainerCommand, source: Source) -> Path | Finding:
    """The folder of the entry module's configuration: beside it, as its @hydra.main says in every version."""
    module = source.root.joinpath(*command.module.split(".")).with_suffix(".py")
    if not module.is_file():
        return error(
            "engine-module",
            f"verl {source.version} has no module {command.module} ({source.origin})",
            "set engine.mode=sync, or another engine.verl",
        )
    folder = module.parent / "config"
    if not (folder / f"{command.config_name}.yaml").is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml"))) or "none"
        return error(
            "engine-config",
            f"verl {source.version} has no configuration {command.config_name} for {command.module}",
            f"it has: {known}",
        )
    return folder


def _parsed(texts: tuple[str, ...]) -> tuple[list[Override], list[Finding]]:
    parser = OverridesParser.create()
    overrides, findings = [], []
    for text in texts:
        if len(text.encode(errors="replace")) > MAX_ARGUMENT_BYTES:
            findings.append(too_long(text))
            continue
        try:
            override = parser.parse_override(text)
            swept = override.is_sweep_override()
            override.value()
            if not override.key_or_group or ".." in override.key_or_group:
                raise ValueError("it has no key")
        except (HydraException, OmegaConfBaseException, RecursionError, ValueError) as problem:
            told = str(problem).strip().splitlines() or [type(problem).__name__]
            remedy = "put the value in single quotes, KEY='VALUE', see Hydra's override grammar"
            findings.append(error("override", f"{shown(text)!r} is not a Hydra override: {told[0][:200]}", remedy))
            continue
        if swept:
            findings.append(sweep(text))
        else:
            overrides.append(override)
    return overrides, findings


def _chooses_files(override: Override, folder: Path, source: Source) -> bool:
    """Whether an override is of Hydra itself or of the defaults list (hydra/core/override_parser: is_group)."""
    if override.is_hydra_override():
        return True
    group = override.key_or_group
    places = (folder, source.root / "verl" / "trainer" / "config")
    # os.path: a key of any length is a name that is not there.
    is_group = "." not in group and any(os.path.isdir(place / group) for place in places)  # noqa: PTH112
    return is_group and not isinstance(override.value(), dict)


def _translated(override: Override, source: Source) -> str:
    """The text of an override for this composition: package paths become folders of `source`."""
    text = str(override.input_line)
    if override.key_or_group != "hydra.searchpath":
        return text
    places = override.value()
    if not isinstance(places, list):
        return text
    folders = []
    for place in map(str, places):
        if place.startswith("pkg://verl."):
            place = f"file://{source.root.joinpath(*place.removeprefix('pkg://').split('.'))}"
        folders.append(quote(place))
    return f"hydra.searchpath=[{','.join(folders)}]"


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Variables of the job that this process lacks."""
    added = {name: value for name, value in environment.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _apply(config: DictConfig, override: Override) -> Finding | Unknown | None:
    """Apply one override as Hydra does; what is wrong with it, if anything."""
    key, text = override.key_or_group, shown(str(override.input_line))
    if override.package is not None:
        return error(
            "unknown-key", f"{text}: there is no group {shown(key)} to choose from", "drop what follows the @"
        )
    value = override.value()
    try:
        if override.is_delete():
            return _delete(config, override)
        parent = OmegaConf.select(config, key.rpartition(".")[0], throw_on_missing=False)
        if "." in key and parent is not None and not OmegaConf.is_config(parent):
            return Unknown(key, override)
        present = OmegaConf.select(config, key, throw_on_missing=False)
        if override.is_add() and present is not None and not isinstance(value, (dict, list)):
            return error(
                "key-exists", f"{text}: {shown(key)} exists already", f"drop the +: {text.removeprefix('+')}"
            )
        OmegaConf.update(config, key, value, merge=True, force_add=override.is_add() or override.is_force_add())
    except (ConfigAttributeError, ConfigKeyError) as problem:
        # The key in the exception is the deepest, e.g. of an unknown name in a dict value.
        return Unknown(str(problem.full_key or key), override)
    except (OmegaConfBaseException, RecursionError, ValueError, TypeError) as problem:
        told = " ".join(str(problem).split()) or type(problem).__name__
        return error("compose", f"{text}: {told[:200]}", "correct the key or its value")
    return None


def _delete(config: DictConfig, override: Override) -> Finding | Unknown | None:
    key, text = override.key_or_group, shown(str(override.input_line))
    present = OmegaConf.select(config, key, throw_on_missing=False)
    if present is None:
        return Unknown(key, override)
    if override.value() is not None and override.value() != present:
        return error("compose", f"{text}: the value is another one", f"write ~{shown(key)}")
    parent, _, last = key.rpartition(".")
    with open_dict(config):
        node = OmegaConf.select(config, parent) if parent else config
        del node[last]
    return None


def _resolved(config: DictConfig, walk: _Walk) -> dict[str, Any]:
    plain = _plain(config, (), walk)
    assert isinstance(plain, dict)
    return plain


def _plain(node: object, path: tuple[str, ...], walk: _Walk) -> Any:
    """A configuration as dicts, lists and values; what does not resolve becomes UNRESOLVED and a problem."""
    walk.nodes += 1
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    if walk.nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
        if not walk.problems or walk.problems[-1][1] != "it contains itself":
            walk.problems.append((".".join(path[:8]), "it contains itself"))
        return UNRESOLVED
    if isinstance(node, ListConfig):
        return [_one(node, index, (*path, str(index)), walk) for index in range(len(node))]
    return {str(key): _one(node, key, (*path, str(key)), walk) for key in node}


def _one(parent: DictConfig | ListConfig, key: Any, path: tuple[str, ...], walk: _Walk) -> Any:
    if OmegaConf.is_missing(parent, key):
        return "???"
    try:
        value = parent[key]
    except (OmegaConfBaseException, RecursionError, ValueError) as problem:
        told = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        walk.problems.append((".".join(path), told))
        return UNRESOLVED
    return _plain(value, path, walk)


def _unresolved(walk: _Walk, overrides: list[Override]) -> Iterator[Finding]:
    """Interpolations that do not resolve: those that were written, else those of verl that they broke."""
    written = {override.key_or_group: str(override.input_line) for override in overrides}
    problems = list(dict.fromkeys(walk.problems))
    ours = [(key, told) for key, told in problems if any(f"{key}.".startswith(f"{own}.") for own in written)]
    for key, told in (ours or problems)[:10]:
        variable = re.search(r"Environment variable '([^']*)' not found", told)
        if variable is None:
            text = next((written[own] for own in written if f"{key}.".startswith(f"{own}.")), key)
            yield error(
                "interpolation",
                f"{shown(text)} does not resolve: {told[:200]}",
                "write a value, or an existing key",
            )
        elif not variable[1].startswith("SLURM_"):  # Slurm sets its own in the job
            yield error(
                "interpolation",
                f"{shown(key)}: the environment variable {shown(variable[1])} is not set",
                f"set container.env.{shown(variable[1])}, or write the value",
            )
