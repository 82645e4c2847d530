# PYTHON_ARGCOMPLETE_OK
"""Check the trainer's command inside the job, before Ray starts, with the verl, files and environment there.

    python -m launch.engines.verify --verl 0.9.1 -- -m MODULE --config-name=NAME OVERRIDE...

It takes about a second and imports neither verl nor torch.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from singularity.command_line import CommandParser, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

from launch.engines.command import TrainerCommand
from launch.engines.compose import compose_command, value_at
from launch.engines.config_rules import check_composed
from launch.engines.source import Source, installed_version
from launch.engines.wording import shown
from launch.finding import Finding, error
from singularity.agreement import differences
from singularity.installed import installed_packages
from singularity.stack import StackError, load_stack, stack_names

_CONFIG_NAME = "--config-name="
_FILES = (
    "data.train_files",
    "data.val_files",
    "data.custom_cls.path",
    "custom_reward_function.path",
    "reward.custom_reward_function.path",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
)


def verify(version: str, command: TrainerCommand, stack: str | None = None) -> list[Finding]:
    """Everything wrong with `command` here, where verl `version`, and the packages of a stack, should be."""
    return [*(_packages(stack) if stack is not None else ()), *_composed(version, command)]


def _packages(name: str) -> Iterator[Finding]:
    """Packages here that are not as the stack has them.

    Raises:
        StackError: there is no such stack.
    """
    stack = load_stack(name)
    for one in differences(stack, installed_packages()):
        has = f"has {one.package} {one.found}" if one.found else f"has no {one.package}"
        yield error(
            "stack-package",
            f"this image {has}; stack {name} has {one.wanted}",
            f"build it again (python -m singularity.build --stack {name}), or set container.stack to what it is",
        )


def _composed(version: str, command: TrainerCommand) -> list[Finding]:
    found = installed_version()
    if found is None:
        return [
            error("engine-version", f"this image has no verl, the job was rendered for {version}", "use another")
        ]
    if found[0] != version:
        message = f"this image has verl {found[0]}, the job was rendered for {version}"
        return [
            error("engine-version", message, f"set engine.verl={found[0]}, or use an image with verl {version}")
        ]
    source = Source(version, found[1], "installed")
    composed = compose_command(command, source, environment={})
    findings = check_composed(composed, command, source)
    if not isinstance(composed, list):
        findings += _missing(composed.config)
    return findings


def _missing(config: dict[str, Any]) -> Iterator[Finding]:
    """Files and model folders that the trainer will open and that are not readable here."""
    for key, text, is_model in _named(config):
        path = Path(text).expanduser()
        if "://" in text or _made_later(path):
            continue
        if is_model and not path.is_absolute() and not path.exists():
            if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
                yield _unreadable(key, text, "no such folder, and HF_HUB_OFFLINE forbids to fetch it")
            continue
        try:
            # Opened and not asked for by mode: a file system of a cluster may refuse what the mode allows.
            if path.is_dir():
                os.listdir(path)  # noqa: PTH208 - no order and no Path is wanted
                path = path / "config.json" if is_model and not _is_mcore(path) else path
            if not path.is_dir():
                with path.open("rb") as file:
                    empty = not file.read(1)
                if empty:
                    yield _unreadable(key, str(path), "it is empty")
        except OSError as problem:
            yield _unreadable(key, str(path), str(problem.strerror or problem))


def _named(config: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(key, path, whether it is a model) of what the configuration names and the trainer will read."""
    models = ["actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path"]
    if value_at(config, "algorithm.adv_estimator") == "gae" or value_at(config, "critic.enable"):
        models.append("critic.model.path")
    for role in ("actor", "ref"):
        section = f"actor_rollout_ref.{role}.megatron"
        if value_at(config, f"{section}.use_dist_checkpointing"):
            models.append(f"{section}.dist_checkpointing_path")
    for key in (*models, *_FILES):
        value = value_at(config, key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one:
                yield key, one, key in models


def _made_later(path: Path) -> bool:
    """Whether a missing path is below the run directory, where the job makes it before the trainer starts."""
    run = os.environ.get("RUN_DIR")
    return bool(run) and path.absolute().is_relative_to(Path(str(run)).absolute()) and not path.exists()


def _is_mcore(path: Path) -> bool:
    return (path / "metadata.json").is_file() or (path / "common.pt").is_file()


def _unreadable(key: str, path: str, why: str) -> Finding:
    return error(
        "unreadable",
        f"{key}: {shown(path, 300)}: {why}",
        "correct the path, or add its folder to container.binds so that it is seen in the container",
    )


def _command(arguments: Sequence[str], parser: argparse.ArgumentParser) -> TrainerCommand:
    if len(arguments) < 3 or arguments[0] != "-m" or not arguments[2].startswith(_CONFIG_NAME):
        parser.error(f"after -- comes the trainer's command: -m MODULE {_CONFIG_NAME}NAME OVERRIDE...")
    return TrainerCommand(arguments[1], arguments[2].removeprefix(_CONFIG_NAME), tuple(arguments[3:]))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = CommandParser(
        "launch.engines.verify",
        "Check a trainer's command with the installed verl, before Ray starts.",
        notes="The command is what follows --: -m MODULE --config-name=NAME OVERRIDE...",
        examples=[
            "python -m launch.engines.verify --verl 0.9.1 -- -m verl.trainer.main_ppo \\\n"
            "    --config-name=ppo_trainer algorithm.adv_estimator=grpo \\\n"
            "    data.train_files=data/train.parquet data.val_files=data/test.parquet \\\n"
            "    actor_rollout_ref.model.path=models/Qwen3-4B \\\n"
            "    actor_rollout_ref.actor.use_dynamic_bsz=true \\\n"
            "    actor_rollout_ref.rollout.name=vllm"
        ],
        exit_codes={0: "nothing wrong", 1: "something is wrong", 2: "usage"},
    )
    parser.add_argument(
        "--verl", required=True, metavar="VERSION", help="the version that the job was rendered for"
    )
    stack = parser.add_argument("--stack", metavar="NAME", help="compare the installed packages with this stack")
    stack.completer = lambda **_: stack_names()  # type: ignore[attr-defined]
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- ...", help="the trainer's command")
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    try:
        findings = verify(arguments.verl, _command(command, parser), arguments.stack)
    except StackError as wrong:
        parser.error(f"--stack: {wrong}")
    for finding in findings:
        print(finding.line(), file=sys.stderr)
    broken = any(finding.severity == "error" for finding in findings)
    if arguments.json:
        print(json.dumps({"findings": [finding.__dict__ for finding in findings]}, indent=2))
    elif not broken:
        print(f"verl {arguments.verl}: the trainer's configuration composes")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(run(main))
