"""Sites whose answers are recorded: programs that print them in the place of Slurm's and of the login shell."""

from collections.abc import Iterable
from pathlib import Path

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
