"""Read verl's console log: the steps and their numbers."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional

# verl/utils/tracking.py (0.6.1 and 0.9.1), LocalLogger: "step:3 - critic/score/mean:0.5 - ..."
_STEP = re.compile(r"\bstep:(\d+) - (.*)")
_METRIC = re.compile(r"([\w@./-]+):(?:np\.\w+\()?(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|-?inf|nan)\)?(?: - |\s*$)")


@dataclass(frozen=True)
class Step:
    """One training step and its metrics, by verl's names."""

    number: int
    metrics: Dict[str, float]

    @property
    def reward(self) -> Optional[float]:
        """Mean score of the step's responses, as the reward function gave it."""
        return self.metrics.get("critic/score/mean")


def parse_steps(lines: Iterable[str]) -> List[Step]:
    """All steps in the lines of a log, in order; a step logged again (a resume) replaces the earlier one."""
    steps: Dict[int, Step] = {}
    for line in lines:
        for number, rest in _STEP.findall(line):
            metrics = {name: float(value) for name, value in _METRIC.findall(rest)}
            if metrics:
                steps[int(number)] = Step(int(number), metrics)
    return [steps[number] for number in sorted(steps)]


def read_steps(log: Path) -> List[Step]:
    """The steps in a trainer's log; none when there is no log yet."""
    if not log.exists():
        return []
    with log.open(encoding="utf-8", errors="replace") as lines:
        return parse_steps(lines)


def latest_checkpoint(checkpoint_dir: Path) -> Optional[Path]:
    """The checkpoint that verl's own marker names, or None when nothing was saved.

    Source: verl/utils/checkpoint/checkpoint_manager.py, latest_checkpointed_iteration.txt.
    """
    marker = checkpoint_dir / "latest_checkpointed_iteration.txt"
    if not marker.exists():
        return None
    number = marker.read_text(errors="replace").strip()
    return checkpoint_dir / f"global_step_{number}" if number.isascii() and number.isdigit() else None
