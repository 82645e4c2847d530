"""Values as Slurm writes them. They go into #SBATCH lines, which nothing quotes."""

import re
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints

from launch.config.base import SLURM_WORD

_TIME = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}")
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
# Options that the launcher sets itself, and those that would break one task a node.
_OWN_OPTIONS = {
    "array", "chdir", "cpus-per-gpu", "cpus-per-task", "error", "gpus", "gpus-per-node", "gpus-per-task",
    "job-name", "mem", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "output", "tasks-per-node", "time", "wrap",
}  # fmt: skip
_OWN_LETTERS = set("acDeGJnNot")


def _written_as(pattern: re.Pattern[str], what: str) -> BeforeValidator:
    """Accept text of a pattern."""

    def check(value: object) -> object:
        if isinstance(value, str) and not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not a Slurm {what}")
        return value

    return BeforeValidator(check)


def _option(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"--([a-z][a-z-]*)(=[^\s'\"\\#;]+)?|-([A-Za-z])([^\s'\"\\#;]*)", value)
    if match is None:
        raise ValueError(f"{value!r} is not one sbatch option; write it as --name=value, without spaces or quotes")
    name, letter = match[1], match[3]
    # Slurm completes abbreviations: --node is --nodes.
    own = sorted(option for option in _OWN_OPTIONS if name and option.startswith(name))
    if own or letter in _OWN_LETTERS:
        shown = f" (--{own[0]})" if own else ""
        raise ValueError(f"{value!r} is an option that the job sets itself{shown}; use the fields of cluster")
    return value


SlurmTime = Annotated[str, _written_as(_TIME, "time; write minutes, H:MM:SS, D-H or D-H:MM:SS")]
SlurmMemory = Annotated[str, _written_as(_MEMORY, "memory size; write 900G, 64000M or 0 for all of the node")]
SlurmWord = Annotated[str, StringConstraints(pattern=SLURM_WORD)]
SbatchOption = Annotated[str, BeforeValidator(_option)]
