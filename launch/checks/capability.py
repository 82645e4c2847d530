"""What a version of verl or a mode cannot do."""

from collections.abc import Iterator

from pydantic import BaseModel

from launch.checks.ignored import check_ignored
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.image_stack import JobStack, cpu_stacks, why_not
from launch.rehearsal.overrides import VERSIONS
from singularity.stack import Abilities


def check_capability(job: Job, said: JobStack, *, rehearse: bool) -> Iterator[Finding]:
    """Combinations that verl refuses only once Ray is up, or takes and does something else with."""
    yield from _mode(job, said.stack.can)
    yield from _dynamic_sampling(job, said.stack.can)
    if rehearse and job.rehearsal.rollout == "vllm":
        yield from _vllm_rehearsal(job, said)
    yield from _algorithm(job)
    yield from _reward(job)
    if not rehearse:  # shrinking sets fields, too
        yield from _fsdp2(job)
        yield from _contents(job)
        yield from check_ignored(job)


def _mode(job: Job, can: Abilities) -> Iterator[Finding]:
    if job.engine.mode == "one_step_off" and not can.one_step_off.able:
        yield error("engine-mode", why_not(can.one_step_off), can.one_step_off.instead)
    elif job.engine.mode == "one_step_off" and job.algorithm.estimator == "gae":
        critic = can.one_step_off_critic
        if not critic.able:
            yield error("one-step-off-critic", f"algorithm.estimator=gae: {why_not(critic)}", critic.instead)
    if job.engine.mode == "one_step_off" and job.rollout.free_cache:
        yield error(
            "free-cache",
            "rollout.free_cache=true: one_step_off sends new weights while the engine runs, and cannot with a "
            "freed cache (its own configuration: must be turned off)",
            "remove rollout.free_cache",
        )
    noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    if job.container.env.get(noset, "0") not in ("", "0"):
        yield warning(
            "noset-devices",
            f"container.env.{noset}: every worker sees all GPUs of its node, and two pools can meet on one",
            "remove it",
        )


def _vllm_rehearsal(job: Job, said: JobStack) -> Iterator[Finding]:
    stacks = cpu_stacks(job.engine.verl)
    able = sorted(verl for verl in VERSIONS if any(stack.can.vllm.able for stack in cpu_stacks(verl)))
    if not any(stack.can.vllm.able for stack in stacks):
        why = f": {why_not(stacks[0].can.vllm)}" if stacks else ""
        yield error(
            "rehearsal-rollout",
            f"verl {job.engine.verl} has no vllm rehearsal on CPU{why}",
            " or ".join(["set rehearsal.rollout=hf", *(f"engine.verl={verl}" for verl in able)]),
        )
    elif said.known and not said.stack.can.vllm.able:
        yield warning(
            "rehearsal-rollout",
            f"rehearsal.rollout=vllm: stack {said.stack.name} ({said.said_by}): {why_not(said.stack.can.vllm)}",
            f"{said.stack.can.vllm.instead}, or use another rehearsal.image; bash runs it here without the image",
        )


def _dynamic_sampling(job: Job, can: Abilities) -> Iterator[Finding]:
    groups = job.algorithm.filter_groups
    if not groups.enable:
        return
    sampling = can.dynamic_sampling
    if not sampling.able:
        yield error("dynamic-sampling", f"algorithm.filter_groups.enable: {why_not(sampling)}", sampling.instead)
        return
    if job.engine.mode == "one_step_off":
        yield error(
            "dynamic-sampling",
            f"algorithm.filter_groups.enable: verl {job.engine.verl} samples dynamically in sync mode alone "
            f"({sampling.source})",
            "set algorithm.filter_groups.enable=false, or engine.mode=sync",
        )
        return
    yield warning(
        "endless-sampling",
        f"algorithm.filter_groups has no limit in verl {job.engine.verl} (its V1 trainer ignores "
        "max_num_gen_batches): where every reward is the same, the first step never ends",
        "look at rewards of a rehearsal first, and keep cluster.time short",
    )
    yield warning(
        "reward-errors",
        "the V1 trainer, which dynamic sampling needs, logs an exception of the reward function and goes on",
        "watch reward_log/; an outage of the reward server ends the job all the same",
    )


def _named(section: BaseModel, *fields: str) -> list[str]:
    return [field for field in fields if field in section.model_fields_set]


def _fsdp2(job: Job) -> Iterator[Finding]:
    if job.actor.strategy != "fsdp2":
        return
    sizes = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "expert_tensor_parallel")
    for field in _named(job.actor, *sizes):
        if (getattr(job.actor, field) or 1) > 1:
            yield error(
                "megatron-only",
                f"actor.{field}={getattr(job.actor, field)} is a size of Megatron; fsdp2 would ignore it",
                f"set actor.{field}=1 or actor.strategy=megatron",
            )
    if job.actor.fp8 is not None and _named(job.actor, "fp8"):
        yield error(
            "megatron-only",
            f"actor.fp8={job.actor.fp8} is a recipe of Megatron with Transformer Engine; fsdp2 trains in bf16",
            "set actor.fp8=null or actor.strategy=megatron",
        )


def _reward(job: Job) -> Iterator[Finding]:
    reward = job.reward
    if reward.kind == "server" and reward.function is not None:
        yield error(
            "reward-function",
            f"reward.function={reward.function}, but reward.kind=server: the rewards would come from the reward "
            "model, and nothing would call your function",
            "set reward.kind=function, or remove reward.function",
        )


def _contents(job: Job) -> Iterator[Finding]:
    """Source: verl 0.9.1 utils/checkpoint/checkpoint_manager.py."""
    contents = job.checkpoint.contents
    if contents is None:
        return
    if job.checkpoint.merge and not {"model", "hf_model"} & set(contents):
        yield error(
            "checkpoint-contents",
            f"checkpoint.contents={contents} holds no weights, and checkpoint.merge wants to merge them",
            "add model, or set checkpoint.merge=false",
        )
        return
    missing = [part for part in ("model", "optimizer", "extra") if part not in contents]
    if missing:
        yield warning(
            "checkpoint-contents",
            f"checkpoint.contents={contents} lacks {', '.join(missing)}: training cannot go on from it",
            "leave checkpoint.contents out to be able to resume",
        )


def _algorithm(job: Job) -> Iterator[Finding]:
    algorithm, buffer = job.algorithm, job.algorithm.overlong_buffer
    if buffer.enable and buffer.length > job.data.max_response_length:
        yield error(
            "overlong-buffer",
            f"algorithm.overlong_buffer.length={buffer.length} is longer than "
            f"data.max_response_length={job.data.max_response_length}",
            f"set it to {max(job.data.max_response_length // 4, 1)}",
        )
    if algorithm.use_kl_loss and algorithm.use_kl_in_reward:
        yield warning(
            "kl-twice",
            "algorithm.use_kl_loss and algorithm.use_kl_in_reward are both on: the KL counts twice",
            "turn one of them off",
        )
    if job.rollout.temperature == 0 and job.rollout.n > 1:
        yield error(
            "greedy-group",
            f"rollout.temperature=0 makes the {job.rollout.n} responses of a prompt alike: every advantage is 0",
            "set rollout.temperature=1.0",
        )
