"""Ask an image for its packages by running its own Python in it, apart from this machine."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity import installed
from singularity.running import drained, end_session

_PROGRAMS = ("apptainer", "singularity")
_MOST_OUTPUT, _MOST_ERRORS = 8 << 20, 1 << 20  # bytes
_GRACE_S = 2.0  # for the container program to take its mounts away
# Of its settings in the environment: places for its files, and keys of encrypted images. The rest would bring
# folders and variables of this machine into the image.
_KEPT = ("CACHEDIR", "TMPDIR", "CONFIGDIR", "ENCRYPTION_PASSPHRASE", "ENCRYPTION_PEM_PATH")


class ProbeError(RuntimeError):
    """The image could not be asked; the message says why."""


@dataclass(frozen=True)
class Inside:
    """What the Python of an image says."""

    python: str
    packages: dict[str, str]  # version by normalised name


def container_program() -> str | None:
    """apptainer or singularity, whichever is in PATH."""
    return next((found for name in _PROGRAMS if (found := shutil.which(name))), None)


def ask(image: Path, program: str, timeout_s: float) -> Inside:
    """Run `installed.py` with the image's python3, without this machine's environment, home and folders.

    Raises:
        ProbeError: it could not be started, failed, took longer than `timeout_s`, or answered something else.
    """
    command = [program, "exec", "--cleanenv", "--contain", "--no-home", "--pwd", "/", str(image.absolute())]
    output, errors, code = _run([*command, "python3", "-s", "-B", "-"], Path(installed.__file__), timeout_s)
    if code:
        last = " | ".join(errors.decode("utf-8", "replace").split("\n")[-4:]).strip(" |")
        raise ProbeError(f"{program} exec ended with {code}: {last or 'it says nothing'}")
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        with suppress(ValueError, RecursionError):
            return _answer(json.loads(line))
    raise ProbeError(f"its python3 answered {output[:200].decode('utf-8', 'replace')!r}, not with its packages")


def _answer(data: Any) -> Inside:
    if not isinstance(data, dict) or not isinstance(data.get("packages"), dict):
        raise ValueError("another answer")
    packages = {str(name): str(version) for name, version in data["packages"].items()}
    return Inside(str(data.get("python", "")), packages)


def environment(mine: Mapping[str, str]) -> dict[str, str]:
    """What the container program gets of this environment."""
    kept = {f"{prefix}_{name}" for prefix in ("APPTAINER", "SINGULARITY") for name in _KEPT}
    return {
        name: value
        for name, value in mine.items()
        if name in kept or not name.startswith(("APPTAINER", "SINGULARITY"))
    }


def _run(command: list[str], script: Path, timeout_s: float) -> tuple[bytes, bytes, int]:
    """Standard output, standard error and exit code; what a process writes without end ends it."""
    with script.open("rb") as stdin:
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(os.environ),
                start_new_session=True,
            )
        except OSError as wrong:
            raise ProbeError(f"{command[0]}: {wrong.strerror}") from wrong
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with process.stdout, process.stderr:
            output, errors, why = drained(
                process, time.monotonic() + timeout_s, lambda out, err: out > _MOST_OUTPUT or err > _MOST_ERRORS
            )
    finally:
        end_session(process, _GRACE_S)  # and what it started, such as the process that mounts the image
    if why == "late":
        raise ProbeError(f"no answer within {timeout_s:g} s; give it more: --timeout SECONDS")
    if process.poll() is None:
        raise ProbeError(f"{command[0]} cannot be ended: its file system may not answer")
    return output, errors, process.returncode
