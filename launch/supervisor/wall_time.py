"""The end of the allocation: what verl is told of it, and when the supervisor ends the trainer.

    ... longest step ...| 60 s + end_margin_s |  END_S  | end of the allocation
        verl saves in here, after each step   | no trainer any more: verdict, cleaning up, requeue

verl's own reading (utils/checkpoint/checkpoint_manager.py:should_save_ckpt_esi, 0.6.1 to 0.9.1): after a step it
saves when `0 < expiration - now <= longest step + 60 + trainer.esi_redundant_time`, and trains on. The expiration
is the moment when the trainer is ended here; `checkpoint.before_end_s` is both `trainer.esi_redundant_time` and
`--end-margin`, so a save that starts in time has 60 s more than the user asked for. The V1 trainer of 0.9.1 does
not read it by itself: launch/hooks/save_before_end.py.
"""

from typing import Dict, Optional

from launch.supervisor.settings import Settings

# For ending the parts on all nodes (15 s for the other nodes, 3 s here), the verdict and scontrol.
END_S = 30.0
# What verl takes a save for (save_ckpt_duration).
VERL_SAVE_S = 60.0
# A trainer that has done its last step needs some time to end by itself.
LAST_STEP_S = 30.0
VARIABLE = "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


def trainer_ends_at(settings: Settings) -> Optional[float]:
    """When the trainer has to be gone, in Unix seconds; None: the end of the allocation is not known."""
    return None if settings.ends_at is None else settings.ends_at - END_S


def expiration_environment(settings: Settings) -> Dict[str, str]:
    """What tells verl of the end, in every process of the job: a Ray actor on any node runs the training loop."""
    end = trainer_ends_at(settings)
    return {} if end is None else {VARIABLE: f"{end:.0f}"}


def in_last_minutes(settings: Settings, saved_at: float) -> bool:
    """Whether a checkpoint of that time is one that verl wrote because of the end: one more might not come."""
    end = trainer_ends_at(settings)
    return end is not None and saved_at >= end - settings.end_margin_s - VERL_SAVE_S


def out_of_time(settings: Settings, now: float, saved_at: Optional[float] = None) -> bool:
    """Whether the trainer must end now, as the allocation does.

    Args:
        now: Unix seconds.
        saved_at: when this attempt wrote the first checkpoint of the last minutes (`in_last_minutes`; time of
            change of verl's marker); None: none yet. There is nothing to wait for then: verl would save after
            each further step, and the limit would cut one of these.
    """
    end = trainer_ends_at(settings)
    if end is None:
        return False
    if saved_at is not None and in_last_minutes(settings, saved_at) and now - saved_at >= LAST_STEP_S:
        return True
    return now >= end
