"""Environment modules that bring a container program: Lmod and both kinds of Environment Modules."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = "launch-init: modules"
# A login shell: batch shells of many sites have no `module`, and its start may print a message of the day.
# Lmod and Tcl modules print to the error output; a pager would wait.
LIST = (
    "bash",
    "-lc",
    "export PAGER=cat MODULES_PAGER= MODULES_COLOR=never LMOD_PAGER=none LMOD_COLORIZE=no; exec 2>&1; "
    f"type module >/dev/null 2>&1 && echo '{_MARK} here' || {{ echo '{_MARK} none'; exit 0; }}; "
    'module -t avail; [ -z "${LMOD_CMD-}" ] || module -t spider apptainer singularity singularitypro; exit 0',
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What a listing adds to a name: (default), (D), (L,D), (@), <L>.
_TAGS = re.compile(r"\s*(?:\(([^()]*)\)|<[^<>]*>)\s*$")
_KINDS = ("apptainer", "singularitypro", "singularity-pro", "singularity-ce", "singularityce", "singularity")
_NAME = re.compile(rf"(?:[\w.+-]+/)*({'|'.join(_KINDS)})(?:/([\w.+/-]+))?", re.IGNORECASE)


@dataclass(frozen=True)
class Module:
    """A module of a container program; `kind` in lower case (apptainer, singularitypro, ...)."""

    name: str
    kind: str
    version: str
    default: bool = False

    @property
    def runtime(self) -> str:
        """The program that it brings."""
        return "apptainer" if self.kind == "apptainer" else "singularity"


def parse_modules(text: str) -> list[Module] | None:
    """Modules of container programs by what `LIST` prints, the best first; None where there is no `module`.

    Best is what the site marks as default, then the newest; Apptainer before the Singularities.
    """
    _, mark, rest = _ESCAPES.sub("", text).rpartition(_MARK)
    if not mark or not rest.lstrip().startswith("here"):
        return None
    found: dict[str, Module] = {}
    for line in rest.splitlines()[1:]:
        default, name = False, line.strip()
        while tags := _TAGS.search(name):
            default |= bool({"default", "D"} & set((tags[1] or "").split(",")))
            name = name[: tags.start()]
        match = _NAME.fullmatch(name.rstrip("/")) if not line.rstrip().endswith(":") else None
        if match is None:
            continue
        known = found.get(match[0])
        found[match[0]] = Module(
            match[0], match[1].lower(), match[2] or "", default or bool(known and known.default)
        )
    versioned = {one.name.rpartition("/")[0] for one in found.values() if one.version}
    kept = [one for one in found.values() if one.version or one.name not in versioned]
    return sorted(kept, key=_rank, reverse=True)


def _rank(module: Module) -> tuple[int, bool, list[tuple[int, str]], str]:
    parts = re.findall(r"[0-9]+|[a-z]+", module.version.lower())
    # 1.4.0 is newer than 1.4.0-rc1: a word counts less than the end.
    numbers = [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
    return -_KINDS.index(module.kind), module.default, [*numbers, (0, "")], module.name
