# PYTHON_ARGCOMPLETE_OK
"""Ask Slurm and the login node what the site looks like, and write cluster.yaml.

Standard library only and Python 3.9+: it runs on a bare login node with the checkout on PYTHONPATH.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from singularity.command_line import CommandParser, escaped, fail, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

from launch.site.access import accounts_for
from launch.site.choose import Choice, choose, open_partitions
from launch.site.cluster_yaml import IMAGE_FOLDER, cluster_yaml
from launch.site.commands import ask, without_secrets
from launch.site.facts import NoSlurmError, Site, read_site
from launch.site.slurm import names

_FILE = "cluster.yaml"


def _parser() -> CommandParser:
    parser = CommandParser(
        "launch.init",
        "Ask Slurm and the login node what the site looks like, and write cluster.yaml.",
        notes="On a terminal it asks for the partition, the account, the module and the folder of images; Enter "
        "takes the guess, Ctrl-D all that are left. launch.render lays the file under each job of the folder.",
        examples=[f"python -m launch.init --yes -o {_FILE}", "python -m launch.init --yes -o - | less"],
        exit_codes={
            0: "written",
            1: "nothing written: no Slurm here, no such partition, or the file exists",
            2: "usage",
        },
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing, take each guess")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default=_FILE, help="file to write, - for stdout [%(default)s]"
    )
    parser.add_argument("--partition", metavar="NAME", help="partition of the jobs [the one that fits best]")
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON on stdout")
    return parser


def _output_problem(output: str, *, force: bool) -> str | None:
    """What keeps the file from being written, as far as it can be seen before."""
    if output == "-":
        return None
    path = Path(output)
    try:
        if path.is_dir():
            return f"-o {output}: is a folder; name a file in it"
        if path.exists() and not path.is_file():
            return f"-o {output}: is no regular file; use another name, or - for standard output"
        if not path.resolve().parent.is_dir():
            return f"-o {output}: there is no folder {path.parent}; make it, or use another"
        if path.exists() and not force:
            return f"-o {output}: exists; use --force to overwrite it, or another name"
    except (OSError, ValueError) as wrong:
        return f"-o {output}: cannot be written: {wrong}; use another place"
    return None


def _write(output: str, text: str) -> None:
    """Write the file in one step; a link stays, and its target is written; one that was there keeps its mode."""
    path = Path(output).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
        part.replace(path)
    finally:
        if part.exists():
            part.unlink()


class _Terminal:
    """Asks on standard error. Enter takes the guess, the end of the input (Ctrl-D) all that are left."""

    def __init__(self) -> None:
        self._ended = False
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")

    def asked(self, question: str, guess: str, allowed: Sequence[str] = ()) -> str:
        """The answer, one of `allowed` where it names any."""
        choices = f" ({', '.join(allowed[:12])})" if allowed else ""
        while not self._ended:
            print(escaped(f"{question}{choices} [{guess or 'none'}]: "), end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                self._ended = True
                print(file=sys.stderr)
            answer = line.strip() or guess
            if not line.strip().isprintable():  # bytes that are no UTF-8 come as surrogates
                print("an answer is text in UTF-8 without control characters", file=sys.stderr)
            elif not allowed or answer in (*allowed, guess):
                return answer
            else:
                print(escaped(f"{answer} is none of {', '.join(allowed)}"), file=sys.stderr)
        return guess


def _questions(site: Site, choice: Choice) -> Choice:
    """The choice after what the user answers."""
    asked = _Terminal().asked
    partitions = [one.name for one in open_partitions(site, choice)] or [one.name for one in site.partitions]
    partition = asked("partition", choice.partition.name, partitions)
    if partition != choice.partition.name:
        choice = choose(site, partition)
    account = asked("account", choice.account or "", accounts_for(site, choice.partition))
    if account != (choice.account or ""):
        choice.account, choice.account_why = account, "named by you"
    modules = [one.name for one in site.modules or []]
    module = asked("module that brings apptainer or singularity (- for none)", choice.module or "")
    if module == "-":
        choice.module, choice.module_why, choice.runtime = None, "none, as you said", "auto"
    elif module and module != choice.module:
        # Without a version it is the site's default of it.
        named = (one for one in site.modules or [] if one.name == module or one.name.startswith(f"{module}/"))
        found = next(named, None)
        choice.module, choice.runtime = module, found.runtime if found else "auto"
        choice.module_why = "named by you" + (f"; `module avail` lists {', '.join(modules)}" if modules else "")
    folder = _image_folder(asked)
    if folder and folder != IMAGE_FOLDER:
        choice.image_folder = folder
    return choice


def _image_folder(asked: Callable[[str, str], str]) -> str:
    """The folder as it is: nothing expands ~ and variables in cluster.yaml."""
    while True:
        answer = asked("folder of images, which all nodes see", IMAGE_FOLDER)
        folder = os.path.expandvars(os.path.expanduser(answer)).rstrip("/")  # noqa: PTH111 ~nobody stays
        if "$" not in folder and not folder.startswith("~"):
            return folder
        told = f"{folder}: there is no such variable here, or no such user; write the path itself"
        print(escaped(told), file=sys.stderr)


def _next(output: str) -> str:
    # --site none is no file, and -x would be an option.
    path = f"./{output}" if output == "none" or output.startswith("-") else output
    site = "" if output == _FILE else f" --site {shlex.quote(path)}"
    return f"python -m launch.render --template grpo --rehearse{site}"


def _report(site: Site, choice: Choice, written: str) -> str:
    nodes = dataclasses.asdict(choice.nodes)
    chosen = {
        "partition": choice.partition.name, "account": choice.account, "qos": choice.qos, "module": choice.module,
        "runtime": choice.runtime, "nodes": nodes, "closed": choice.closed,
    }  # fmt: skip
    return json.dumps({"written": written, "chosen": chosen, "found": dataclasses.asdict(site)}, indent=2)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.json and args.output == "-":
        parser.error("--json and -o - both want stdout; give -o a file")

    def failed(message: str) -> int:
        return fail(message, as_json=args.json, written=None)

    if (problem := _output_problem(args.output, force=args.force)) is not None:
        return failed(problem)
    try:
        site = read_site(ask, os.environ)
    except NoSlurmError as wrong:
        return failed(
            f"Slurm cannot be asked: {without_secrets(str(wrong))}; run it on a login node of the cluster"
        )
    try:
        choice = choose(site, args.partition)
    except KeyError:
        return failed(
            f"--partition {args.partition}: there is none of this name; there are: {names(site.partitions)}"
        )
    if not args.yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        choice = _questions(site, choice)
    text = cluster_yaml(site, choice)
    for note in site.notes:
        print(escaped(f"note: {note}"), file=sys.stderr)
    if args.output == "-":
        print(text, end="")
        return 0
    try:
        _write(args.output, text)
    except OSError as wrong:
        return failed(f"-o {args.output}: cannot be written: {wrong.strerror or wrong}; use another place")
    if args.json:
        print(_report(site, choice, args.output))
    print(escaped(f"wrote {args.output}; read it, then: {_next(args.output)}"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
