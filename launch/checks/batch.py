"""Batch arithmetic that verl checks only once Ray is up, or never."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.layout import model_parallel, plan_layout


def check_batch(job: Job) -> Iterator[Finding]:
    """Batches divide (verl/utils/config.py, validate_config; workers/config/actor.py).

    verl skips these checks with dynamic batching, where an uneven split fails later or is padded.
    """
    batch, mini, n = job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n
    if mini > batch or batch % mini:
        fitting = [size for size in range(min(mini, batch), 0, -1) if batch % size == 0]
        yield error(
            "mini-batch",
            f"data.train_batch_size={batch} is not a multiple of actor.mini_batch_size={mini}",
            f"set actor.mini_batch_size={fitting[0]}, or a multiple of {mini} for data.train_batch_size",
        )
    layout, size = plan_layout(job), model_parallel(job)
    if job.actor.strategy == "fsdp2":
        size = job.actor.context_parallel
    if layout.train_world < 1 or layout.train_world % size:
        return  # reported by check_gpus
    copies = layout.train_world // size
    micro = 1 if job.actor.dynamic_batch else job.actor.micro_batch_size_per_gpu
    uneven = [*_divides("train-batch", "train_batch_size*n", batch, n, copies, micro)]
    if not uneven and batch % mini == 0:
        uneven = [*_divides("mini-batch-split", "mini_batch_size*n", mini, n, copies, micro)]
    yield from uneven
    if job.algorithm.estimator == "gae" and not job.actor.dynamic_batch:
        critic = job.critic.micro_batch_size_per_gpu or micro
        yield from _divides("critic-batch", "mini_batch_size*n", mini, n, copies, critic)
    if job.algorithm.estimator in ("grpo", "rloo") and n < 2:
        yield error(
            "group-size",
            f"rollout.n={n}: {job.algorithm.estimator} compares the responses of one prompt; with one of them "
            "every advantage is 0",
            "set rollout.n=8, or algorithm.estimator=gae",
        )
    if job.actor.dynamic_batch:
        yield from _token_budget(job)


def _divides(id_: str, name: str, prompts: int, n: int, copies: int, micro: int) -> Iterator[Finding]:
    step, sequences = copies * micro, prompts * n
    if sequences % step == 0:
        return
    below, above = sequences // step * step, (sequences // step + 1) * step
    nearest = ", ".join(str(value) for value in (below, above) if value)
    parts = f"data-parallel size * micro batch = {copies}*{micro}" if micro > 1 else "the data-parallel size"
    yield error(
        id_,
        f"{name} = {prompts}*{n} = {sequences} is not divisible by {parts} = {step}"
        if micro > 1
        else f"{name} = {prompts}*{n} = {sequences} is not divisible by {parts}, {step}",
        f"nearest products: {nearest}",
    )


def _token_budget(job: Job) -> Iterator[Finding]:
    """verl packs whole sequences; one longer than the budget fails (utils/seqlen_balancing.py)."""
    longest = job.data.max_prompt_length + job.data.max_response_length
    budget = job.actor.max_tokens_per_gpu or 16384
    room = budget * job.actor.context_parallel
    if longest > room:
        yield error(
            "token-budget",
            f"a sequence of max_prompt_length + max_response_length = {longest} tokens is longer than "
            f"actor.max_tokens_per_gpu*context_parallel = {budget}*{job.actor.context_parallel} = {room}",
            f"set actor.max_tokens_per_gpu={-(-longest // job.actor.context_parallel)} or more",
        )
    elif job.actor.max_tokens_per_gpu is None:
        yield warning(
            "token-budget",
            f"actor.dynamic_batch fills micro batches up to verl's default of {budget} tokens on each GPU",
            f"set actor.max_tokens_per_gpu ({longest} or more)",
        )
