# PYTHON_ARGCOMPLETE_OK
"""Say what is in an image, whether it is whole, and whether it agrees with its stack."""

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from singularity.command_line import CommandParser, escaped, fail, filled, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

from singularity import checksum
from singularity.addresses import masked
from singularity.agreement import differences, inherits_labels, tells_every_package
from singularity.image import Image, packages_of, read_image, this_architecture
from singularity.labels import STACK_CONTENT
from singularity.probe import ProbeError, ask, container_program
from singularity.progress import progress_bar
from singularity.report import Report, as_json, as_text, verdict
from singularity.sif import ImageDamaged
from singularity.stack import Stack, StackError, load_stack, stack_names
from singularity.toolkit import content_hash
from singularity.versions import agrees


def examine(
    path: Path,
    *,
    stack: Stack | None = None,
    ask_inside: bool = False,
    record: bool = False,
    compare_checksum: bool = True,
    timeout_s: float = 300.0,
    progress: checksum.Progress | None = None,
) -> Report:
    """Everything about one image.

    Args:
        stack: to compare with, whatever the labels say.
        ask_inside: run the image's Python even where labels tell the packages.
        record: write the checksum beside the image when its structure is whole.
        timeout_s: for the image's answer.

    Raises:
        OSError: the image cannot be read.
    """
    report = Report(path=str(path), toolkit=content_hash())
    try:
        report.image = image = read_image(path, with_record=False)
        _integrity(report, image, record, compare_checksum, progress)
    except ImageDamaged as damaged:
        report.problems.append(f"{damaged.problem}; {damaged.remedy}")
        return report
    if image.toolkit not in (None, report.toolkit):
        report.notes.append("a job with container.toolkit=image needs this toolkit inside: build the image again")
    if image.architecture not in ("unknown", this_architecture()):
        report.notes.append(f"it is for {image.architecture}: it does not run on this machine")
    wanted = stack or _stack_of(report, image)
    _packages(report, image, wanted, ask_inside, timeout_s)
    if wanted is not None:
        _compare(report, image, wanted)
    return report


def _integrity(
    report: Report, image: Image, record: bool, compare: bool, progress: checksum.Progress | None
) -> None:
    if image.kind == "sandbox":
        return
    if record:
        report.sha256, report.checksum = checksum.record(image.path, progress), "recorded now"
        return
    try:
        report.sha256 = checksum.recorded(image.path)
    except ImageDamaged as wrong:
        report.checksum = "unreadable record"
        report.problems.append(str(wrong))
        return
    if report.sha256 is None:
        report.checksum = "none recorded"
    elif compare:
        try:
            report.cached = checksum.verify(image.path, report.sha256, progress).cached
            report.checksum = "agrees"
        except ImageDamaged as wrong:
            report.checksum = "not compared" if isinstance(wrong, checksum.ImageChanged) else "differs"
            report.problems.append(f"{wrong.problem}; {wrong.remedy}")


def _stack_of(report: Report, image: Image) -> Stack | None:
    """The stack that the labels name."""
    if image.stack is None:
        return None
    try:
        return load_stack(image.stack)
    except StackError as wrong:
        report.problems.append(f"its label: {wrong}; compare with another: --stack NAME")
        return None


def _packages(report: Report, image: Image, stack: Stack | None, ask_inside: bool, timeout_s: float) -> None:
    told = packages_of(image.labels)
    if tells_every_package(image):
        report.packages, report.packages_from = image.packages, "labels" if image.packages == told else "folders"
    if inherits_labels(image):
        told = {}
        report.notes.append(
            "its definition is not the one of singularity.build: its labels are those of the image that it was "
            "made from, and may not hold"
        )
    program = container_program()
    if not ask_inside and (report.packages or stack is None or program is None):
        return
    if program is None:
        report.problems.append("--run: neither apptainer nor singularity is in PATH; load its module first")
        return
    try:
        inside = ask(image.path, program, timeout_s)
    except ProbeError as wrong:
        report.problems.append(f"it could not be asked for its packages: {wrong}")
        return
    report.packages, report.packages_from, report.python = inside.packages, "inside", inside.python
    report.problems += [
        f"its label says {name} {version}, inside is {inside.packages.get(name, 'none')}: it was changed after it "
        f"was built; build it again"
        for name, version in told.items()
        if not agrees(version, inside.packages.get(name, ""))
    ]


