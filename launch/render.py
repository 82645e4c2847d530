# PYTHON_ARGCOMPLETE_OK
"""Render a job into one bash script, after checking everything that can be checked here.

python -m launch.render --template grpo --rehearse
python -m launch.render --template ppo --job job.yaml --set cluster.nodes=4 -o run_ppo.sh
"""

import argparse
import io
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from singularity.command_line import CommandParser, escaped, filled, named, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

from launch.checks.names import name_problem
from launch.completion import complete_set
from launch.config import Job, JobError, load_job
from launch.config.load import Otherwise, otherwise
from launch.config.templates import TEMPLATES
from launch.finding import Finding, error, warning
from launch.review import EngineCheck, Review, review
from launch.script import edited_by_hand
from launch.sizing.layout import plan_layout
from launch.sizing.plan_table import plan_data, plan_table
from launch.tokens import hide
from launch.toolkit import place_toolkit, toolkit_folder

_NOTES = """\
A value of the template is replaced by one of the site, that by one of the job file, and that by --set. Every \
field of a job is in docs/job.md and in --schema.
"""
_EXAMPLES = (
    "python -m launch.render --template grpo --rehearse -o - | less",
    "python -m launch.render --template ppo --job job.yaml --check-only",
    "python -m launch.render --template grpo \\\n    --set cluster.nodes=3 --set actor.lr=2e-6",
)
_EXIT_CODES = {
    0: "written; with --check-only, nothing wrong",
    1: "the job breaks a rule: every broken rule is told, and nothing is written",
    2: "usage",
}
_SITE, _NO_SITE = "cluster.yaml", "none"
_OF_A_RUN = "job.json"  # in a run directory, with the site's values
_BESIDE = ("resolved.json", "manifest.json", "verdict.json")  # one of them lies there too


def _parser() -> CommandParser:
    parser = CommandParser(
        "launch.render",
        "Render a job into one bash script, after checking it.",
        notes=_NOTES,
        examples=_EXAMPLES,
        exit_codes=_EXIT_CODES,
    )
    parser.add_argument("--template", choices=TEMPLATES, help="algorithm [the one that the job file names]")
    parser.add_argument("--job", type=named, metavar="FILE", help="job file, in YAML [the template's defaults]")
    parser.add_argument(
        "--site",
        type=filled,
        metavar="FILE",
        help="what all jobs of a cluster have in common, written like a job file, below its values; none: no such "
        "file [cluster.yaml here, if there; none for a job.json of a run, which has its values]",
    )
    field = parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="change one field; the value is YAML: --set cluster.nodes=3, --set 'overrides=[\"a.b=1\"]'",
    )
    field.completer = complete_set  # type: ignore[attr-defined]
    parser.add_argument(
        "-o", "--output", type=filled, metavar="FILE", help="script to write, - for stdout [run_TEMPLATE.sh]"
    )
    parser.add_argument("--rehearse", action="store_true", help="render the job in small, with tiny models on CPU")
    parser.add_argument("--check-only", action="store_true", help="check, write nothing")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a job and exit")
    parser.add_argument("--force", action="store_true", help="overwrite a script that was edited by hand")
    parser.add_argument(
        "--verl-source",
        type=named,
        metavar="DIR",
        help="git checkout or unpacked wheel of verl to compose with [an installed one, a cache, pip download]",
    )
    parser.add_argument("--no-engine-check", action="store_true", help="do not compose with verl's configuration")
    return parser


