"""The batch arithmetic of verl: what the sizes of a step and of an update must be multiples of.

Sources, alike in 0.6.1, 0.8.0 and 0.9.1: verl/utils/config.py (validate_config), workers/config/actor.py, and the
even split of a mini batch in the workers. verl skips the first with dynamic batching, where an uneven split fails
later or is padded.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from launch.config import Job

# Multiples looked at on each side of what the user wrote, and where the search for divisors ends.
_NEAR, _MOST = 64, 100_000


def model_parallel(job: Job) -> int:
    """GPUs that work on the same sequences; with Megatron they hold one copy of the actor."""
    actor = job.actor
    if actor.strategy != "megatron":
        return actor.context_parallel
    return actor.tensor_parallel * actor.pipeline_parallel * actor.context_parallel


def expert_tensor_parallel(job: Job) -> int:
    """GPUs that split one expert: Megatron takes the tensor parallel size where none is given."""
    return job.actor.expert_tensor_parallel or job.actor.tensor_parallel


def expert_group(job: Job) -> int:
    """GPUs that hold all experts once (megatron-core 0.16.1 parallel_state.py divides the world by it)."""
    return expert_tensor_parallel(job) * job.actor.expert_parallel * job.actor.pipeline_parallel


@dataclass(frozen=True)
class Steps:
    """What counts of sequences must be multiples of, on a training pool.

    Attributes:
        copies: the data-parallel size.
        micro: sequences of a micro batch; 1 with dynamic batching.
        critic: the critic's; 1 where none is trained or with dynamic batching.
        whole: GPUs that the sequences of a step must divide by on their own, 1 for Megatron.
    """

    copies: int
    micro: int
    critic: int
    whole: int

    def fit(self, batch: int, mini: int, n: int) -> bool:
        """Whether `batch` prompts in a step and `mini` in an update, `n` responses each, divide for the actor."""
        return not (batch % mini or batch * n % self.step or mini * n % (self.copies * self.micro))

    @property
    def step(self) -> int:
        """Sequences of a step are a multiple of this."""
        return math.lcm(self.copies * self.micro, self.whole)

    @property
    def update(self) -> int:
        """Sequences of an update are a multiple of this."""
        return self.copies * math.lcm(self.micro, self.critic)


def steps(job: Job, world: int) -> Steps | None:
    """For `world` training GPUs; None where the parallel sizes do not divide them."""
    size = model_parallel(job)
    if world < 1 or world % size:
        return None
    if job.actor.dynamic_batch:
        return Steps(world // size, 1, 1, 1)
    micro = job.actor.micro_batch_size_per_gpu
    critic = job.critic.micro_batch_size_per_gpu or micro
    return Steps(
        world // size,
        micro,
        critic if job.algorithm.estimator == "gae" else 1,
        1 if job.actor.strategy == "megatron" else world,
    )


def nearest_batches(job: Job, rule: Steps) -> tuple[int, int]:
    """(train_batch_size, mini_batch_size) that fit, as near as can be to those of the job."""
    batch, mini, n = job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n
    whole, part = rule.step // math.gcd(rule.step, n), rule.update // math.gcd(rule.update, n)

    def distance(pair: tuple[int, int]) -> tuple[float, int]:
        changed = (pair[0] != batch) + (pair[1] != mini)
        return abs(math.log(pair[0] / batch)) + abs(math.log(pair[1] / mini)) + 0.2 * changed, abs(pair[0] - batch)

    pairs = []
    for size in _minis(batch, mini, part):
        step = math.lcm(size, whole)
        pairs += [(step * times, size) for times in (batch // step, batch // step + 1) if times]
    return min(pairs, key=distance)


def _minis(batch: int, mini: int, part: int) -> Iterator[int]:
    """Multiples of `part`: those near to `mini`, and those that divide `batch`."""
    middle = mini // part
    yield from (part * times for times in range(max(middle - _NEAR, 1), middle + _NEAR + 2))
    if batch % part == 0:
        times = batch // part
        for low in range(1, min(math.isqrt(times), _MOST) + 1):
            if times % low == 0:
                yield part * low
                yield batch // low
