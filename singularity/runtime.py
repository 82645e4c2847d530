"""The container program of this machine: which one, its version, and how it builds for a user without root."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

RuntimeName = Literal["apptainer", "singularity"]
# Of the caller's own settings, those that would reach into the build: binds and variables of a job's containers,
# and another kind of image, architecture or place to build (each is an option of `build` in some release).
_NOT_FOR_A_BUILD = re.compile(
    r"(?:APPTAINER|SINGULARITY)(?:ENV_.*|_(?:BIND|BINDPATH|MOUNT|CONTAIN|CONTAINALL|CLEANENV|NV|NVCCLI|ROCM"
    r"|WRITABLE|WRITABLE_TMPFS|OVERLAY|OVERLAYIMAGE|FAKEROOT|NOTEST|FORCE|UPDATE|SANDBOX|SECTION|HOME|WORKDIR"
    r"|DATA|JSON|BUILD_ARCH|BUILD_ARCH_VARIANT|USERNS|REMOTE|DETACHED|BUILDER))"
)
_HOST_PYTHON = re.compile(r"PYTHON.*|PIP_.*|_?CONDA.*|VIRTUAL_ENV.*")
_VERSION = re.compile(
    r"^(\S*(?:apptainer|singularity)\S*)\D+?(\d{1,6}(?:\.\d{1,6})*)", re.MULTILINE | re.IGNORECASE
)


class RuntimeMissing(RuntimeError):
    """No container program that can do it; the message says what was looked for and the remedy."""


class Runtime(NamedTuple):
    """A container program.

    `flavour` is what it calls itself; SingularityPRO's 3.x and SingularityCE share the name of the program.
    """

    name: RuntimeName
    path: str
    flavour: Literal["Apptainer", "SingularityCE", "SingularityPRO", "Singularity"]
    version: tuple[int, ...]

    @property
    def prefix(self) -> str:
        """Of its variables: APPTAINER or SINGULARITY."""
        return "APPTAINER" if self.flavour == "Apptainer" else "SINGULARITY"

    @property
    def login(self) -> str:
        """Its command for a registry; `remote login` was it before, and is deprecated."""
        since = (1, 3) if self.flavour == "Apptainer" else (4,)
        return f"{self.name} {'registry' if self.version >= since else 'remote'} login"

    @property
    def takes_mksquashfs_args(self) -> bool:
        """Its changelog has the option of `build` in 1.4.0; no release of SingularityCE has it."""
        return self.flavour == "Apptainer" and self.version >= (1, 4)

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}"


def find_runtime(wanted: Literal["auto", "apptainer", "singularity"], environ: Mapping[str, str]) -> Runtime:
    """The program on PATH; Apptainer where both are.

    Raises:
        RuntimeMissing: there is none, or it does not say its version.
    """
    names: tuple[RuntimeName, ...] = ("apptainer", "singularity") if wanted == "auto" else (wanted,)
    broken: RuntimeMissing | None = None
    for name in names:
        path = shutil.which(name, path=environ.get("PATH"))
        if path:
            try:
                return _asked(name, path)
            except RuntimeMissing as missing:
                broken = broken or missing
    raise broken or RuntimeMissing(
        f"no {' or '.join(names)} in PATH of this machine; load its module first (module avail singularity), or"
        " build where it is: --print-def shows the definition, which every such program takes"
    )


def _asked(name: RuntimeName, path: str) -> Runtime:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeMissing(f"{path} --version: {error}; name another program with --runtime") from error
    runtime = parse_version(name, path, done.stdout)
    if done.returncode != 0 or runtime is None:
        said = (done.stdout + done.stderr).strip()[:200]
        raise RuntimeMissing(f"{path} --version says {said!r} and no version; name another program with --runtime")
    return runtime


def parse_version(name: RuntimeName, path: str, said: str) -> Runtime | None:
    """What `--version` tells: "apptainer version 1.4.5", "singularity-ce version 4.1.2-jammy",
    "SingularityPRO version 3.11-8.el8", "singularity version 3.8.7"; None where it is something else."""
    found = _VERSION.search(said)
    if not found:
        return None
    called = found[1].lower()
    version = tuple(int(part) for part in found[2].split("."))
    if "apptainer" in called:
        return Runtime(name, path, "Apptainer", version)
    if "pro" in called:
        return Runtime(name, path, "SingularityPRO", version)
    return Runtime(name, path, "SingularityCE" if "ce" in called else "Singularity", version)


def fakeroot_options(runtime: Runtime, wanted: Literal["auto", "yes", "no"], *, uid: int) -> list[str]:
    """The option that lets a user without root build.

    Apptainer takes it by itself from 1.1 on (its changelog: "--fakeroot is implied"), and where a user has no
    subordinate ids it maps root alone. SingularityCE and SingularityPRO want it named, and the ids.

    Raises:
        RuntimeMissing: the user has no subordinate ids, and the program needs them.
    """
    if wanted != "auto":
        return ["--fakeroot"] if wanted == "yes" else []
    if uid == 0 or (runtime.flavour == "Apptainer" and runtime.version >= (1, 1)):
        return []
    user = user_name(uid)
    if runtime.flavour != "Apptainer" and not has_subordinate_ids(uid, user):
        if runtime.version >= (3, 11) and shutil.which("proot"):
            return []  # it takes proot by itself
        raise RuntimeMissing(
            f"user {user} has no line in /etc/subuid of this machine, and {runtime} builds without root only with"
            f" one; ask the site for: singularity config fakeroot --add {user}; or build with Apptainer 1.1 or"
            " later, or as root on another machine. --fakeroot yes tries all the same"
        )
    return ["--fakeroot"]


def has_subordinate_ids(uid: int, user: str, file: Path = Path("/etc/subuid")) -> bool:
    """Whether the file, or the site's directory through getsubids, gives the user ids for a namespace."""
    if file.is_file():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        if any(line.split(":")[0] in (user, str(uid)) for line in lines if line.count(":") == 2):
            return True
    tool = shutil.which("getsubids")
    return bool(tool) and subprocess.run([str(tool), user], capture_output=True, check=False).returncode == 0


