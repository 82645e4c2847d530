"""Settings of the client, read at each call from verl's reward_kwargs and the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from reward.errors import RewardConfigError

_PREFIX = "REWARD_"


@dataclass(frozen=True)
class ClientSettings:
    """How one call scores.

    Each value comes from the keyword argument (verl's ``custom_reward_function.reward_kwargs``), else from
    the environment variable, else from the default:

    ====================  ============================  =======
    keyword               environment                   default
    ====================  ============================  =======
    ``server_url``        REWARD_SERVER_URL             none, required
    ``server_token_file`` REWARD_SERVER_TOKEN_FILE      no token
    ``min_score``         REWARD_MIN_SCORE              -40
    ``max_score``         REWARD_MAX_SCORE              30
    ``timeout``           REWARD_TIMEOUT                60, seconds for one attempt
    ``deadline``          REWARD_DEADLINE               120, seconds of trying before it is an outage
    ``on_outage``         REWARD_ON_OUTAGE              raise; or penalty; or wait:SECONDS
    ``max_in_flight``     REWARD_MAX_IN_FLIGHT          64 requests of this process at a time
    ``log_path``          REWARD_LOG_PATH               no log
    ``log_max_bytes``     REWARD_LOG_MAX_BYTES          268435456, a file; one older file is kept
    ``log_max_chars``     REWARD_LOG_MAX_CHARS          65536 of a prompt and of a response; 0: no texts
    ====================  ============================  =======

    A keyword may carry the prefix too (``reward_min_score``). Other keywords are not for this module.
    """

    url: str
    min_score: float
    max_score: float
    timeout: float
    deadline: float
    on_outage: Literal["raise", "penalty"]
    max_in_flight: int
    token_file: str | None
    log_path: str | None
    log_max_bytes: int
    log_max_chars: int

    @classmethod
    def read(cls, keywords: Mapping[str, Any]) -> ClientSettings:
        """The settings of this call.

        Raises:
            RewardConfigError: a value is missing or wrong; names the keyword, the variable and the value.
        """
        low, high = _number(keywords, "min_score", "-40"), _number(keywords, "max_score", "30")
        if low > high:
            raise RewardConfigError(f"REWARD_MIN_SCORE {low:g} is above REWARD_MAX_SCORE {high:g}")
        policy, wait = _outage(_text(keywords, "on_outage", "raise"))
        deadline = _number(keywords, "deadline", "120", above=0)
        return cls(
            url=_url(_text(keywords, "server_url", "")),
            min_score=low,
            max_score=high,
            timeout=_number(keywords, "timeout", "60", above=0),
            deadline=deadline if wait is None else wait,
            on_outage=policy,
            max_in_flight=_count(keywords, "max_in_flight", "64", least=1),
            token_file=_text(keywords, "server_token_file", "") or None,
            log_path=log_path(keywords),
            log_max_bytes=_count(keywords, "log_max_bytes", str(256 * 2**20), least=1),
            log_max_chars=_count(keywords, "log_max_chars", str(2**16), least=0),
        )


def log_path(keywords: Mapping[str, Any]) -> str | None:
    """Where the reward log of this call is, whatever else may be wrong with its settings."""
    return _text(keywords, "log_path", "") or None


def _text(keywords: Mapping[str, Any], name: str, default: str) -> str:
    for key in (name, f"{_PREFIX}{name}".lower()):
        if keywords.get(key) is not None:
            return str(keywords[key])
    return os.environ.get(f"{_PREFIX}{name.upper()}") or default


def _number(keywords: Mapping[str, Any], name: str, default: str, above: float = -math.inf) -> float:
    text = _text(keywords, name, default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= above:
        need = "a finite number" + (f" above {above:g}" if above > -math.inf else "")
        raise RewardConfigError(f"{_PREFIX}{name.upper()} (keyword {name}) is {text!r}; expected {need}")
    return value


def _count(keywords: Mapping[str, Any], name: str, default: str, least: int) -> int:
    value = _number(keywords, name, default)
    if value < least or value != int(value):
        raise RewardConfigError(
            f"{_PREFIX}{name.upper()} (keyword {name}) is {value:g}; expected a whole number from {least} on"
        )
    return int(value)


def _url(text: str) -> str:
    if not text:
        raise RewardConfigError(
            "REWARD_SERVER_URL is not set: in a job the launcher sets it; by hand set it (or the keyword "
            "server_url) to where `python -m reward.server` listens, e.g. http://127.0.0.1:8000"
        )
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # [::1 without its end; a port that is none
        usable = False
    else:
        usable = usable and not (parts.query or parts.fragment or any(map(str.isspace, text)))
    if not usable:
        raise RewardConfigError(f"REWARD_SERVER_URL is {text!r}; expected http://HOST:PORT")
    return text.rstrip("/")


def _outage(text: str) -> tuple[Literal["raise", "penalty"], float | None]:
    """Policy and, for ``wait:SECONDS``, the deadline that replaces the usual one."""
    if text == "raise":
        return "raise", None
    if text == "penalty":
        return "penalty", None
    kind, _, seconds = text.partition(":")
    try:
        value = float(seconds) if kind == "wait" else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise RewardConfigError(f"REWARD_ON_OUTAGE is {text!r}; expected raise, penalty or wait:SECONDS")
    return "raise", value
