"""One score over HTTP from a thread, with retries until a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import urllib3

from reward.errors import RewardConfigError
from reward.token_file import known_token, was_replaced
from reward.verl_client.causes import cause_text
from reward.verl_client.replies import ServerScore, read_reply, request_body, request_headers
from reward.verl_client.retries import CONNECT_TIMEOUT_S, PROGRESS, Failure, Retries
from reward.verl_client.settings import ClientSettings

_threads = threading.local()
# By process: a child that was forked while all slots were taken would wait for threads that it does not have.
_slots: dict[tuple[int, int], threading.BoundedSemaphore] = {}


def request_score(settings: ClientSettings, prompt: str, response: str) -> ServerScore:
    """POST one pair to ``/score``.

    Connection errors, timeouts and 429, 502, 503, 504 are retried (:mod:`reward.verl_client.retries`) until
    ``settings.deadline`` seconds have passed; waiting for a free slot among ``settings.max_in_flight`` does not
    count while other calls get scores. A token file that cannot be read for the moment is retried likewise; so is
    401, where the file holds another token by now.

    Raises:
        RewardOutageError: no answer until the deadline; names the URL, the last cause and the attempts.
        RewardReplyError: another status than 200, or a reply without a finite ``score``.
        RewardConfigError: the URL or the token file is not usable.
    """
    body = request_body(prompt, response)
    retries = Retries(settings.url, settings.timeout, settings.deadline, time.monotonic())
    while True:
        with _slot(settings.max_in_flight) as waited:
            now = time.monotonic()
            timeout = retries.begin(now, PROGRESS.forgiven(settings.url, now, waited))
            outcome = _attempt(settings, body, timeout, retries.attempts)
        if isinstance(outcome, ServerScore):
            PROGRESS.scored(settings.url, time.monotonic())
            return outcome
        time.sleep(retries.failed(outcome, time.monotonic()))


def _attempt(settings: ClientSettings, body: bytes, timeout: float, attempts: int) -> ServerScore | Failure:
    path = settings.token_file
    try:
        token = None if path is None else known_token(path)
    except OSError as error:  # ESTALE, EIO: the shared file system's outage
        return Failure(f"REWARD_SERVER_TOKEN_FILE {path}: {error}")
    try:
        reply = _connections().request(
            "POST",
            f"{settings.url}/score",
            body=body,
            headers=request_headers(token),
            timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout), read=timeout),
            retries=False,
            redirect=False,
        )
    except (urllib3.exceptions.LocationValueError, urllib3.exceptions.URLSchemeUnknown) as error:
        raise RewardConfigError(f"REWARD_SERVER_URL {settings.url}: {error}") from error
    except urllib3.exceptions.HTTPError as error:
        return Failure(cause_text(error, timeout))
    if reply.status == 401 and path is not None and token is not None:
        try:
            if was_replaced(path, token):
                return Failure(f"HTTP 401 for the token that {path} held before")
        except OSError as error:
            return Failure(f"HTTP 401; REWARD_SERVER_TOKEN_FILE {path}: {error}")
    return read_reply(settings.url, reply.status, reply.headers.get("Retry-After", ""), reply.data, attempts, path)


def _connections() -> urllib3.PoolManager:
    """The kept-alive connection of this thread; a forked child makes its own.

    Of urllib3, since a call through requests takes twice the time. No proxy of the environment: the reward server
    is inside the job, and a proxy of the cluster must not see, or break, these requests.
    """
    if getattr(_threads, "pid", None) != os.getpid():
        _threads.connections = urllib3.PoolManager(num_pools=2, maxsize=1, cert_reqs="CERT_REQUIRED")
        _threads.pid = os.getpid()
    current: urllib3.PoolManager = _threads.connections
    return current


@contextmanager
def _slot(limit: int) -> Iterator[float]:
    """Hold one of ``limit`` slots of this process; yields the seconds waited for it."""
    # No lock, which a fork may catch closed: setdefault is one step.
    slots = _slots.setdefault((os.getpid(), limit), threading.BoundedSemaphore(limit))
    started = time.monotonic()
    with slots:
        yield time.monotonic() - started
