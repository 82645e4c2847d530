"""One score over HTTP, with retries until a deadline."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import requests
from requests.adapters import HTTPAdapter

from reward.errors import RewardConfigError, RewardOutageError, RewardReplyError
from reward.token_file import known_token, was_replaced
from reward.verl_client.settings import ClientSettings

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_CONNECT_TIMEOUT = 10.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.2, 10.0
_SHOWN_CHARS = 300

_threads = threading.local()
_slots: dict[int, threading.BoundedSemaphore] = {}
_slots_lock = threading.Lock()


@dataclass(frozen=True)
class ServerScore:
    """``raw_score`` as the server gave it, finite; ``attempts`` counts the requests that it took."""

    raw_score: float
    truncated: bool
    attempts: int


@dataclass(frozen=True)
class _Failure:
    """Why an attempt may be repeated, and how many seconds the server asked to wait (0: it did not say)."""

    cause: str
    retry_after: float = 0.0


def request_score(settings: ClientSettings, prompt: str, response: str) -> ServerScore:
    """POST one pair to ``/score``.

    Connection errors, timeouts and 429, 502, 503, 504 are retried with exponential backoff and jitter, not
    sooner than Retry-After says, until ``settings.deadline`` seconds have passed; waiting for a free slot
    among ``settings.max_in_flight`` does not count. A token file that cannot be read for the moment is retried
    likewise; so is 401, where the file holds another token by now.

    Raises:
        RewardOutageError: no answer until the deadline; names the URL, the last cause and the attempts.
        RewardReplyError: another status than 200, or a reply without a finite ``score``.
        RewardConfigError: the URL or the token file is not usable.
    """
    end = time.monotonic() + settings.deadline
    attempts = 0
    while True:
        with _slot(settings.max_in_flight) as waited:
            end += waited
            attempts += 1
            outcome = _attempt(settings, prompt, response, min(settings.timeout, max(0.1, end - time.monotonic())))
        if isinstance(outcome, requests.Response):
            raw_score, truncated = _parse(outcome, settings.url)
            return ServerScore(raw_score, truncated, attempts)
        backoff = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** min(attempts - 1, 10)) * random.uniform(0.5, 1.5)
        delay = max(backoff, outcome.retry_after)
        if time.monotonic() + delay >= end:
            raise RewardOutageError(
                f"reward server {settings.url} gave no score within {settings.deadline:g} s "
                f"({attempts} attempts); last cause: {outcome.cause}",
                settings.url,
                outcome.cause,
                attempts,
            )
        time.sleep(delay)


def _attempt(settings: ClientSettings, prompt: str, response: str, timeout: float) -> requests.Response | _Failure:
    path = settings.token_file
    if path is None:
        return _post(settings, None, prompt, response, timeout)
    try:
        token = known_token(path)
        outcome = _post(settings, token, prompt, response, timeout)
        if isinstance(outcome, requests.Response) and outcome.status_code == 401 and was_replaced(path, token):
            return _Failure(f"HTTP 401 for the token that {path} held before")
    except OSError as error:  # ESTALE, EIO: the shared file system's outage
        return _Failure(f"REWARD_SERVER_TOKEN_FILE {path}: {error}")
    return outcome


def _post(
    settings: ClientSettings, token: str | None, prompt: str, response: str, timeout: float
) -> requests.Response | _Failure:
    try:
        reply = _session().post(
            f"{settings.url}/score",
            json={"prompt": prompt, "response": response},
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=(min(_CONNECT_TIMEOUT, timeout), timeout),
            allow_redirects=False,
        )
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        return _Failure(f"{type(error).__name__}: {error}")
    except requests.RequestException as error:
        raise RewardConfigError(f"REWARD_SERVER_URL {settings.url}: {error}") from error
    if reply.status_code in RETRIED_STATUSES:
        return _Failure(f"HTTP {reply.status_code}", _retry_after(reply))
    return reply


def _parse(reply: requests.Response, url: str) -> tuple[float, bool]:
    """``(score, truncated)`` of a reply that is not retried."""
    if reply.status_code != 200:
        raise RewardReplyError(f"reward server {url}: HTTP {reply.status_code}: {reply.text[:_SHOWN_CHARS]}")
    try:
        body = reply.json()
    except ValueError as error:
        raise RewardReplyError(
            f"reward server {url}: the reply is not JSON: {reply.text[:_SHOWN_CHARS]!r}"
        ) from error
    score = body.get("score") if isinstance(body, dict) else None
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise RewardReplyError(
            f"reward server {url}: no finite 'score' in the reply {reply.text[:_SHOWN_CHARS]!r}"
        )
    return float(score), body.get("truncated") is True


def _retry_after(reply: requests.Response) -> float:
    """Seconds of Retry-After, a number or a date (RFC 9110, 10.2.3); 0 where absent or unreadable."""
    text = reply.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0


def _session() -> requests.Session:
    """The keep-alive session of this thread; a forked child makes its own."""
    if getattr(_threads, "pid", None) != os.getpid():
        session = requests.Session()
        # The reward server is inside the job: a proxy of the cluster must not see, or break, these requests.
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=1, max_retries=0))
        _threads.session, _threads.pid = session, os.getpid()
    current: requests.Session = _threads.session
    return current


@contextmanager
def _slot(limit: int) -> Iterator[float]:
    """Hold one of ``limit`` slots of this process; yields the seconds waited for it."""
    with _slots_lock:
        slots = _slots.setdefault(limit, threading.BoundedSemaphore(limit))
    started = time.monotonic()
    with slots:
        yield time.monotonic() - started
