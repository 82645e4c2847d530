"""Fields that the user set and that do nothing in this job."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from launch.config import Job
from launch.config.templates import template_defaults
from launch.finding import Finding, warning


@dataclass(frozen=True)
class Ignored:
    """Fields of one section that do nothing under one condition.

    Attributes:
        section: dotted name; fields: in it, all of them where there is none.
        when: whether they do nothing in a job.
        why: of the message, after the colon.
    """

    section: str
    fields: tuple[str, ...]
    when: Callable[[Job], bool]
    why: str
    remedy: str


_TABLE = (
    Ignored(
        "rollout",
        ("nodes", "gpus_per_node"),
        lambda job: job.engine.mode == "sync",
        "in sync mode rollout and training share the same GPUs",
        "set actor.gpus_per_node for the shared pool, or engine.mode=one_step_off",
    ),
    Ignored(
        "critic",
        (),
        lambda job: job.algorithm.estimator != "gae",
        "no critic is trained without algorithm.estimator=gae",
        "set algorithm.estimator=gae, or --template ppo",
    ),
    Ignored(
        "reward",
        (
            "model",
            "gpus",
            "backend",
            "upstream",
            "upstream_key_file",
            "input",
            "max_length",
            "truncate",
            "dtype",
            "batch_tokens",
            "trust_remote_code",
            "timeout_s",
            "deadline_s",
            "on_outage",
            "min_score",
            "max_score",
            "ready_timeout_s",
            "unresponsive_s",
        ),
        lambda job: job.reward.kind == "function",
        "no reward server is started with reward.kind=function",
        "remove it, or set reward.kind=server",
    ),
    Ignored(
        "reward",
        ("dtype",),
        lambda job: job.reward.kind == "server" and job.reward.backend != "transformers",
        "the server behind reward.upstream computes as it was started",
        "remove it, and start that server with the dtype that you want",
    ),
    Ignored(
        "reward",
        ("deadline_s",),
        lambda job: job.reward.kind == "server" and job.reward.on_outage.startswith("wait:"),
        "reward.on_outage=wait:SECONDS takes its place",
        "remove it, or set reward.on_outage=raise",
    ),
    Ignored(
        "recovery",
        ("max_restarts",),
        lambda job: not job.recovery.requeue,
        "the job is not started again with recovery.requeue=false",
        "set recovery.requeue=true, or remove it",
    ),
    Ignored(
        "container",
        ("stage_dir",),
        lambda job: not job.container.stage,
        "the image is not copied with container.stage=false",
        "set container.stage=true, or remove it",
    ),
    Ignored(
        "reward",
        ("function_name",),
        lambda job: job.reward.kind == "server" and job.reward.function is None,
        "reward.kind=server calls no function of yours",
        "remove it, or set reward.kind=function and reward.function",
    ),
    Ignored(
        "actor",
        ("max_tokens_per_gpu",),
        lambda job: not job.actor.dynamic_batch,
        "micro batches are counted in sequences without actor.dynamic_batch",
        "set actor.dynamic_batch=true, or actor.micro_batch_size_per_gpu",
    ),
    Ignored(
        "actor",
        ("sequence_parallel",),
        lambda job: job.actor.strategy == "fsdp2" and job.actor.sequence_parallel,
        "it belongs to Megatron's tensor parallelism",
        "remove it; actor.context_parallel splits sequences with fsdp2",
    ),
    Ignored(
        "algorithm",
        ("lam",),
        lambda job: job.algorithm.estimator != "gae",
        "it belongs to algorithm.estimator=gae",
        "remove it, or set algorithm.estimator=gae",
    ),
    Ignored(
        "algorithm",
        ("norm_by_std",),
        lambda job: job.algorithm.estimator != "grpo",
        "it belongs to algorithm.estimator=grpo",
        "remove it, or set algorithm.estimator=grpo",
    ),
    Ignored(
        "algorithm",
        ("kl_loss_coef", "kl_loss_type"),
        lambda job: not job.algorithm.use_kl_loss,
        "the loss has no KL with algorithm.use_kl_loss=false",
        "set algorithm.use_kl_loss=true, or remove it",
    ),
    Ignored(
        "algorithm",
        ("kl_coef",),
        lambda job: not job.algorithm.use_kl_in_reward,
        "the rewards have no KL with algorithm.use_kl_in_reward=false",
        "set algorithm.use_kl_in_reward=true, or algorithm.kl_loss_coef for the KL in the loss",
    ),
    Ignored(
        "algorithm.overlong_buffer",
        ("length", "penalty_factor", "log"),
        lambda job: not job.algorithm.overlong_buffer.enable,
        "overlong responses are not punished without algorithm.overlong_buffer.enable",
        "set algorithm.overlong_buffer.enable=true, or remove it",
    ),
    Ignored(
        "algorithm.filter_groups",
        ("metric",),
        lambda job: not job.algorithm.filter_groups.enable,
        "there is no dynamic sampling without algorithm.filter_groups.enable",
        "set algorithm.filter_groups.enable=true, or remove it",
    ),
)


def check_ignored(job: Job) -> Iterator[Finding]:
    """One warning for each row of the table with all its fields that were set."""
    for row in _TABLE:
        section = reduce(getattr, row.section.split("."), job)
        given = _of_the_user(job, row.section, section)
        named = [f"{row.section}.{field}" for field in given if not row.fields or field in row.fields]
        if named and row.when(job):
            have = "has" if len(named) == 1 else "have"
            yield warning("ignored-field", f"{', '.join(named)} {have} no effect: {row.why}", row.remedy)


def _of_the_user(job: Job, name: str, section: Any) -> list[str]:
    """Fields that were set to something else than the template's value."""
    of_template: Any = template_defaults(job.template)
    for part in name.split("."):
        of_template = of_template.get(part, {})
    return [
        field
        for field in type(section).model_fields
        if field in section.model_fields_set
        and getattr(section, field) is not None
        and not (field in of_template and of_template[field] == getattr(section, field))
    ]