def _compare(report: Report, image: Image, stack: Stack) -> None:
    report.stack, report.stack_content = stack.name, stack.content
    if image.stack is not None and image.stack != stack.name:
        report.notes.append(f"its labels name the stack {image.stack}")
    elif image.labels.get(STACK_CONTENT, stack.content) != stack.content:
        report.notes.append(f"the definition of the stack {stack.name} has changed since it was built")
    if report.packages_from is not None:
        report.differences, report.compared = differences(stack, report.packages), True
    elif not report.problems:
        why = "are those of another image" if inherits_labels(image) else "do not tell its packages"
        report.problems.append(
            f"it cannot be compared with the stack {stack.name}: its labels {why}, and no apptainer or "
            f"singularity is in PATH to ask it; load its module first"
        )


def seconds(text: str) -> float:
    """A time to wait: more than 0, and not without end.

    Raises:
        ValueError: it is another number, or none.
    """
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is no time to wait")
    return value


def parser() -> CommandParser:
    """The command's options."""
    made = CommandParser(
        "singularity.inspect",
        "Say what is in an image, whether it is whole, and whether its packages are those of its stack.",
        notes="The image is not run, unless --run says so or nothing else tells the packages that are to be "
        "compared with a stack: then its own Python is asked, apart from this machine. A recorded checksum "
        "(IMAGE.sha256, as sha256sum writes it) is compared.",
        examples=["python -m singularity.inspect images/verl-cpu.sif"],
        exit_codes={
            0: "whole, and it agrees with its stack, or names none and none was asked for",
            1: "damaged, changed, or other packages; or what was asked for could not be found out",
            2: "usage",
        },
    )
    made.add_argument("image", type=filled, metavar="IMAGE", help="a SIF, or a sandbox folder")
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    stack = made.add_argument("--stack", metavar="NAME", help="compare with this stack, whatever its labels say")
    stack.completer = lambda **_: stack_names()  # type: ignore[attr-defined]
    made.add_argument("--run", action="store_true", help="ask the image itself, with apptainer or singularity")
    made.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="time for its answer [%(default)g]",
    )
    made.add_argument("--record", action="store_true", help="write its checksum beside it, if it is whole")
    made.add_argument("--no-checksum", action="store_true", help="do not compare the recorded checksum")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Inspect an image; the exit code as in the help."""
    args = parser().parse_args(argv)
    path = Path(args.image)
    if wrong := _usage(args.image, path, args.record):
        return fail(wrong, as_json=args.json, code=2, path=_shown(args.image))
    try:
        stack = load_stack(args.stack) if args.stack else None
    except StackError as error:
        return fail(f"--stack: {error}", as_json=args.json, code=2, path=args.image)
    try:
        report = examine(
            path,
            stack=stack,
            ask_inside=args.run,
            record=args.record,
            compare_checksum=not args.no_checksum,
            timeout_s=args.timeout,
            progress=progress_bar(path),
        )
    except OSError as error:
        message = f"{error.filename or path}: {error.strerror or error}"
        return fail(message, as_json=args.json, path=args.image)
    print(json.dumps(as_json(report), indent=2) if args.json else escaped(as_text(report)))
    told = [*report.problems, *([verdict(report)] if report.differences else [])]
    sys.stdout.flush()
    for each in told:
        fail(f"{path}: {each}")
    return 0 if report.ok else 1


def _is_address(name: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE))


def _shown(name: str) -> str:
    return masked(name) if _is_address(name) else name


def _usage(name: str, path: Path, record: bool) -> str | None:
    if _is_address(name):
        shown = _shown(name)
        return f"{shown} is an address, not an image here; build it once: apptainer build IMAGE.sif {shown}"
    if record and path.is_dir():
        return (
            f"--record: {name} is a folder, which has no checksum; make a SIF of it: apptainer build X.sif {name}"
        )
    return None


if __name__ == "__main__":
    sys.exit(run(main))
