"""Everything that is wrong with a trainer command, by the configuration and the source of one verl version."""

from collections.abc import Mapping

from launch.engines.command import TrainerCommand
from launch.engines.compose import IN_THE_JOB, Composed, compose_command
from launch.engines.config_sections import Classes
from launch.engines.key_rules import check_inert_keys, check_unknown_keys, check_unread_keys
from launch.engines.source import Source
from launch.engines.value_rules import check_refused_values, check_reward_manager, check_types, check_unset_keys
from launch.finding import Finding


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
    classes = Classes(composed.config, source)
    return [
        *composed.findings,
        *check_unknown_keys(composed, classes, source),
        *check_unread_keys(composed, classes, source),
        *check_types(composed, classes),
        *check_refused_values(composed, classes, source.version),
        *check_unset_keys(composed),
        *check_reward_manager(composed, source),
        *check_inert_keys(composed, command, source),
    ]