def user_name(uid: int) -> str:
    """The name of a user; the number where this machine knows no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def build_environment(
    runtime: Runtime, environ: Mapping[str, str], temporary: Path, cache: Path | None
) -> dict[str, str]:
    """The caller's variables for the program: without its Python and what is meant for containers of a job.

    Proxies stay: the program itself uses them, and hands http_proxy and its like on to %post.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not _HOST_PYTHON.fullmatch(name) and not _NOT_FOR_A_BUILD.fullmatch(name)
    }
    # A relative one would count from the folder that the program runs in, which goes with the build.
    chosen = cache or folder_setting(runtime, "CACHEDIR", environ)
    settings = {"TMPDIR": temporary} | ({"CACHEDIR": Path(chosen).absolute()} if chosen else {})
    for name, folder in settings.items():
        kept.pop(f"APPTAINER_{name}", None)
        kept.pop(f"SINGULARITY_{name}", None)
        kept[f"{runtime.prefix}_{name}"] = os.fspath(folder)
    return kept


def folder_setting(runtime: Runtime, name: str, environ: Mapping[str, str]) -> str | None:
    """What the caller's TMPDIR or CACHEDIR for the program is; Apptainer reads SINGULARITY_... as well."""
    own = environ.get(f"{runtime.prefix}_{name}")
    return own or (environ.get(f"SINGULARITY_{name}") if runtime.flavour == "Apptainer" else None) or None


def default_cache(runtime: Runtime, environ: Mapping[str, str]) -> Path | None:
    """Where the program keeps what it downloads; None where no home folder is known for it."""
    if chosen := folder_setting(runtime, "CACHEDIR", environ):
        return Path(chosen).absolute()
    home = environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(home) / f".{runtime.prefix.lower()}" / "cache"
