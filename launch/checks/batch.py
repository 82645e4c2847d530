"""Batch arithmetic that verl checks only once Ray is up, or never (`launch.sizing.batches`)."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.batches import Steps, nearest_batches, steps
from launch.sizing.layout import fullest_pool, plan_layout
from launch.sizing.training_memory import DEFAULT_TOKENS_PER_GPU


def check_batch(job: Job) -> Iterator[Finding]:
    """Batches divide, a group has something to compare, and a sequence fits in a micro batch."""
    layout, n = plan_layout(job), job.rollout.n
    fullest, rule = fullest_pool(job, layout), steps(job, layout.train_world)
    remedy = batch_remedy(job, fullest or Steps(1, 1, 1, 1))
    yield from _whole_updates(job, remedy)
    if rule is not None and fullest is not None:  # check_gpus says what does not divide
        yield from _even_splits(job, rule, remedy)
    if job.algorithm.estimator in ("grpo", "rloo") and n < 2:
        yield error(
            "group-size",
            f"rollout.n={n}: {job.algorithm.estimator} compares the responses of one prompt; with one of them "
            "every advantage is 0",
            "set rollout.n=8, or algorithm.estimator=gae",
        )
    if job.actor.dynamic_batch:
        yield from _token_budget(job)


def batch_changes(job: Job, rule: Steps) -> dict[str, int]:
    """The fields to change, and their values, for batches that break no rule."""
    batch, mini = nearest_batches(job, rule)
    changes = {"data.train_batch_size": batch} if batch != job.data.train_batch_size else {}
    return changes | ({"actor.mini_batch_size": mini} if mini != job.actor.mini_batch_size else {})


def batch_remedy(job: Job, rule: Steps) -> str:
    """The same, to be read."""
    return "set " + " and ".join(f"{field}={value}" for field, value in batch_changes(job, rule).items())


def _whole_updates(job: Job, remedy: str) -> Iterator[Finding]:
    batch, mini = job.data.train_batch_size, job.actor.mini_batch_size
    if batch % mini:
        yield error(
            "mini-batch",
            f"data.train_batch_size={batch} is not a multiple of actor.mini_batch_size={mini}",
            remedy,
        )


def _even_splits(job: Job, rule: Steps, remedy: str) -> Iterator[Finding]:
    batch, mini, n = job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n
    uneven = [*_divides("train-batch", "train_batch_size*n", batch * n, rule, rule.micro, f"{batch}*{n}", remedy)]
    if not uneven and batch * n % rule.whole:
        uneven = [
            error(
                "train-batch",
                f"train_batch_size*n = {batch}*{n} = {batch * n} is not divisible by the {rule.whole} training "
                f"GPUs, as verl wants with actor.strategy={job.actor.strategy}",
                remedy,
            )
        ]
    told = f"{mini}*{n}"
    if not uneven and batch % mini == 0:
        uneven = [*_divides("mini-batch-split", "mini_batch_size*n", mini * n, rule, rule.micro, told, remedy)]
    yield from uneven
    if job.algorithm.estimator != "gae" or uneven:
        return
    each = mini * n // rule.copies
    if mini * n % rule.copies == 0 and each:
        fitting = next(size for size in range(min(rule.critic, each), 0, -1) if each % size == 0)
        remedy = f"set critic.micro_batch_size_per_gpu={fitting}"
    yield from _divides("critic-batch", "mini_batch_size*n", mini * n, rule, rule.critic, told, remedy)


def _divides(
    id_: str, name: str, sequences: int, rule: Steps, micro: int, told: str, remedy: str
) -> Iterator[Finding]:
    step = rule.copies * micro
    if sequences % step == 0:
        return
    parts = f"the data-parallel size, {step}"
    if micro > 1:
        parts = f"data-parallel size * micro batch = {rule.copies}*{micro} = {step}"
    yield error(id_, f"{name} = {told} = {sequences} is not divisible by {parts}", remedy)


def _token_budget(job: Job) -> Iterator[Finding]:
    """verl packs whole sequences; one longer than the budget fails (utils/seqlen_balancing.py)."""
    longest = job.longest_sequence
    budget = job.actor.max_tokens_per_gpu or DEFAULT_TOKENS_PER_GPU
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
