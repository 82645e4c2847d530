"""Runs the commands of a page of docs/ as its reader would: each section's blocks in one bash, in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sections(page: Path) -> dict[str, str]:
    """Commands of each section that has any, by its heading; those before the first by the empty one."""
    parts = re.split(r"^## (.*)\n", "## \n" + page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {
        heading: "".join(_BLOCK.findall(text)) for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {heading: commands for heading, commands in found.items() if commands}


def code_block(page: Path, kind: str) -> str:
    """The page's one block of this kind."""
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


def run(
    commands: str, folder: Path, stands_in: str = "", timeout_s: float = 1200, wrapper: tuple[str, ...] = ()
) -> str:
    """Run commands in one bash in `folder`; the first that fails ends it.

    Args:
        stands_in: bash before them: functions in the place of what cannot run here.
        wrapper: words before `bash`, for other namespaces.

    Returns:
        What they printed, with each command before its output.

    Raises:
        AssertionError: one ended with another code than 0, or it took longer than `timeout_s`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PYTEST_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PS4": "+ ",
        "PYTHONPATH": str(ROOT),
    }
    script = f"set -euo pipefail\n{stands_in}\nset -x\n{commands}"
    done = subprocess.run(
        [*wrapper, "bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
    return done.stdout
