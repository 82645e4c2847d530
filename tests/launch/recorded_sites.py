"""Sites whose answers are recorded: programs that print them in the place of Slurm's and of the login shell."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.yaml_text import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
SITES = Path(__file__).resolve().parent / "recorded" / "sites"
# $SITE is a folder of SITES.
_PRINTS = """#!/bin/sh
case "$(basename "$0") $*" in
sinfo*) file=sinfo ;;
*" show partition") file=partitions ;;
*" show config") file=config ;;
*" show assoc "*) file=assoc ;;
*" show user "*) file=user ;;
bash*) file=modules ;;
esac
[ -e "$SITE/$file.txt" ] || { echo "sacctmgr: error: slurm_persist_conn_open_without_init: refused" >&2; exit 1; }
exec cat "$SITE/$file.txt"
"""


def put_programs(folder: Path, names: Iterable[str] = ("sinfo", "scontrol", "sacctmgr", "bash")) -> Path:
    """Make the folder with these programs, once."""
    if not folder.exists():
        folder.mkdir()
        for name in names:
            (folder / name).write_text(_PRINTS)
            (folder / name).chmod(0o755)
    return folder


@dataclass(frozen=True)
class Done:
    """A run of the command in an empty folder; `data` is what the file holds."""

    code: int
    out: str
    err: str
    text: str = ""

    @property
    def data(self) -> dict[str, Any]:
        data = parse_yaml(self.text)
        assert isinstance(data, dict)
        return data

    @property
    def flat(self) -> str:
        """The text with its comments in one line each."""
        return " ".join(self.text.replace("\n  #", " ").replace("\n#", " ").split())


def init(folder: Path, site: str | Path, *options: str, **environment: str) -> Done:
    programs = put_programs(folder / "programs")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "launch.init", *options],
        cwd=work,
        env={**variables, "SITE": str(SITES / site), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    written = work / "cluster.yaml"
    return Done(
        done.returncode, done.stdout, done.stderr, written.read_text(encoding="utf-8") if written.is_file() else ""
    )


def on_terminal(folder: Path, site: str | Path, answers: Sequence[bytes], *options: str) -> Done:
    """A run whose questions are answered on a terminal, in this order; `err` is what stood on it."""
    programs = put_programs(folder / "programs")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "launch.init", *options],
        cwd=work,
        env={**variables, "SITE": str(SITES / site), "PYTHONIOENCODING": "utf-8:strict"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        said, left = b"", list(answers)
        with suppress(OSError):  # the terminal is gone with the process
            while data := os.read(master, 1024):
                said += data
                if said.endswith(b"]: "):
                    said += b"\n"
                    os.write(master, left.pop(0))
        code = process.wait(60)
    os.close(master)
    written = work / "cluster.yaml"
    text = written.read_text(encoding="utf-8") if written.is_file() else ""
    assert not left, f"not asked: {left}; {said.decode()}"
    return Done(code, "", said.decode("utf-8", "replace"), text)
