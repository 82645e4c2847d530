"""One response to one score: what :mod:`reward.client` offers to verl."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from reward.errors import RewardError, RewardOutageError
from reward.verl_client.reward_log import mark_failure, reward_log
from reward.verl_client.settings import ClientSettings, log_path
from reward.verl_client.thinking import split_thinking
from reward.verl_client.transport import ServerScore, request_score

STATUS_OK, STATUS_THINK_TAG, STATUS_OUTAGE = 0.0, 1.0, 2.0
_STATUS_NAMES = {STATUS_OK: "ok", STATUS_THINK_TAG: "penalty", STATUS_OUTAGE: "outage_penalty"}
_SNIPPET_CHARS = 2000


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
    started = time.monotonic()
    record: dict[str, Any] = {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "timestamp_epoch": time.time(),
        "pid": os.getpid(),
        "node": socket.gethostname(),
        "data_source": str(data_source),
    }
    try:
        return _score(solution_str, ground_truth, kwargs, record, started)
    except RewardError as error:
        place = log_path(kwargs)
        if place is not None:
            mark_failure(place, {**record, "error": f"{type(error).__name__}: {error}"})
        raise


def _score(
    solution_str: str, ground_truth: Any, keywords: Mapping[str, Any], record: dict[str, Any], started: float
) -> dict[str, float]:
    """Score one pair and log it, also where it fails."""
    settings = ClientSettings.read(keywords)
    log = reward_log(settings.log_path, settings.log_max_bytes) if settings.log_path else None
    prompt = unicode_text(prompt_text(ground_truth))
    split = split_thinking(unicode_text(solution_str))
    texts = {"prompt": prompt[:_SNIPPET_CHARS], "response": split.answer[:_SNIPPET_CHARS]}
    lengths = {"prompt_len": len(prompt), "response_len": len(solution_str)}
    line = {**record, "server_url": settings.url, **lengths, **texts}
    status = STATUS_OK
    try:
        if split.stray:
            status, got = STATUS_THINK_TAG, ServerScore(settings.min_score, False, 0)
        else:
            got = request_score(settings, prompt, split.answer)
    except RewardError as error:
        outage = isinstance(error, RewardOutageError)
        attempts = error.attempts if isinstance(error, RewardOutageError) else 1
        if not outage or settings.on_outage != "penalty":
            if log is not None:
                log.write(
                    {
                        **line,
                        "score": None,
                        "raw_score": None,
                        "status": "outage" if outage else "error",
                        "attempts": attempts,
                        "latency_s": time.monotonic() - started,
                        "error": f"{type(error).__name__}: {error}",
                    }
                )
            raise
        status, got = STATUS_OUTAGE, ServerScore(settings.min_score, False, attempts)
    score = min(max(got.raw_score, settings.min_score), settings.max_score)
    result = {
        "score": score,
        "raw_score": got.raw_score,
        "status": status,
        "clamped": float(score != got.raw_score),
        "truncated": float(got.truncated),
        "attempts": float(got.attempts),
        "latency_s": time.monotonic() - started,
    }
    if log is not None:
        log.write({**line, **result, "status": _STATUS_NAMES[status], "attempts": got.attempts})
    return result


def unicode_text(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be sent.

    Raises:
        RewardError: not a string.
    """
    if not isinstance(text, str):
        raise RewardError(f"solution_str is {type(text).__name__}; expected a string")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def prompt_text(ground_truth: Any) -> str:
    """The prompt of the pair, which the data set carries as ground_truth.

    Strings as they are; numbers by ``str``; lists of strings joined by line ends; other lists and dicts as
    JSON. numpy scalars and arrays count as what ``tolist`` makes of them.

    Raises:
        RewardError: there is none.
    """
    value = ground_truth.tolist() if hasattr(ground_truth, "tolist") else ground_truth
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise RewardError(
            f"ground_truth is {value}; the data set must carry the text that goes to the reward model"
        )
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
