"""Render a job into one bash script, after checking everything that can be checked here.

    python -m launch.render --template grpo --rehearse
    python -m launch.render --template grpo --job job.yaml --set cluster.nodes=3 -o run_grpo.sh

Exit codes: 0 written (or, with --check-only, nothing wrong); 1 the job breaks a rule: every broken rule is printed
and nothing is written; 2 usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.checks import check_job
from launch.config import Job, JobError, load_job
from launch.config.templates import TEMPLATES
from launch.finding import Finding
from launch.rehearse import rehearse as shrink
from launch.script import RenderRequest, edited_by_hand, render_script


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
    return parser


def _write(path: Path, text: str, *, force: bool) -> None:
    if path.exists() and not force and edited_by_hand(path.read_text(encoding="utf-8", errors="replace")):
        raise JobError([f"{path}: was edited by hand since it was rendered; move it away, or use --force"])
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.chmod(0o755)
    part.replace(path)


def _report(findings: Sequence[Finding], problems: Sequence[str], written: str | None, *, as_json: bool) -> None:
    if as_json:
        told = [finding.__dict__ for finding in findings]
        told += [{"id": "job", "severity": "error", "message": text, "remedy": ""} for text in problems]
        print(json.dumps({"written": written, "findings": told}, indent=2, ensure_ascii=False))
        return
    for text in problems:
        print(f"error: {text}", file=sys.stderr)
    for finding in findings:
        print(finding.line(), file=sys.stderr)
    if written is not None and written != "-":
        print(f"wrote {written}", file=sys.stderr)


def _of_the_real_job(job: Job, project: Path) -> list[Finding]:
    """What would keep the job itself from being rendered: worth knowing while it is only rehearsed."""
    findings = check_job(job, project, rehearse=False, sample_data=False)
    return [
        replace(finding, severity="warning", message=f"without --rehearse: {finding.message}")
        for finding in findings
        if finding.severity == "error"
    ]


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
    findings: list[Finding] = []
    try:
        job = load_job(args.template, args.job, args.set)
        project = Path.cwd()
        findings = _of_the_real_job(job, project) if args.rehearse else []
        sample_data = args.rehearse and not {"train", "val"} & job.data.model_fields_set
        job = shrink(job) if args.rehearse else job
        findings += check_job(job, project, rehearse=args.rehearse, sample_data=sample_data)
        if any(finding.severity == "error" for finding in findings):
            _report(findings, [], None, as_json=args.json)
            return 1
        name = "run.sh" if output == "-" else Path(output).name
        if not name.isprintable():
            raise JobError([f"-o {output!r}: a script's name holds no control characters"])
        text = render_script(RenderRequest(job, project, name, args.rehearse, sample_data))
        if args.check_only:
            _report(findings, [], None, as_json=args.json)
            return 0
        if output == "-":
            print(text, end="")
        else:
            _write(Path(output), text, force=args.force)
    except JobError as error:
        _report(findings, error.problems, None, as_json=args.json)
        return 1
    except OSError as error:
        _report(findings, [f"-o {output}: cannot be written: {error}"], None, as_json=args.json)
        return 1
    _report(findings, [], output, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
