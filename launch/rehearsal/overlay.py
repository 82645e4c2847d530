# PYTHON_ARGCOMPLETE_OK
"""An environment like this one, with another version of verl.

python -m launch.rehearsal.overlay --verl 0.8.0 --out .envs/verl-0.8.0
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from singularity.command_line import CommandParser, fail, named, run, told

VERSIONS = ("0.8.0",)
_NOTES = """\
verl 0.8.0 runs on the packages that are pinned for 0.9.1 (0.6.1 does not), so that it needs no environment of \
its own: DIR is a venv that holds verl's wheel and nothing else, and takes every other package from the \
environment of the Python that runs this. A rehearsal runs with it by LAUNCH_PYTHON=DIR/bin/python.
"""


class OverlayError(RuntimeError):
    """pip could not install verl, or the folder is in the way."""


def make_overlay(verl: str, out: Path) -> Path:
    """Make the environment, complete or not at all; one that is there already is kept.

    Args:
        verl: Version on the package index.
        out: Folder of the new environment.

    Returns:
        Its Python.

    Raises:
        OverlayError: `out` is something else, or pip failed (its output is in the message).
    """
    out = out.absolute()
    record = out / f"verl-{verl}"
    python = out / "bin" / "python"
    if record.is_file():
        return python
    if out.exists():
        raise OverlayError(f"{out} exists and is no overlay with verl {verl}: remove it, or choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    # A venv knows its place by bin/python alone, so that it can be renamed.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        part = Path(scratch) / "part"
        venv.create(part, with_pip=False, symlinks=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(part)})
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        command += ["--target", packages, f"verl=={verl}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OverlayError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        # addsitedir also follows the .pth files there: the toolkit may be installed by one.
        below = sysconfig.get_path("purelib")
        (Path(packages) / "_overlay.pth").write_text(f"import site; site.addsitedir({below!r})\n")
        (part / record.name).touch()
        part.rename(out)
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 made, 1 failed, 2 usage."""
    parser = CommandParser(
        "launch.rehearsal.overlay",
        "Make an environment like this one, with another version of verl.",
        notes=_NOTES,
        examples=["python -m launch.rehearsal.overlay --verl 0.8.0 --out .envs/verl-0.8.0"],
        exit_codes={0: "made, or there already", 1: "not made", 2: "usage"},
    )
    parser.add_argument("--verl", choices=VERSIONS, default=VERSIONS[-1], help="version of verl [%(default)s]")
    parser.add_argument("--out", type=named, required=True, metavar="DIR", help="folder of the environment")
    arguments = parser.parse_args(argv)
    try:
        print(make_overlay(arguments.verl, arguments.out))
    except (OverlayError, OSError) as error:
        return fail(told(error))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
