"""The request body, and what a reply means: a score, a reason to try again, or an error."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any

from reward.errors import RewardReplyError
from reward.verl_client.retries import RETRIED_STATUSES, Failure, retry_after_seconds

_SHOWN_CHARS = 300


@dataclass(frozen=True)
class ServerScore:
    """What the server said of one pair.

    Attributes:
        raw_score: finite, not clamped.
        attempts: requests that it took.
        tokens: of the pair as the model saw it; ``dropped_tokens`` are those that were cut off. None: not told.
    """

    raw_score: float
    truncated: bool
    attempts: int
    tokens: int | None = None
    dropped_tokens: int | None = None


def request_body(prompt: str, response: str) -> bytes:
    """The JSON of ``POST /score``, in UTF-8; the texts hold no lone surrogates."""
    return json.dumps({"prompt": prompt, "response": response}, ensure_ascii=False).encode()


def request_headers(token: str | None) -> dict[str, str]:
    """Those of every request, with the bearer token where the server wants one."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def read_reply(
    url: str, status: int, retry_after: str, content: bytes, attempts: int, token_file: str | None = None
) -> ServerScore | Failure:
    """What a whole reply means; ``token_file`` is that of the token which was sent.

    Raises:
        RewardReplyError: a status that is not worth a retry, or no finite ``score``.
    """
    if status in RETRIED_STATUSES:
        return Failure(f"HTTP {status}", retry_after_seconds(retry_after, time.time()))
    shown = content[: 4 * _SHOWN_CHARS].decode("utf-8", "replace")[:_SHOWN_CHARS]
    if status != 200:
        said = _detail(content) or shown.strip() or "(an empty reply)"
        raise RewardReplyError(f"reward server {url}: HTTP {status}: {said}{_remedy(status, token_file)}")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RewardReplyError(f"reward server {url}: the reply is not JSON: {shown!r}") from error
    fields = body if isinstance(body, dict) else {}
    score = _finite(fields.get("score"))
    if score is None:
        raise RewardReplyError(f"reward server {url}: no finite 'score' in the reply {shown!r}")
    return ServerScore(
        score,
        fields.get("truncated") is True,
        attempts,
        _count(fields.get("tokens")),
        _count(fields.get("dropped_tokens")),
    )


def _detail(content: bytes) -> str:
    """The sentence in our server's refusals; empty where there is none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    detail = body.get("detail") if isinstance(body, dict) else None
    return detail[:_SHOWN_CHARS] if isinstance(detail, str) else ""


def _remedy(status: int, token_file: str | None) -> str:
    if status == 401 and token_file is None:
        return (
            "; no token was sent: set REWARD_SERVER_TOKEN_FILE (keyword server_token_file) to the file that the "
            "server got as --token-file"
        )
    if status == 401:
        return (
            f"; REWARD_SERVER_TOKEN_FILE {token_file} holds another token than the file that the server got as "
            "--token-file"
        )
    if status in (404, 405):
        return "; REWARD_SERVER_URL must be http://HOST:PORT of `python -m reward.server`, without /score"
    return ""


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
