"""Lengths in tokens: data, generation engine, model, reward model."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.shape import ModelShape

# rollout.max_num_batched_tokens of verl 0.6.1, 0.8.0 and 0.9.1.
_DEFAULT_BATCHED_TOKENS = 8192


def check_lengths(job: Job) -> Iterator[Finding]:
    """Lengths that do not fit together, whatever the model."""
    prompt, response = job.data.max_prompt_length, job.data.max_response_length
    rollout, longest = job.rollout, job.longest_sequence
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        yield error(
            "rollout-length",
            f"rollout.max_model_len={rollout.max_model_len} is less than data.max_prompt_length + "
            f"max_response_length = {prompt} + {response} = {longest}: responses are cut off, prompts fail",
            f"set rollout.max_model_len={longest}, or null",
        )
    yield from _batched_tokens(job, rollout.max_model_len or longest)


def _batched_tokens(job: Job, model_len: int) -> Iterator[Finding]:
    """vLLM: without chunked prefill a whole prompt must fit in one batch, up to max_model_len. verl 0.9.1 raises
    the budget by itself, with a warning in the log; SGLang's server of verl reads neither field."""
    rollout = job.rollout
    if rollout.engine == "sglang":
        unread = [name for name in ("max_batched_tokens", "chunked_prefill") if name in rollout.model_fields_set]
        if unread:
            yield warning(
                "rollout-budget",
                f"{', '.join(f'rollout.{name}' for name in unread)}: verl's SGLang server does not read it",
                "set +actor_rollout_ref.rollout.engine_kwargs.sglang.chunked_prefill_size=N by overrides",
            )
        return
    budget = rollout.max_batched_tokens or _DEFAULT_BATCHED_TOKENS
    if not rollout.chunked_prefill and budget < model_len:
        default = "" if rollout.max_batched_tokens else " (verl's default)"
        yield error(
            "rollout-budget",
            f"rollout.max_batched_tokens={budget}{default} is less than max_model_len={model_len} with "
            "rollout.chunked_prefill=false: vLLM does not start",
            f"set rollout.max_batched_tokens={model_len}, or rollout.chunked_prefill=true",
        )


def check_model_limit(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    """The longest sequence fits in the model's positions.

    verl 0.8.0 and 0.9.1 take max_position_embeddings as the limit, whatever the rope scaling (workers/rollout/
    utils.py, get_max_position_embeddings); 0.6.1 leaves it to the engine, which takes rope scaling into account.
    """
    wanted = max(job.longest_sequence, job.rollout.max_model_len or 0)
    limit = shape.context if job.engine.verl == "0.6.1" else shape.max_position
    if wanted <= limit:
        return
    named = f"data.max_prompt_length + max_response_length = {job.longest_sequence}"
    if (job.rollout.max_model_len or 0) == wanted:
        named = f"rollout.max_model_len={wanted}"
    remedy = f"lower the lengths to {limit} tokens together"
    if shape.context >= wanted:
        remedy += (
            f", or set max_position_embeddings={shape.context} in config.json, which its rope scaling reaches"
        )
    else:
        remedy += ", or extend the model by rope scaling (YaRN) in config.json"
    yield error("model-length", f"{named} is more than the {limit} positions of {where}", remedy)


def _cut(job: Job) -> str:
    """What becomes of a longer pair."""
    return {
        "right": "longer pairs lose the end of their longer text (reward.truncate=right)",
        "left": "longer pairs lose the beginning of the prompt, then of the response (reward.truncate=left)",
        "error": "the first longer pair ends the job (reward.truncate=error)",
    }[job.reward.truncate]


def check_reward_length(job: Job, limit: int | None = None, what: str = "") -> Iterator[Finding]:
    """The longest prompt and response against what the reward server takes: one warning at most.

    A reward.max_length that is exactly the limit says that the cut is meant.

    Args:
        limit: tokens that the reward model and its tokenizer take (reward/inputs.py lowers max_length to that);
            None where nobody knows.
        what: whose limit it is.
    """
    given, longest = job.reward.max_length, job.longest_sequence
    prompt, response = job.data.max_prompt_length, job.data.max_response_length
    data = f"data.max_prompt_length + max_response_length = {prompt} + {response} = {longest}"
    if limit is not None and given is not None and given > limit:
        cut = f", and {_cut(job)}" if longest > limit else ""
        told = f"reward.max_length={given} is more than the {limit} {what}: the server lowers it to that{cut}"
        yield warning("reward-length", told, f"set reward.max_length={limit}")
    elif limit is not None and given is None and longest > limit:
        told = f"{data} is more than the {limit} {what}: {_cut(job)}"
        yield warning("reward-length", told, f"set reward.max_length={limit} if that is meant")
    elif given is not None and given < longest and given != limit:
        told = f"reward.max_length={given} is less than {data}: {_cut(job)}"
        if limit is None:
            yield warning(
                "reward-length", told, f"set reward.max_length={longest}, if the reward model takes that many"
            )
        else:
            yield warning("reward-length", told, f"set reward.max_length={min(longest, limit)}")
