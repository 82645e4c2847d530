"""What is known of an image, as text for a person and as JSON for a program. Pure."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from singularity.agreement import Difference, inherits_labels
from singularity.command_line import escaped
from singularity.image import Image, this_architecture
from singularity.labels import BUILT, STACK_CONTENT, VERSION

Checksum = Literal["agrees", "differs", "none recorded", "recorded now", "not compared", "unreadable record"]

_VERSION_OF_PROGRAM = ("org.label-schema.usage.apptainer.version", "org.label-schema.usage.singularity.version")
_FROM = "org.label-schema.usage.singularity.deffile."
# Of these the table has rows of its own, or they say nothing of the image.
_TOLD = ("launcher.", "org.label-schema.")
_MOST_LABELS, _MOST_CHARACTERS = 20, 100
_MOST_DIFFERENCES = 10


@dataclass
class Report:
    """What is known of one image."""

    path: str
    image: Image | None = None  # None: damaged
    stack: str | None = None  # the one that it is compared with
    stack_content: str | None = None  # of that stack as this toolkit has it
    toolkit: str = ""  # content of this toolkit
    packages: dict[str, str] = field(default_factory=dict)
    packages_from: Literal["labels", "folders", "inside"] | None = None
    python: str | None = None  # inside, where it was asked
    differences: list[Difference] = field(default_factory=list)
    compared: bool = False
    checksum: Checksum = "not compared"
    sha256: str | None = None  # the recorded one
    cached: bool = False  # the checksum is known from an earlier look at the unchanged file
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whole, and as its stack says."""
        return not self.problems and not self.differences


def as_json(report: Report) -> dict[str, Any]:
    """Every field, for a program."""
    image, sif = report.image, report.image.sif if report.image else None
    return {
        "ok": report.ok,
        "path": report.path,
        "kind": image.kind if image else None,
        "size": image.size if image else None,
        "architecture": image.architecture if image else None,
        "machine": this_architecture(),
        "created": sif.created.isoformat() if sif and sif.created else None,
        "uuid": sif.uuid if sif else None,
        "encrypted": sif.encrypted if sif else False,
        "signatures": list(sif.signatures) if sif else [],
        "labels": image.labels if image else {},
        "stack": {
            "image": image.stack if image else None,
            "image_content": image.labels.get(STACK_CONTENT) if image else None,
            "compared_with": report.stack if report.compared else None,
            "content": report.stack_content,
        },
        "toolkit": {"image": image.toolkit if image else None, "here": report.toolkit},
        "python": report.python,
        "packages": report.packages,
        "packages_from": report.packages_from,
        "differences": [asdict(one) for one in report.differences],
        "checksum": {"state": report.checksum, "sha256": report.sha256, "cached": report.cached},
        "problems": report.problems,
        "notes": report.notes,
    }


def as_text(report: Report) -> str:
    """A table, and the verdict in the last line."""
    rows = list(_rows(report)) if report.image else [("image", report.path)]
    rows += [("differs", str(one)) for one in report.differences[:_MOST_DIFFERENCES]]
    if len(report.differences) > _MOST_DIFFERENCES:
        rows.append(("differs", f"and {len(report.differences) - _MOST_DIFFERENCES} more: --json"))
    rows += [("note", note) for note in report.notes]
    rows += [("problem", problem) for problem in report.problems]
    rows.append(("verdict", verdict(report)))
    return "\n".join(f"{name:<12} {escaped(value, lines=False)}" for name, value in rows)


def verdict(report: Report) -> str:
    """One line: what holds."""
    if report.image is None:
        return "damaged, or no image"
    if report.ok:
        agrees = (
            f"agrees with the stack {report.stack}" if report.compared else "it names no stack to compare with"
        )
        whole = "whole" if report.checksum in ("agrees", "recorded now") else "whole by its structure"
        return f"{whole}; {agrees}"
    parts = []
    if report.differences:
        number = len(report.differences)
        differ = "package differs" if number == 1 else "packages differ"
        parts.append(f"{number} {differ} from the stack {report.stack}")
    if report.problems:
        parts.append("see the problem above" if len(report.problems) == 1 else "see the problems above")
    return "; ".join(parts)


