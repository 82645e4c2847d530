"""Environment modules that bring a container program: Lmod and both kinds of Environment Modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_MARK = "launch-init: modules "
# A login shell: batch shells of many sites have no `module`; its start may print a message of the day, or leave
# `set -e` on.
# Both kinds print to the error output; a pager would wait. Lmod marks no default, and its `avail` hides modules
# that need another one first.
LIST = (
    "bash",
    "-lc",
    "set +eu; export PAGER=cat MODULES_PAGER= MODULES_COLOR=never LMOD_PAGER=none LMOD_COLORIZE=no; exec 2>&1; "
    f"type module >/dev/null 2>&1 || {{ echo '{_MARK}none'; exit 0; }}; "
    f"echo; echo '{_MARK}here'; module -t avail; [ -n \"${{LMOD_CMD-}}\" ] || exit 0; "
    f"echo '{_MARK}defaults'; module -t -d avail; "
    f"echo '{_MARK}spider'; for name in apptainer singularity singularitypro; do module -t spider $name; done; "
    "exit 0",
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What a listing adds to a name: (default), (default:stable), (D), (L,D), (@), <L>.
_TAGS = re.compile(r"\s*(?:\(([^()]*)\)|<[^<>]*>)\s*$")
_KINDS = ("apptainer", "singularitypro", "singularity-pro", "singularity-ce", "singularityce", "singularity")
_NAME = re.compile(rf"(?:[\w.+-]+/)*({'|'.join(_KINDS)})(?:/([\w.+/-]+))?", re.IGNORECASE)
_PROGRAM = re.compile("apptainer|singularity", re.IGNORECASE)
_WORD = re.compile(r"[\w.+/-]{1,200}")


@dataclass(frozen=True)
class Module:
    """A module of a container program.

    Attributes:
        kind: in lower case: apptainer, singularitypro, ...
        default: the site's choice among the versions.
        direct: it can be loaded as it is; false: only `module spider` lists it.
    """

    name: str
    kind: str
    version: str
    default: bool = False
    direct: bool = True

    @property
    def runtime(self) -> str:
        """The program that it brings."""
        return "apptainer" if self.kind == "apptainer" else "singularity"


def was_asked(text: str) -> bool:
    """Whether what `LIST` printed says if there is a `module`; a login shell may end before it."""
    return bool({"none", "here"} & _sections(text).keys())


def _sections(text: str) -> dict[str, str]:
    parts = re.split(rf"^{_MARK}(\w+)[ \t\r]*$", _ESCAPES.sub("", text), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))  # noqa: B905 (Python 3.10)


def perhaps_modules(text: str) -> list[str]:
    """Modules whose names only hold that of a container program: apptainer-1.1.9-gcc-12.2.0-xyz."""
    found = []
    for line in _sections(text).get("here", "").splitlines():
        name = _untagged(line)[0]
        if _WORD.fullmatch(name) and _PROGRAM.search(name) and not _NAME.fullmatch(name) and not _is_hidden(name):
            found.append(name)
    return list(dict.fromkeys(found))


def parse_modules(text: str) -> list[Module] | None:
    """Modules of container programs by what `LIST` prints, the best first; None where it names no `module`.

    Best is what can be loaded at once; then Apptainer before the Singularities; then the site's default, and then
    the newest.
    """
    sections = _sections(text)
    if "here" not in sections:
        return None
    found: dict[str, Module] = {}
    for one in _listed(sections["here"]):
        found[one.name] = one
    for one in _listed(sections.get("defaults", "")):
        if one.name in found:
            found[one.name] = replace(one, default=True)
    for one in _listed(sections.get("spider", "")):
        found.setdefault(one.name, replace(one, direct=False))
    versioned = {one.name.rpartition("/")[0] for one in found.values() if one.version}
    kept = [one for one in found.values() if one.version or one.name not in versioned]
    return sorted(kept, key=_rank, reverse=True)


def _listed(text: str) -> Iterator[Module]:
    """Modules of a terse listing: a name on each line, folders end with a colon."""
    for line in text.splitlines():
        name, default = _untagged(line)
        match = _NAME.fullmatch(name)
        if match is not None and not _is_hidden(name):
            yield Module(match[0], match[1].lower(), match[2] or "", default)


def _untagged(line: str) -> tuple[str, bool]:
    """A line's name and whether it is the default; "" for the line of a folder."""
    default, name = False, line.strip()
    while tags := _TAGS.search(name):
        default |= bool({"default", "D"} & set(re.split("[,:]", tags[1] or "")))
        name = name[: tags.start()]
    return "" if name.endswith(":") else name.rstrip("/"), default


def _is_hidden(name: str) -> bool:
    """By its site, from users: what begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def _rank(module: Module) -> tuple[bool, int, bool, list[tuple[int, str]], str]:
    parts = re.findall(r"[0-9]+|[a-z]+", module.version.lower())
    # 1.4.0 is newer than 1.4.0-rc1: a word counts less than the end.
    numbers = [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
    return module.direct, -_KINDS.index(module.kind), module.default, [*numbers, (0, "")], module.name
