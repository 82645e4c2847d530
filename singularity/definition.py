"""The definition of a stack's image: a pure function from stack to text.

The text has no build arguments: SingularityCE and SingularityPRO take those from 4.0 on, Apptainer from 1.2 on.
"""

import re
from pathlib import Path
from typing import NamedTuple

import jinja2

from singularity.addresses import holds_secret, masked
from singularity.stack import STACKS, Stack
from singularity.toolkit import IN_IMAGE, PACKAGES
from singularity.versions import normalised

# What pyproject.toml asks for in its dependencies and in data, reward and convert; a test compares them.
TOOLKIT_REQUIREMENTS = (
    "argcomplete>=3.5",
    "hydra-core>=1.3.2,<1.4",
    "jinja2>=3.1",
    "pydantic>=2.7,<3",
    "pyyaml>=6.0",
    "numpy>=1.26",
    "pyarrow>=17",
    "tqdm>=4.66",
    "aiohttp>=3.9",
    "fastapi>=0.115",
    "httptools>=0.6",
    "matplotlib>=3.8",
    "prometheus_client>=0.20",
    "requests>=2.32",
    "torch>=2.6",
    "transformers>=4.56",
    "urllib3>=1.26",
    "uvicorn>=0.30",
    "isal>=1.6",
)
VENV = "/opt/venv"  # of a stack for CPU: its base has nothing but Python
BASE_PACKAGES = "/opt/base-packages.txt"  # what the base had, as constraints for pip
SETTINGS = "/mnt"  # every Debian and Ubuntu has it, and an unprivileged build cannot make a place for a mount
_BASE = re.compile(r"(?P<bootstrap>[a-z][a-z0-9-]*)://(?P<reference>\S(?:.*\S)?)")
_LOCAL = ("localimage", "docker-archive", "oci-archive", "oci")
_KNOWN = ("docker", "library", "oras", "shub", "docker-daemon", *_LOCAL)


class DefinitionError(ValueError):
    """A base that cannot be one; the message names it, the rule and the remedy."""


class _RequirementFile(NamedTuple):
    path: str  # in the toolkit
    no_deps: bool
    torch: str | None  # its pin, which is installed first and alone


def definition(stack: Stack, base: str | None = None) -> str:
    """The whole text of the definition.

    Args:
        base: what the image starts from, instead of the stack's own base: BOOTSTRAP://REF.

    Raises:
        DefinitionError: the base cannot be one.
    """
    bootstrap, reference = split_base(base or stack.base.value)
    venv = VENV if stack.device == "cpu" else ""
    adds = {normalised(name): fact.value for name, fact in stack.adds.items()}
    own = {} if _is_in_requirements(stack) else {"verl": stack.verl}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("image.def.j2").render(
        stack=stack,
        bootstrap=bootstrap,
        reference=reference,
        packages=PACKAGES,
        toolkit=IN_IMAGE,
        base_packages=BASE_PACKAGES,
        settings=SETTINGS,
        venv=venv,
        requirement_files=[_requirement_file(path) for path in stack.requirement_files],
        # The requirements of a stack for CPU name all that the toolkit needs, too.
        extras=() if venv else TOOLKIT_REQUIREMENTS,
        adds=sorted({**own, **adds}.items()),
        changes=sorted({*own, *adds, *_pins_of_requirements(stack)}),
    )


def split_base(base: str) -> tuple[str, str]:
    """Bootstrap and reference of BOOTSTRAP://REF; a path on this machine becomes an absolute one.

    Raises:
        DefinitionError: it has another form, or holds a password or what a definition cannot.
    """
    found = _BASE.fullmatch(base)
    local = found is not None and found["bootstrap"] in _LOCAL  # a path may have an @
    shown = base if local else masked(base)
    if not found or found["bootstrap"] not in _KNOWN:
        raise DefinitionError(f"--from {shown!r}: it is BOOTSTRAP://REF, with one of {', '.join(sorted(_KNOWN))}")
    bootstrap, reference = found["bootstrap"], found["reference"]
    if not local and holds_secret(reference):
        raise DefinitionError(
            f"--from {shown!r}: a password or token would be kept in the image; set APPTAINER_DOCKER_USERNAME and"
            " APPTAINER_DOCKER_PASSWORD (SINGULARITY_... for SingularityCE), or log in: apptainer registry login"
        )
    if not reference.isprintable() or "{{" in reference or "}}" in reference or "#" in reference:
        raise DefinitionError(
            f"--from {shown!r}: a definition cannot hold '{{{{', '#' or control characters there"
        )
    if local:
        try:
            reference = str(Path(reference).expanduser().absolute())
        except RuntimeError:
            raise DefinitionError(
                f"--from {base!r}: the home folder that ~ stands for is not known; name the path from / on"
            ) from None
    elif " " in reference:
        raise DefinitionError(f"--from {shown!r}: an address holds no blanks")
    return bootstrap, reference


def _is_in_requirements(stack: Stack) -> bool:
    return "verl" in _pins_of_requirements(stack)


def _pins_of_requirements(stack: Stack) -> set[str]:
    """Names that the stack's requirements*.txt pin."""
    lines = (line for file in stack.requirement_files for line in file.read_text(encoding="utf-8").splitlines())
    return {normalised(found[0]) for line in lines if (found := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))}


def _requirement_file(path: Path) -> _RequirementFile:
    pin = re.search(r"^torch==[^\s;#]+", path.read_text(encoding="utf-8"), re.MULTILINE)
    inside = f"singularity/stacks/{path.relative_to(STACKS)}"
    return _RequirementFile(inside, "nodeps" in path.name, pin[0] if pin else None)
