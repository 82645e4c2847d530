"""How many CPUs verl asks of Ray."""

from launch.config import Job
from launch.sizing.layout import plan_layout, ray_nodes

# CPUs that verl asks of Ray. For each GPU of a pool, max_colocate_count: 3 in single_controller/ray/base.py
# (ResourcePoolManager), 1 in trainer/ppo/ray_trainer.py of 0.6.1, 2 in workers/rollout/replica.py (a pool apart).
# For the driver: @ray.remote(num_cpus=...) of the task runner, experimental/one_step_off_policy/main_ppo.py and
# trainer/main_ppo.py. Same in 0.8.0 and 0.9.1.
_POOL_CPUS = {"0.6.1": 1}
_POOL_CPUS_NEW = 3
_ROLLOUT_CPUS = 2
RUNNER_CPUS = {"one_step_off": 10, "sync": 1}
# Ray itself, the reward and the agent-loop workers.
_LEAST_CPUS = 4


def cpus_on_fullest(job: Job) -> int:
    """CPUs below which verl waits for ever: where one node is in Ray, the driver is on it, too."""
    for_pools, with_driver = cpus_needed(job)
    return with_driver if ray_nodes(job) == 1 else for_pools


def cpus_needed(job: Job) -> tuple[int, int]:
    """CPUs that verl asks of Ray on the fullest node: (for its pools alone, with the driver there, too)."""
    layout = plan_layout(job)
    each = _POOL_CPUS.get(job.engine.verl, _POOL_CPUS_NEW)
    train, rollout = each * max(layout.train_gpus, 0), _ROLLOUT_CPUS * layout.rollout_gpus
    both = job.engine.mode == "one_step_off" and layout.ray_nodes == 1
    pools = train + rollout if both else max(train, rollout)
    return max(pools, _LEAST_CPUS), max(pools + RUNNER_CPUS[job.engine.mode], _LEAST_CPUS)
