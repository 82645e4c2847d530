"""Read verl's console log: the steps and their numbers."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Iterator, List, Optional, Pattern, Sequence, Tuple

# verl/utils/tracking.py (0.6.1 and 0.9.1), LocalLogger: "step:3 - critic/score/mean:0.5 - ..."
_STEP = re.compile(r"\bstep:(\d{1,12}) - (.*)")
_VALUE = r":(?:np\.\w+\()?(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|-?inf|nan)\)?(?: - |\s*$)"
_METRIC = re.compile(rf"([\w@./-]+){_VALUE}")
# verl/trainer/ppo/ray_trainer.py and v1/trainer_base.py (0.6.1 to 0.9.1)
_TOTAL = re.compile(r"\bTotal training steps: (\d{1,12})(?!\d)")
_NEEDLES = (b"step:", b"Total training steps: ")
_CHUNK = 4 << 20
# Of a larger log the beginning (the number of steps) and the end are read.
READ_BYTES = 1 << 30
_HEAD_BYTES = 16 << 20
SCORE, STEP_SECONDS = "critic/score/mean", "timing_s/step"


@dataclass(frozen=True)
class Step:
    """One training step and its metrics, by verl's names."""

    number: int
    metrics: Dict[str, float]

    @property
    def reward(self) -> Optional[float]:
        """Mean score of the step's responses, as the reward function gave it."""
        return self.metrics.get(SCORE)

    @property
    def seconds(self) -> Optional[float]:
        """How long the step took."""
        return self.metrics.get(STEP_SECONDS)


@dataclass(frozen=True)
class TrainingLog:
    """What a trainer's log says of its progress.

    Attributes:
        steps: in order.
        total: steps that the training has in all, as verl computed it; None before it said so.
        skipped: bytes in the middle of a very large log that were not read.
    """

    steps: List[Step]
    total: Optional[int]
    skipped: int = 0


def parse_steps(lines: Iterable[str], metric: Pattern[str] = _METRIC) -> List[Step]:
    """All steps in the lines of a log, in order; a step logged again (a resume) replaces the earlier one."""
    steps: Dict[int, Step] = {}
    for line in lines:
        for number, rest in _STEP.findall(line):
            metrics = {name: float(value) for name, value in metric.findall(rest)}
            if metrics:
                steps[int(number)] = Step(int(number), metrics)
    return [steps[number] for number in sorted(steps)]


def read_steps(log: Path) -> List[Step]:
    """The steps in a trainer's log with all their metrics; none when there is no log yet."""
    return read_training(log).steps


def read_training(log: Path, metrics: Sequence[str] = (), limit: int = READ_BYTES) -> TrainingLog:
    """The steps in a trainer's log and how many there will be.

    Memory grows with the number of steps, not with the size of the log.

    Args:
        metrics: names of those to keep; none: all.
        limit: bytes to read at most.
    """
    names = "|".join(re.escape(name) for name in metrics)
    metric = re.compile(rf"(?:^|(?<= ))({names}){_VALUE}") if metrics else _METRIC
    total: Optional[int] = None
    steps: Dict[int, Step] = {}
    skipped = 0
    if log.exists():
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            skipped = max(0, size - limit)
            parts = [(0, _HEAD_BYTES), (size - limit + _HEAD_BYTES, size)] if skipped else [(0, size)]
            for start, end in parts:
                for line in _telling_lines(stream, start, end):
                    for found in _TOTAL.findall(line):
                        total = int(found)
                    steps.update((step.number, step) for step in parse_steps([line], metric))
    return TrainingLog([steps[number] for number in sorted(steps)], total, skipped)


def _telling_lines(stream: BinaryIO, start: int, end: int) -> Iterator[str]:
    """Whole lines between two offsets that may tell of a step: a half-written number is none."""
    stream.seek(start)
    rest, left = b"", end - start
    while left > 0:
        data = stream.read(min(_CHUNK, left))
        if not data:
            break
        left -= len(data)
        whole, end_of_line, rest = (rest + data).rpartition(b"\n")
        if not end_of_line and len(rest) > _CHUNK:
            rest = b""  # a line without an end is no line of ours
        yield from _lines_with_needles(whole)


def _lines_with_needles(data: bytes) -> Iterator[str]:
    """Found by a plain search: a pattern over hundreds of megabytes takes minutes."""
    starts: Dict[int, int] = {}
    for needle in _NEEDLES:
        at = data.find(needle)
        while at >= 0:
            line_end = data.find(b"\n", at)
            line_end = len(data) if line_end < 0 else line_end
            starts[data.rfind(b"\n", 0, at) + 1] = line_end
            at = data.find(needle, line_end)
    for start in sorted(starts):
        yield data[start : starts[start]].decode(errors="replace")


def join_attempts(attempts: Sequence[TrainingLog]) -> Tuple[List[Step], int]:
    """(the steps of a run over its attempts, how many steps were done in vain).

    An attempt goes on from a checkpoint: what an earlier one did from the first step of a later one on is lost.
    """
    steps: Dict[int, Step] = {}
    lost = 0
    for attempt in attempts:
        if attempt.steps:
            first = attempt.steps[0].number
            kept = {number: step for number, step in steps.items() if number < first}
            lost += len(steps) - len(kept)
            steps = {**kept, **{step.number: step for step in attempt.steps}}
    return [steps[number] for number in sorted(steps)], lost


def steps_done(log: Path) -> int:
    """Number of the last step in a trainer's log; 0 without one."""
    steps = read_steps(log)
    return steps[-1].number if steps else 0


def latest_checkpoint(checkpoint_dir: Path) -> Optional[Path]:
    """The checkpoint that verl's own marker names, or None when nothing was saved.

    Source: verl/utils/checkpoint/checkpoint_manager.py, latest_checkpointed_iteration.txt.
    """
    marker = checkpoint_dir / "latest_checkpointed_iteration.txt"
    try:
        with marker.open(errors="replace") as stream:
            number = stream.read(32).strip()
    except OSError:
        return None
    return checkpoint_dir / f"global_step_{number}" if number.isascii() and number.isdigit() else None
