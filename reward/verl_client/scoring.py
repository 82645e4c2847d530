"""The reward functions that :mod:`reward.client` offers to verl."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reward.errors import RewardConfigError, RewardError
from reward.verl_client.call import STATUS_OK, STATUS_OUTAGE, STATUS_THINK_TAG, Call
from reward.verl_client.settings import ClientSettings
from reward.verl_client.transport import request_score

__all__ = [
    "STATUS_OK",
    "STATUS_OUTAGE",
    "STATUS_THINK_TAG",
    "compute_score",
    "compute_score_async",
    "compute_score_batch",
    "safe_hack_reward",
]

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """verl's custom reward function: the reward model's score of the pair (ground_truth, answer).

    The answer is the response without its thinking part (:mod:`reward.verl_client.thinking`); a stray think tag
    gets the minimum score. Settings are in :class:`reward.verl_client.settings.ClientSettings`.

    Returns:
        always the same keys, each a finite float: ``score`` (clamped), ``raw_score``, ``status`` (0 scored,
        1 stray think tag, 2 outage under the policy ``penalty``), ``clamped``, ``truncated`` (0 or 1),
        ``attempts``, ``latency_s``. verl takes the keys of a batch from its first sample and indexes all
        others with them (verl/experimental/reward_loop/reward_loop.py, 0.9.1).

    Raises:
        RewardOutageError: no score until the deadline, unless the policy is ``penalty``.
        RewardReplyError: the server refused the pair or gave no finite score.
        RewardConfigError: a setting is missing or wrong.
        RewardError: ``solution_str`` or ``ground_truth`` is missing or of a wrong type.
    """
    call = Call(data_source, kwargs)
    try:
        pair = call.read(solution_str, ground_truth)
        got = None if pair is None else request_score(call.settings, pair.prompt, pair.response)
    except Exception as error:
        penalty = call.failed(error)
        if penalty is None:
            raise
        return penalty
    return call.scored(got)


async def compute_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """As :func:`compute_score`, awaited: no thread waits for the server, so that a whole batch can be in flight.

    For verl's reward loops, which await a coroutine function (0.8 and 0.9: experimental/reward_loop, managers
    naive, dapo and gdpo; 0.6.1: experimental/reward/reward_loop). The manager ``remote`` and those of 0.6.1's
    driver (workers/reward_manager) take :func:`compute_score` only. Needs aiohttp.

    Raises:
        RewardError: as :func:`compute_score`; RewardConfigError also where aiohttp is missing.
    """
    call = Call(data_source, kwargs)
    try:
        pair = call.read(solution_str, ground_truth)
        got = None
        if pair is not None:
            # Here, not above: compute_score must load where there is no aiohttp.
            try:
                from reward.verl_client.async_transport import request_score_async
            except ImportError as missing:
                raise RewardConfigError(
                    f"compute_score_async: {missing}; install aiohttp, or name compute_score"
                ) from missing
            got = await request_score_async(call.settings, pair.prompt, pair.response)
    except asyncio.CancelledError:
        call.cancelled()
        raise
    except Exception as error:
        penalty = await asyncio.to_thread(call.failed, error)
        if penalty is None:
            raise
        return penalty
    # A file system that hangs must not stop the loop.
    return await asyncio.to_thread(call.scored, got) if call.is_logged else call.scored(got)


def compute_score_batch(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
    **kwargs: Any,
) -> list[dict[str, float]]:
    """As :func:`compute_score` for a batch, ``max_in_flight`` at a time: for 0.6.1's reward manager ``batch``.

    Where 0.6.1's driver computes rewards (rollout.mode=sync), naive and dapo ask for one response after the other
    (verl/workers/reward_manager/), so that the server never sees two at once. Agent loops have no ``batch``.

    Raises:
        RewardError: of the first response that has no score; those not yet sent are not sent. Also where the
            lists differ in length.
    """
    try:
        if not len(data_sources) == len(solution_strs) == len(ground_truths):
            raise RewardError(
                f"{len(data_sources)} data_sources, {len(solution_strs)} solution_strs and {len(ground_truths)} "
                "ground_truths; expected one of each for each response"
            )
        pool = _pool(ClientSettings.read(kwargs).max_in_flight)
    except RewardError as error:
        Call("batch", kwargs).failed(error)
        raise
    calls = [
        pool.submit(compute_score, *sample, None, **kwargs)
        for sample in zip(data_sources, solution_strs, ground_truths, strict=True)
    ]
    try:
        return [call.result() for call in calls]
    finally:
        for call in calls:
            call.cancel()


def safe_hack_reward(solution_str: str, ground_truth: Any, **kwargs: Any) -> float:
    """The score alone, under the name and signature that scripts written for one function use."""
    return compute_score(kwargs.pop("data_source", ""), solution_str, ground_truth, **kwargs)["score"]


def _pool(size: int) -> ThreadPoolExecutor:
    """Threads that live on between batches, each with its keep-alive session; a forked child makes its own."""
    # No lock, which a fork may catch closed; one pool too many is dropped before it has a thread.
    return _pools.setdefault((os.getpid(), size), ThreadPoolExecutor(size, thread_name_prefix="reward"))
