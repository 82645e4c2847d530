"""verl 0.9.1's V1 trainer saves before the end of the allocation, as the legacy trainer does by itself.

The V1 trainer (trainer/ppo/v1/trainer_base.py, PPOTrainer.fit) asks after each step only whether
`trainer.save_freq` divides its number. Here that is 1 while the end is near by verl's own rule
(utils/checkpoint/checkpoint_manager.py:should_save_ckpt_esi; launch/supervisor/wall_time.py gives it the end), and
what the job says otherwise.

Active where VERL_USE_EXTERNAL_MODULES names this module.
"""

from __future__ import annotations

import os
import time
from functools import wraps
from typing import Any

from launch.hooks.after_import import after_import

MODULE = "verl.trainer.ppo.v1.trainer_base"


class SaveFrequency:
    """`trainer.save_freq` of one trainer, after each of its steps."""

    def __init__(self, settings: Any) -> None:
        """`settings`: the section `trainer` of verl's configuration."""
        self._settings = settings
        self._of_the_job = settings.save_freq
        self._longest_s = 0.0
        self._begun: float | None = None

    def begin(self) -> None:
        """A step begins; what lies since the last one's begin is a whole turn, saving and all."""
        self._measure()
        self._begun = time.monotonic()

    def end(self) -> None:
        """The step is over and not saved yet."""
        from verl.utils.checkpoint.checkpoint_manager import should_save_ckpt_esi

        self._measure()
        near = should_save_ckpt_esi(
            max_steps_duration=self._longest_s, redundant_time=self._settings.esi_redundant_time
        )
        if self._of_the_job > 0:  # 0 and below: never save
            self._settings.save_freq = 1 if near else self._of_the_job

    def _measure(self) -> None:
        if self._begun is not None:
            self._longest_s = max(self._longest_s, time.monotonic() - self._begun)


def install(trainer_base: Any) -> None:
    """Let every V1 trainer look at the end after each step; nothing else of it changes."""
    trainer = trainer_base.PPOTrainer
    step = trainer.step

    @wraps(step)
    def step_and_look(self: Any, *args: Any, **kwargs: Any) -> Any:
        frequency = vars(self).setdefault("_save_before_end", None) or SaveFrequency(self.config.trainer)
        self._save_before_end = frequency
        frequency.begin()
        batch = step(self, *args, **kwargs)
        frequency.end()
        return batch

    trainer.step = step_and_look


if __name__ in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    after_import(MODULE, install)
