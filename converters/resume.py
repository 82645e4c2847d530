# PYTHON_ARGCOMPLETE_OK
"""Find the checkpoint to go on from, and let verl's marker name it: `python -m converters.resume DIR`.

verl (resume_mode=auto) goes on from the step that `latest_checkpointed_iteration.txt` names. It does not look
whether that step is whole, starts from the beginning when the step is not there, and ends with a traceback when
the file is empty. Here the step is looked at first. Where it is whole, nothing is changed, also when a newer one
lies there: going back is done by writing the file. Else the file gets the newest step that is whole, and is
removed when none is. No checkpoint is ever changed or removed.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from converters.command_line import CommandParser, fail, named, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports(extra="convert")

from converters.checkpoint.locate import TRACKER, checkpoints_of, no_folder, steps_in
from converters.checkpoint.whole import problems_of_step
from converters.printing import one_line, put

_SHOWN = 20  # lines about one step


@dataclass
class Resume:
    """What was found in a folder of checkpoints.

    Attributes:
        marker: text of verl's file; None: there is none.
        step: to go on from; None: from the beginning.
        problems: step -> what is wrong with it, for those that were looked at and are not whole.
        newer: steps after `step`, not looked at.
    """

    folder: Path
    marker: str | None
    step: int | None
    problems: dict[int, list[str]] = field(default_factory=dict)
    newer: list[int] = field(default_factory=list)

    @property
    def named(self) -> int | None:
        """The step that the marker names."""
        text = (self.marker or "").strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None

    @property
    def changes(self) -> bool:
        """Whether the marker has to be changed."""
        return self.named != self.step if self.step is not None else self.marker is not None

    def lines(self, *, done: bool) -> list[str]:
        """For a person; `done` when the marker was changed."""
        told = [
            f"global_step_{step} is not whole: {problem}"
            for step, problems in self.problems.items()
            for problem in "\n".join(problems).splitlines()[:_SHOWN]
        ]
        if self.marker is not None and self.named is None:
            told.append(f"{TRACKER} holds {self.marker[:40]!r}, no step number")
        elif self.named is not None and self.named not in (self.step, *self.problems):
            told.append(f"{TRACKER} names step {self.named}, which is not there")
        if self.newer:
            named = ", ".join(f"global_step_{step}" for step in self.newer)
            told.append(f"{named} may be whole too; to go on from there, write its number into {TRACKER}")
        if self.changes:
            would = "" if done else "would be "
            how = f"{would}set to {self.step}" if self.step is not None else f"{would}removed"
            told.append(f"{TRACKER} {'was ' if done else ''}{how}")
        if self.step is None and not self.problems:
            told.append(f"{self.folder} holds no global_step_N")
        start = "starts from the beginning" if self.step is None else f"resumes from global_step_{self.step}"
        return [*told, start]


def find(folder: Path) -> Resume:
    """The step to go on from.

    Raises:
        OSError: the folder or the marker cannot be read.
    """
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    marker = folder / TRACKER
    # A file that was cut may hold anything.
    text = marker.read_bytes().decode(errors="replace") if marker.exists() else None
    found = Resume(folder, text, None)
    steps = steps_in(folder)
    named = found.named
    order = sorted(steps, reverse=True)
    if named in steps:
        order.remove(named)
        order.insert(0, named)
    for step in order:
        problems = problems_of_step(steps[step])
        if not problems:
            found.step = step
            break
        found.problems[step] = problems
    if found.step is not None and found.step == named:
        found.newer = sorted(step for step in steps if step > found.step)
    return found


def mend(found: Resume) -> None:
    """Let the marker name `found.step`, in one step; without a step there is no marker.

    Raises:
        OSError: the folder cannot be written.
    """
    marker = found.folder / TRACKER
    if found.step is None:
        marker.unlink()
        return
    part = marker.with_name(f".{TRACKER}.{os.getpid()}")
    with part.open("w") as file:
        file.write(str(found.step))
        file.flush()
        os.fsync(file.fileno())
    part.replace(marker)


def _as_json(found: Resume, *, done: bool) -> str:
    return json.dumps(
        {
            "checkpoint_dir": str(found.folder),
            "exists": True,
            "step": found.step,
            "marker": found.marker,
            "marker_changed": done,
            "not_whole": {f"global_step_{step}": problems for step, problems in found.problems.items()},
            "newer": found.newer,
        },
        indent=2,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = CommandParser(
        "converters.resume",
        "Let verl's marker name the newest checkpoint that is whole; no checkpoint is changed.",
        examples=["python -m converters.resume outputs/qwen3-4b-grpo/checkpoints --dry-run"],
        exit_codes={
            0: "verl can start, from a whole checkpoint or from the beginning",
            1: "the folder is not there, or cannot be read or written",
            2: "usage",
        },
    )
    parser.add_argument(
        "checkpoint_dir",
        type=named,
        metavar="DIR",
        help=f"folder of global_step_N and {TRACKER}, or a run folder with such a folder checkpoints in it",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    folder: Path = args.checkpoint_dir
    try:
        if not folder.exists():
            problem = one_line(no_folder(folder))
            return fail(problem, as_json=args.json, checkpoint_dir=str(folder), exists=False)
        found = find(checkpoints_of(folder))
        done = found.changes and not args.dry_run
        if done:
            mend(found)
    except OSError as error:
        return fail(one_line(told(error)), as_json=args.json)
    lines = map(one_line, found.lines(done=done))
    put(_as_json(found, done=done) if args.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
