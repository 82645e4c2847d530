"""Render a job into one bash script, after checking everything that can be checked here.

    python -m launch.render --template grpo --rehearse
    python -m launch.render --template ppo --job job.yaml --set cluster.nodes=4 -o run_ppo.sh

Exit codes: 0 written (or, with --check-only, nothing wrong); 1 the job breaks a rule: every broken rule is printed
and nothing is written; 2 usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.config import Job, JobError, load_job
from launch.config.templates import TEMPLATES
from launch.review import EngineCheck, Review, review
from launch.script import edited_by_hand
from launch.sizing.layout import plan_layout
from launch.sizing.plan_table import plan_data, plan_table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m launch.render",
        description="Render a job into one bash script, after checking it.",
        epilog="example: python -m launch.render --template grpo --rehearse -o - | less",
    )
    parser.add_argument("--template", choices=TEMPLATES, help="algorithm")
    parser.add_argument("--job", type=Path, metavar="FILE", help="job file (YAML); without it: the defaults")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="change one field; the value is YAML: --set cluster.nodes=3, --set 'overrides=[\"a.b=1\"]'",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="script to write, - for stdout [run_TEMPLATE.sh]")
    parser.add_argument("--rehearse", action="store_true", help="run on CPU with a tiny model")
    parser.add_argument("--check-only", action="store_true", help="check, write nothing")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a job and exit")
    parser.add_argument("--force", action="store_true", help="overwrite a script that was edited by hand")
    parser.add_argument(
        "--verl-source",
        type=Path,
        metavar="DIR",
        help="git checkout or unpacked wheel of verl to compose with [an installed one, a cache, pip download]",
    )
    parser.add_argument("--no-engine-check", action="store_true", help="do not compose with verl's configuration")
    return parser


def _write(path: Path, text: str, *, force: bool) -> None:
    if path.exists() and not force and edited_by_hand(path.read_text(encoding="utf-8", errors="replace")):
        raise JobError([f"{path}: was edited by hand since it was rendered; move it away, or use --force"])
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.chmod(0o755)
    part.replace(path)


def _report(reviewed: Review | None, problems: Sequence[str], written: str | None, *, as_json: bool) -> None:
    findings = reviewed.findings if reviewed is not None else []
    if as_json:
        told = [finding.__dict__ for finding in findings]
        told += [{"id": "job", "severity": "error", "message": text, "remedy": ""} for text in problems]
        report: dict[str, Any] = {"written": written, "findings": told, "plan": None}
        if reviewed is not None and not reviewed.rehearse:
            report["plan"] = plan_data(reviewed.job, plan_layout(reviewed.job), reviewed.memory)
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    if reviewed is not None and not reviewed.rehearse:
        print(plan_table(reviewed.job, plan_layout(reviewed.job), reviewed.memory), file=sys.stderr)
    for text in problems:
        print(f"error: {text}", file=sys.stderr)
    for finding in findings:
        print(finding.line(), file=sys.stderr)
    if written is not None and written != "-":
        print(f"wrote {written}", file=sys.stderr)


def _script_name(output: str) -> str:
    name = "run.sh" if output == "-" else Path(output).name
    if not name.isprintable():
        raise JobError([f"-o {output!r}: a script's name holds no control characters"])
    return name


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    args = _parser().parse_args(argv)
    if args.schema:
        print(json.dumps(Job.model_json_schema(), indent=2))
        return 0
    if args.template is None:
        _parser().error("the following arguments are required: --template")
    if args.json and args.output == "-":
        _parser().error("--json and -o - both want stdout; give -o a file")
    output = args.output or f"run_{args.template}.sh"
    reviewed, written = None, None
    try:
        job = load_job(args.template, args.job, args.set)
        engine = EngineCheck(not args.no_engine_check, args.verl_source)
        reviewed = review(job, Path.cwd(), _script_name(output), rehearse=args.rehearse, engine=engine)
        if not reviewed.good or reviewed.script is None:
            _report(reviewed, [], None, as_json=args.json)
            return 1
        if output == "-" and not args.check_only:
            print(reviewed.script, end="")
        elif not args.check_only:
            _write(Path(output), reviewed.script, force=args.force)
            written = output
    except JobError as error:
        _report(reviewed, error.problems, None, as_json=args.json)
        return 1
    except OSError as error:
        _report(reviewed, [f"-o {output}: cannot be written: {error}"], None, as_json=args.json)
        return 1
    _report(reviewed, [], written, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