def _output_problems(output: str, *, force: bool) -> Iterator[Finding]:
    """What keeps `output` from being written, as far as it can be seen before."""
    if output == "-":
        return
    if wrong_name := list(name_problem("-o", Path(output).name)):
        yield from wrong_name
        return
    if not Path(output).name.isprintable():
        yield error("output", f"-o {output!r}: a script's name holds no control characters", "use another name")
        return
    try:
        kind = os.stat(output).st_mode  # noqa: PTH116  of what it is a link to, too: /dev/stdout
    except FileNotFoundError:
        kind = None
    except OSError as wrong:
        yield error("output", f"-o {output}: {wrong.strerror}", "use another name")
        return
    path = Path(output).resolve()
    if kind is not None and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        # Replacing it would take a device or a socket from those who use it.
        yield error("output", f"-o {output}: is no regular file", "use another name, or - for stdout")
    elif not path.parent.is_dir():
        yield error("output", f"-o {output}: no folder {Path(output).parent}", "make it, or use another")
    elif path.is_dir():
        yield error("output", f"-o {output}: is a folder", "name a file in it")
    elif path.exists() and not force:
        try:
            edited = edited_by_hand(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as wrong:
            yield error("output", f"-o {output}: cannot be read: {wrong.strerror}", "use another name")
        else:
            if edited:
                told = f"{output}: was edited by hand since it was rendered"
                yield error("output", told, "move it away, or use --force")


def _write(output: str, text: str) -> None:
    """Write a script in one step; a link stays, and its target is written."""
    path = Path(output).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.chmod(0o755)
    part.replace(path)


@dataclass(frozen=True)
class _Report:
    """What a render says: `problems` of the job and the output, then the findings of the rules."""

    problems: list[Finding]
    reviewed: Review | None
    whole: bool  # false: the rules saw defaults in place of what was wrong
    written: str | None = None
    checked: bool = False  # --check-only: nothing else tells that it is done
    site: Path | None = None
    passed_over: bool = False  # a site's file lies here, and the job is that of a run
    otherwise: Sequence[Otherwise] = ()  # where the job's file has another value than the site's

    @property
    def findings(self) -> list[Finding]:
        """Everything to tell, without what looks like a secret."""
        found = [*self.problems]
        if self.reviewed is not None and not self.whole:
            told = "the rules below were checked with the defaults of the fields above"
            found.append(warning("partly-checked", told, "correct those, and render again"))
        found += self.reviewed.findings if self.reviewed is not None else []
        return [replace(one, message=hide(one.message), remedy=hide(one.remedy)) for one in found]

    @property
    def planned(self) -> Review | None:
        """The review whose plan is worth showing."""
        return self.reviewed if self.reviewed is not None and self.whole and not self.reviewed.rehearse else None

    def as_json(self) -> str:
        """For programs."""
        plan = self.planned
        report = {
            "written": self.written,
            "site": self.site and str(self.site),
            "otherwise_than_site": [one.__dict__ for one in self.otherwise],
            "findings": [finding.__dict__ for finding in self.findings],
            "plan": plan and plan_data(plan.job, plan_layout(plan.job), plan.memory),
        }
        text = json.dumps(report, indent=2, ensure_ascii=False)
        # Of a name that is not UTF-8, JSON's own escapes.
        return text.encode(errors="backslashreplace").decode()

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.site is not None:
            told = (
                f"; the job file says otherwise: {', '.join(map(str, self.otherwise))}" if self.otherwise else ""
            )
            yield _one_line(f"with {self.site}{told}")
        elif self.passed_over:
            yield f"without {_SITE}: {_OF_A_RUN} of a run has the site's values"
        if self.planned is not None:
            plan = self.planned
            tight = any(finding.id.startswith("memory-") for finding in plan.findings)
            yield plan_table(plan.job, plan_layout(plan.job), plan.memory, assumptions=tight)
        yield from (_one_line(finding.line()) for finding in self.findings)
        if self.checked and not self.findings:
            yield "nothing wrong"
        if self.written is not None and self.written != "-":
            yield _one_line(f"wrote {self.written}")


def _site(args: argparse.Namespace) -> Path | None:
    """The site's file: the named one, or the one that lies here."""
    if args.site is not None:
        return None if args.site == _NO_SITE else Path(args.site)
    here = Path(_SITE)
    # A link to nothing is told as a file that is missing.
    return here if os.path.lexists(here) and not _of_a_run(args.job) else None


def _of_a_run(job: Path | None) -> bool:
    """Whether a job's file is the one of a run directory; a user's own may have the same name."""
    return job is not None and job.name == _OF_A_RUN and any(job.with_name(name).exists() for name in _BESIDE)


def _tell(report: _Report, *, as_json: bool) -> None:
    if as_json:
        print(report.as_json())
    for line in (_one_line(finding.line()) for finding in report.findings) if as_json else report.lines():
        print(escaped(line), file=sys.stderr)


def _one_line(text: str) -> str:
    """`text` of a user, who may not make it look like more lines than it is."""
    return escaped(text.replace("\n", "\\n"))


def _render(args: argparse.Namespace) -> _Report:
    """Read, review and write a job; tell which site's values it has."""
    site = _site(args)
    differ: list[Otherwise] = []
    if site is not None and args.job is not None:
        with suppress(JobError):  # told when the job is loaded
            differ = otherwise(args.job, site)
    passed_over = args.site is None and site is None and os.path.lexists(_SITE)
    return replace(_rendered(args, site), site=site, passed_over=passed_over, otherwise=differ)


def _rendered(args: argparse.Namespace, site: Path | None) -> _Report:
    problems: list[Finding] = []
    job: Job | None
    try:
        job = load_job(args.template, args.job, args.set, site)
    except JobError as wrong:
        job, problems = wrong.rest, wrong.problems
    whole = not problems
    output = args.output or f"run_{args.template or (job.template if job is not None else 'job')}.sh"
    if not args.check_only:
        problems += _output_problems(output, force=args.force)
    if job is None:
        return _Report(problems, None, whole)
    name = "run.sh" if output == "-" else Path(output).name
    engine = EngineCheck(not args.no_engine_check, args.verl_source)

    def look(job: Job) -> Review:
        return review(job, Path.cwd(), name, rehearse=args.rehearse, engine=engine)

    reviewed = look(job)
    if problems or not reviewed.good or args.check_only:
        return _Report(problems, reviewed, whole, checked=args.check_only)
    try:
        before = toolkit_folder(Path.cwd())
        if place_toolkit(Path.cwd()) != before:
            reviewed = look(job)  # the script names the copy that is there now
        script = str(reviewed.script)
        if output == "-":
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")  # as a file has it
            print(script, end="")
            return _Report(problems, reviewed, whole)
        _write(output, script)
    except BrokenPipeError:
        raise
    except OSError as wrong:
        told = error("output", f"-o {output}: cannot be written: {wrong}", "use another place")
        return _Report([told], reviewed, whole)
    return _Report(problems, reviewed, whole, output)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.schema:
        print(json.dumps(Job.model_json_schema(), indent=2))
        return 0
    if args.template is None and args.job is None and not any(text.startswith("template=") for text in args.set):
        parser.error("name the algorithm with --template, or a job file that says it with --job")
    if args.json and args.output == "-":
        parser.error("--json and -o - both want stdout; give -o a file")
    report = _render(args)
    _tell(report, as_json=args.json)
    return 1 if any(finding.severity == "error" for finding in report.findings) else 0


if __name__ == "__main__":
    sys.exit(run(main))
