"""One call of the reward function, from verl's arguments to the result and the line in the log; sends nothing."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from reward.errors import RewardError, RewardOutageError
from reward.verl_client.replies import ServerScore
from reward.verl_client.reward_log import RewardLog, mark_failure, reward_log
from reward.verl_client.settings import ClientSettings, log_path
from reward.verl_client.thinking import split_thinking

STATUS_OK, STATUS_THINK_TAG, STATUS_OUTAGE = 0.0, 1.0, 2.0
_STATUS_NAMES = {STATUS_OK: "ok", STATUS_THINK_TAG: "penalty", STATUS_OUTAGE: "outage_penalty"}
_SNIPPET_CHARS = 1000


class Pair(NamedTuple):
    """What goes to the reward model."""

    prompt: str
    response: str


class Call:
    """:meth:`read`, then one of :meth:`scored`, :meth:`failed` and :meth:`cancelled`."""

    def __init__(self, data_source: object, keywords: Mapping[str, Any]) -> None:
        self._started = time.monotonic()
        self._keywords = keywords
        self._line: dict[str, Any] = {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "timestamp_epoch": time.time(),
            "pid": os.getpid(),
            "node": socket.gethostname(),
            "data_source": str(data_source),
        }
        self._settings: ClientSettings | None = None
        self._log: RewardLog | None = None

    @property
    def settings(self) -> ClientSettings:
        """Those of this call, once :meth:`read` has returned."""
        assert self._settings is not None
        return self._settings

    @property
    def is_logged(self) -> bool:
        """Whether ending it writes to a file."""
        return self._log is not None

    def read(self, solution_str: object, ground_truth: object) -> Pair | None:
        """The pair to send; None where the response has a stray think tag, which costs no request.

        Raises:
            RewardError: a setting, the response or the ground truth cannot be used.
        """
        settings = self._settings = ClientSettings.read(self._keywords)
        if settings.log_path is not None:
            self._log = reward_log(settings.log_path, settings.log_max_bytes)
        prompt = unicode_text(prompt_text(ground_truth), "ground_truth")
        whole = solution_str.tolist() if hasattr(solution_str, "tolist") else solution_str
        response = unicode_text(whole, "solution_str")
        split = split_thinking(response)
        limit = settings.log_max_chars
        self._line |= {
            "server_url": settings.url,
            "prompt_len": len(prompt),
            "response_len": len(response),
            "answer_len": len(split.answer),
            "prompt": prompt[:limit],
            "response": split.answer[:limit],
        }
        if split.stray:
            # What the tags did is seen in the response as it was.
            self._line["response_snippet"] = response[: min(limit, _SNIPPET_CHARS)]
            return None
        return Pair(prompt, split.answer)

    def scored(self, got: ServerScore | None) -> dict[str, float]:
        """Log the score and return what verl gets; None is the penalty for a stray think tag."""
        if got is None:
            return self._result(STATUS_THINK_TAG, ServerScore(self.settings.min_score, False, 0))
        return self._result(STATUS_OK, got)

    def failed(self, error: Exception) -> dict[str, float] | None:
        """Log that there is no score, and mark it for the launcher; None: ``error`` must be raised.

        Only an outage under the policy ``penalty`` has a result, the minimum score.
        """
        outage = isinstance(error, RewardOutageError)
        attempts = error.attempts if isinstance(error, RewardOutageError) else 1
        if outage and self.settings.on_outage == "penalty":
            return self._result(STATUS_OUTAGE, ServerScore(self.settings.min_score, False, attempts))
        said = f"{type(error).__name__}: {error}"
        self._write_without_score("outage" if outage else "error", attempts, said)
        # Read again: the settings as a whole may be what is wrong.
        place = log_path(self._keywords)
        if place is not None:
            known = ("timestamp", "timestamp_epoch", "pid", "node", "data_source")
            mark_failure(place, {**{key: self._line[key] for key in known}, "error": said})
        return None

    def cancelled(self) -> None:
        """Log that the caller gave up, as verl's rate_limited manager does after its own timeout."""
        self._write_without_score("cancelled", 1, "the caller cancelled the call")

    def _result(self, status: float, got: ServerScore) -> dict[str, float]:
        settings = self.settings
        score = min(max(got.raw_score, settings.min_score), settings.max_score)
        result = {
            "score": score,
            "raw_score": got.raw_score,
            "status": status,
            "clamped": float(score != got.raw_score),
            "truncated": float(got.truncated),
            "attempts": float(got.attempts),
            "latency_s": time.monotonic() - self._started,
        }
        if self._log is not None:
            told = {"status": _STATUS_NAMES[status], "attempts": got.attempts}
            counted = {"tokens": got.tokens, "dropped_tokens": got.dropped_tokens}
            self._log.write({**self._line, **result, **told, **counted})
        return result

    def _write_without_score(self, status: str, attempts: int, said: str) -> None:
        if self._log is not None:
            ending = {"attempts": attempts, "latency_s": time.monotonic() - self._started, "error": said}
            self._log.write({**self._line, "score": None, "raw_score": None, "status": status, **ending})


def unicode_text(text: object, name: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be sent.

    Raises:
        RewardError: not a string.
    """
    if not isinstance(text, str):
        raise RewardError(f"{name} is {type(text).__name__}; expected a string")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def prompt_text(ground_truth: Any) -> str:
    """The prompt of the pair, which the data set carries as ground_truth.

    Strings as they are; numbers by ``str``; lists of strings joined by line ends; other lists and dicts as
    JSON. numpy scalars and arrays count as what ``tolist`` makes of them.

    Raises:
        RewardError: there is none, or none that can be written as text.
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
        try:
            return json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError) as error:
            raise RewardError(
                f"ground_truth is a {type(value).__name__} that JSON cannot hold: {error}; store it as text"
            ) from error
    return str(value)
