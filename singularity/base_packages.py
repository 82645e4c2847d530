"""What the base of an image has, before and after the stack is installed over it.

Standard library only and Python 3.9+: it runs with what the base has.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from singularity.installed import installed_packages


def frozen(packages: Mapping[str, str], but: Sequence[str] = ()) -> list[str]:
    """Constraints for pip that keep these packages as they are, without those named in `but`."""
    return [f"{name}=={version}" for name, version in sorted(packages.items()) if name not in but]


def read_pins(path: Path) -> dict[str, str]:
    """NAME==VERSION of each line."""
    pairs = (line.partition("==") for line in path.read_text(encoding="utf-8").splitlines() if line)
    return {name: version for name, _, version in pairs}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One line for each package that has another version now, or is gone."""
    return [
        f"{name} was {version} in the base and is {now.get(name, 'not installed')} now"
        for name, version in before.items()
        if now.get(name) != version
    ]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command; returns 1 where a package changed."""
    parser = argparse.ArgumentParser(prog="python -m singularity.base_packages", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    freeze = commands.add_parser("freeze", help="print the installed packages as constraints for pip")
    freeze.add_argument("--but", default="", metavar="NAMES", help="without these, separated by blanks")
    unchanged = commands.add_parser("unchanged", help="compare with an earlier freeze")
    unchanged.add_argument("file", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.command == "freeze":
        print(*frozen(installed_packages(), args.but.split()), sep="\n")
        return 0
    wrong = changed(read_pins(args.file), installed_packages())
    for line in wrong:
        print(f"launcher: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