def readable_size(size: int) -> str:
    """Bytes in the largest unit that leaves a whole number: 14.2 GB."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    image = report.image
    assert image is not None
    size = f", {readable_size(image.size)}" if image.size is not None else ""
    yield "image", f"{report.path} ({'SIF' if image.kind == 'sif' else image.kind}{size})"
    if image.architecture != "unknown":
        yield "architecture", f"{image.architecture}, this machine {this_architecture()}"
    yield from _built(image)
    definition = _same(image.labels.get(STACK_CONTENT), report.stack_content, "defined as in this toolkit")
    yield "stack", f"{image.stack}{definition}" if image.stack else "its labels name none"
    own = _same(image.toolkit, report.toolkit, "this toolkit's files")
    version = image.labels.get(VERSION, "of no version")
    yield "toolkit", f"{version} inside{own}" if image.toolkit else "none inside: a job binds this one"
    yield "packages", _packages(report, image)
    yield from _labels(image)
    yield "integrity", _integrity(report, image)
    if image.sif and image.sif.signatures:
        keys = ", ".join(sorted({key.upper() or "unnamed" for key in image.sif.signatures}))
        yield "signature", f"by key {keys}, not verified here: apptainer verify {shlex.quote(report.path)}"


def _built(image: Image) -> Iterator[tuple[str, str]]:
    created = image.sif.created.strftime("%Y-%m-%dT%H:%M:%SZ") if image.sif and image.sif.created else None
    program = next((image.labels[name] for name in _VERSION_OF_PROGRAM if name in image.labels), None)
    when = image.labels.get(BUILT) or created
    if when or program:
        yield "built", (when or "") + (f" by Apptainer or Singularity {program}" if program else "")
    if f"{_FROM}from" in image.labels:
        yield "from", f"{image.labels.get(f'{_FROM}bootstrap', '')}: {image.labels[f'{_FROM}from']}"


def _same(inside: str | None, here: str | None, agrees: str) -> str:
    """Whether two hashes are one, in words; "" where one of them is not known."""
    if not inside or not here:
        return ""
    return f", {agrees} ({inside})" if inside == here else f", not {agrees} ({inside}; here {here})"


def _packages(report: Report, image: Image) -> str:
    if report.packages_from is None:
        known = (
            "its labels are another image's" if inherits_labels(image) else "its labels do not tell all of them"
        )
        return f"not known, {known}; --run asks the image itself"
    where = {"labels": "told by its labels", "folders": "in its folders", "inside": "asked inside"}
    python = f", Python {report.python}" if report.python else ""
    return f"{len(report.packages)} {where[report.packages_from]}{python}"


def _labels(image: Image) -> Iterator[tuple[str, str]]:
    """Those of the image's author; all of them are in the JSON."""
    others = [(name, value) for name, value in sorted(image.labels.items()) if not name.startswith(_TOLD)]
    for name, value in others[:_MOST_LABELS]:
        yield "label", f"{name}: {value}"[:_MOST_CHARACTERS]
    if len(others) > _MOST_LABELS:
        yield "label", f"and {len(others) - _MOST_LABELS} more: --json"


def _integrity(report: Report, image: Image) -> str:
    if image.kind == "sandbox":
        return "a folder: anything in it may change; apptainer build X.sif FOLDER makes a SIF of it"
    encrypted = " (encrypted: its content cannot be looked at)" if image.sif and image.sif.encrypted else ""
    record = f"python -m singularity.inspect --record {_argument(report.path)}"
    says = {
        "agrees": f"its SHA-256 is the recorded one{', as an earlier look found' if report.cached else ''}",
        "differs": "its SHA-256 is not the recorded one",
        "none recorded": f"no checksum is recorded: {record}",
        "recorded now": f"recorded in {report.path}.sha256",
        "not compared": "its SHA-256 was not compared",
        "unreadable record": "its recorded checksum cannot be used",
    }
    return f"structure whole{encrypted}; {says[report.checksum]}"


def _argument(path: str) -> str:
    return shlex.quote(f"./{path}" if path.startswith("-") else path)
