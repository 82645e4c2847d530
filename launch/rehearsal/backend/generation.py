"""Batched sampling from a Hugging Face causal LM, token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Anything else is refused: ignoring it would train on other samples than asked for.
_KNOWN = {"temperature", "top_p", "top_k", "repetition_penalty", "logprobs", "max_tokens", "max_new_tokens"}


@dataclass(frozen=True)
class Sampling:
    """How to sample; requests with equal values share a batch.

    Attributes:
        max_new_tokens: Upper limit of the response, at least 1.
        temperature: 0 is greedy.
        top_p: Nucleus, in (0, 1].
        top_k: 0 is off (verl writes -1).
        repetition_penalty: 1.0 is off.
        ignore_eos: Generate to the limit.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: the prompt leaves no room for a response")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie in (0, 1]")


@dataclass(frozen=True)
class Completion:
    """One response: token ids with the end-of-sequence token, if it came, and each token's log-prob."""

    token_ids: list[int]
    log_probs: list[float]


def read_sampling(
    params: Mapping[str, Any],
    prompt: int,
    *,
    prompt_length: int,
    response_length: int,
    ignore_eos: bool = False,
) -> Sampling:
    """Sampling parameters as verl sends them (verl/experimental/agent_loop/agent_loop.py, 0.9.1).

    The default limit is that of verl's vLLM server: the response length, less what a prompt longer than
    prompt_length took (verl/workers/rollout/vllm_rollout/vllm_async_server.py:generate, 0.9.1).

    Raises:
        ValueError: A parameter is unknown or out of its range.
    """
    unknown = sorted(set(params) - _KNOWN)
    if unknown:
        raise ValueError(
            f"the hf rollout does not know the sampling parameters {unknown}; it knows {sorted(_KNOWN)}"
        )
    limit = params.get("max_tokens") or params.get("max_new_tokens")
    if limit is None:
        limit = min(response_length, prompt_length + response_length - prompt)
    return Sampling(
        max_new_tokens=int(limit),
        temperature=float(params.get("temperature", 1.0)),
        top_p=float(params.get("top_p", 1.0)),
        top_k=max(0, int(params.get("top_k") or 0)),
        repetition_penalty=float(params.get("repetition_penalty", 1.0)),
        ignore_eos=ignore_eos,
    )


def generate(model: Any, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
    """Sample one response for each prompt.

    The log-prob is that of the model at `temperature`, before top_p and top_k, as the trainer computes it.

    Args:
        model: AutoModelForCausalLM in eval mode.
        prompts: Token ids, of any lengths.
        sampling: One setting for the whole batch.
    """
    width = max(map(len, prompts))
    end = model.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [] if end is None else [end]
    pad = model.generation_config.pad_token_id
    if pad is None:
        pad = ends[0] if ends else 0
    ids = torch.full((len(prompts), width), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):  # padded on the left: all responses start in one column
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    how: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        how = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_new_tokens,
            repetition_penalty=sampling.repetition_penalty,
            pad_token_id=pad,
            eos_token_id=None if sampling.ignore_eos else ends,
            return_dict_in_generate=True,
            output_logits=True,
            **how,
        )
    new = out.sequences[:, width:]  # [batch, steps]
    logits = torch.stack([step.float() for step in out.logits], dim=1)  # [batch, steps, vocabulary]
    log_probs = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
    log_probs = log_probs.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    completions = []
    for tokens, scores in zip(new.tolist(), log_probs.tolist(), strict=True):
        length = len(tokens)
        if not sampling.ignore_eos:  # what follows the first end token is padding of the batch
            length = next((at + 1 for at, token in enumerate(tokens) if token in ends), length)
        completions.append(Completion(tokens[:length], scores[:length]))
    return completions
