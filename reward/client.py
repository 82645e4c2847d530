# PYTHON_ARGCOMPLETE_OK
"""verl's custom reward function, scored by the reward server.

    custom_reward_function.path=.../reward/client.py custom_reward_function.name=compute_score

(``reward.custom_reward_function.*`` from verl 0.8 on). Other names: ``compute_score_async`` (awaited; no thread
waits), ``compute_score_batch`` (0.6.1's reward manager ``batch``) and ``safe_hack_reward`` (the score alone).
Importing this file touches no network and reads no setting; see :mod:`reward.verl_client.scoring` and
:class:`reward.verl_client.settings.ClientSettings`. By hand: ``python -m reward.client --help``.

What verl does with an exception of this function, so that an outage is never a plain score:

- 0.9.1 ``one_step_off_policy``, and ``main_ppo`` with ``trainer.use_v1=false``: reward managers naive and
  dapo let it pass, it ends the trainer with exit code 1.
- 0.9.1 ``main_ppo`` with ``trainer.use_v1=true`` (its default): AgentLoopWorkerTQ logs it, marks the prompt
  ``failure`` and training goes on with fewer samples (verl/trainer/ppo/v1/agent_loop_tq.py,
  replay_buffer.py).
- 0.9.1 reward manager ``rate_limited``: turns it into 0.0 (reward_loop/reward_manager/limited.py).
- 0.6.1 ``main_ppo``: ends the trainer; where the reward is computed in the driver, ``compute_reward`` calls
  the function for the whole batch once more first (verl/trainer/ppo/reward.py), so an outage takes two
  deadlines.

Therefore a failure is also written as ``failure-NODE-PID.json`` beside the reward log, for the launcher to
end the job.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# verl loads this file by its path, from any folder, in processes that need not know the package.
if str(_HERE.parent) not in sys.path:
    sys.path.append(str(_HERE.parent))

import reward  # noqa: E402

if _HERE not in (Path(place).resolve() for place in reward.__path__):
    raise ImportError(
        f"{__file__}: the name 'reward' is taken by {list(reward.__path__)}; "
        f"put {_HERE.parent} first in PYTHONPATH"
    )

if __name__ == "__main__":
    from reward.command_line import quiet_imports

    quiet_imports(extra="reward")

from reward.errors import RewardConfigError, RewardError, RewardOutageError, RewardReplyError  # noqa: E402
from reward.verl_client.scoring import (  # noqa: E402
    compute_score,
    compute_score_async,
    compute_score_batch,
    safe_hack_reward,
)

__all__ = [
    "RewardConfigError",
    "RewardError",
    "RewardOutageError",
    "RewardReplyError",
    "compute_score",
    "compute_score_async",
    "compute_score_batch",
    "safe_hack_reward",
]

if __name__ == "__main__":
    from reward.command_line import run
    from reward.verl_client.command import main

    sys.exit(run(main))
