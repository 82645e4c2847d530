"""One score over HTTP from an event loop, with the policy of :mod:`reward.verl_client.transport`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import aiohttp

from reward.errors import RewardConfigError
from reward.token_file import is_known, known_token, was_replaced
from reward.verl_client.causes import cause_text
from reward.verl_client.replies import ServerScore, read_reply, request_body, request_headers
from reward.verl_client.retries import CONNECT_TIMEOUT_S, PROGRESS, Failure, Retries
from reward.verl_client.settings import ClientSettings

# Below the 5 s after which uvicorn closes an idle connection: never send on one that is just being closed.
_KEEP_ALIVE_S = 4.0


class _LoopClient:
    """What all calls of one event loop share: a session, and the slots for each bound in use."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self._slots: dict[int, asyncio.Semaphore] = {}

    def slots(self, limit: int) -> asyncio.Semaphore:
        return self._slots.setdefault(limit, asyncio.Semaphore(limit))


_clients: dict[asyncio.AbstractEventLoop, tuple[_LoopClient, AsyncGenerator[_LoopClient, None]]] = {}


async def request_score_async(settings: ClientSettings, prompt: str, response: str) -> ServerScore:
    """As :func:`reward.verl_client.transport.request_score`; ``settings.max_in_flight`` bounds each event loop.

    Raises:
        RewardOutageError, RewardReplyError, RewardConfigError: as there.
    """
    body = request_body(prompt, response)
    client = await _client()
    retries = Retries(settings.url, settings.timeout, settings.deadline, time.monotonic())
    while True:
        queued = time.monotonic()
        async with client.slots(settings.max_in_flight):
            now = time.monotonic()
            timeout = retries.begin(now, PROGRESS.forgiven(settings.url, now, now - queued))
            outcome = await _attempt(client.session, settings, body, timeout, retries.attempts)
        if isinstance(outcome, ServerScore):
            PROGRESS.scored(settings.url, time.monotonic())
            return outcome
        await asyncio.sleep(retries.failed(outcome, time.monotonic()))


async def _attempt(
    session: aiohttp.ClientSession, settings: ClientSettings, body: bytes, timeout: float, attempts: int
) -> ServerScore | Failure:
    path = settings.token_file
    token = None
    if path is not None:
        try:
            # The first read may hang with the shared file system, which must not stop the loop.
            token = known_token(path) if is_known(path) else await asyncio.to_thread(known_token, path)
        except OSError as error:
            return Failure(f"REWARD_SERVER_TOKEN_FILE {path}: {error}")
    try:
        async with session.post(
            f"{settings.url}/score",
            data=body,
            headers=request_headers(token),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT_S),
            allow_redirects=False,
        ) as reply:
            status, retry_after = reply.status, reply.headers.get("Retry-After", "")
            content = await reply.read()
    # ClientResponseError: what listens there speaks no HTTP, which requests calls a ConnectionError.
    except (
        aiohttp.ClientConnectionError,
        aiohttp.ClientPayloadError,
        aiohttp.ClientResponseError,
        asyncio.TimeoutError,
    ) as error:
        return Failure(cause_text(error, timeout))
    except aiohttp.ClientError as error:
        raise RewardConfigError(f"REWARD_SERVER_URL {settings.url}: {type(error).__name__}: {error}") from error
    if status == 401 and path is not None and token is not None:
        try:
            if await asyncio.to_thread(was_replaced, path, token):
                return Failure(f"HTTP 401 for the token that {path} held before")
        except OSError as error:
            return Failure(f"HTTP 401; REWARD_SERVER_TOKEN_FILE {path}: {error}")
    return read_reply(settings.url, status, retry_after, content, attempts, path)


async def _client() -> _LoopClient:
    """The client of the running loop."""
    loop = asyncio.get_running_loop()
    known = _clients.get(loop)
    if known is None:
        for closed in [other for other in list(_clients) if other.is_closed()]:
            _clients.pop(closed, None)
        opened = _open(loop)
        known = _clients[loop] = (await anext(opened), opened)  # suspends nowhere: no other call can come between
    return known[0]


async def _open(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[_LoopClient, None]:
    """A generator: a loop that ends in order (``asyncio.run``) closes its generators, and with it the session."""
    # No slots of aiohttp's own, and no proxy of the cluster (trust_env): the server is inside the job.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        try:
            yield _LoopClient(session)
        finally:
            _clients.pop(loop, None)
