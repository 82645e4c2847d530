"""Batch arithmetic that verl checks only once Ray is up, or never."""

from collections.abc import Iterator

from launch.checks.plan import model_parallel
from launch.config import Job
from launch.finding import Finding, error
from launch.layout import plan_layout


def check_batch(job: Job) -> Iterator[Finding]:
    """Batch arithmetic that verl checks only once Ray is up (verl/utils/config.py, validate_config)."""
    batch, mini, n = job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n
    if mini > batch or batch % mini:
        yield error(
            "mini-batch",
            f"data.train_batch_size={batch} is not a multiple of actor.mini_batch_size={mini}",
            "choose a mini batch that divides the train batch",
        )
    world, size = plan_layout(job).train_world, model_parallel(job)
    if world < 1 or world % size:
        return  # reported by check_gpus
    step = world // size * job.actor.micro_batch_size_per_gpu
    if batch * n % step:
        below, above = batch * n // step * step, (batch * n // step + 1) * step
        yield error(
            "train-batch",
            f"train_batch_size*n = {batch}*{n} = {batch * n} is not divisible by data-parallel size * micro "
            f"batch = {world // size}*{job.actor.micro_batch_size_per_gpu} = {step}",
            f"nearest products: {below}, {above}",
        )
