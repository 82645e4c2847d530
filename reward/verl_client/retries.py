"""When a request is repeated, and how long to wait before: one policy for threads and for event loops.

Nothing here reads a clock, sleeps or sends: the transports do, and tell the time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from reward.errors import RewardOutageError

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
CONNECT_TIMEOUT_S = 10.0
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.2, 10.0
_SHORTEST_TIMEOUT_S = 0.1
# Clients that were all told "5 seconds" must not come back in the same instant.
_RETRY_AFTER_SPREAD = 0.25


@dataclass(frozen=True)
class Failure:
    """Why an attempt may be repeated, and how many seconds the server asked to wait (0: it did not say)."""

    cause: str
    retry_after: float = 0.0


class Retries:
    """The attempts of one call, until ``deadline`` seconds after ``now``; all times are of one monotonic clock."""

    def __init__(
        self,
        url: str,
        timeout: float,
        deadline: float,
        now: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.attempts = 0
        self._url = url
        self._timeout = timeout
        self._deadline = deadline
        self._end = now + deadline
        self._uniform = uniform

    def begin(self, now: float, waited: float = 0.0) -> float:
        """Count an attempt; the seconds that it may take.

        ``waited`` seconds for a free slot are this process' own queue, not the server's: they move the end.
        """
        self.attempts += 1
        self._end += waited
        return min(self._timeout, max(_SHORTEST_TIMEOUT_S, self._end - now))

    def failed(self, failure: Failure, now: float) -> float:
        """The seconds to sleep before the next attempt: exponential, spread, not sooner than the server said.

        Towards the end it is half of what is left, so that a server which comes back late is still found.

        Raises:
            RewardOutageError: there is no time left for another one; names the URL, the cause and the attempts.
        """
        left = self._end - now
        asked = failure.retry_after
        if left <= max(asked, _FIRST_BACKOFF_S):
            longer = f", which asks to wait {asked:g} s" if asked > 0 else ""
            raise RewardOutageError(
                f"reward server {self._url} gave no score within {self._deadline:g} s "
                f"({self.attempts} attempts); last cause: {failure.cause}{longer}",
                self._url,
                failure.cause,
                self.attempts,
            )
        backoff = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(self.attempts - 1, 10))
        spread = min(asked * self._uniform(0.0, _RETRY_AFTER_SPREAD), _LONGEST_BACKOFF_S, (left - asked) / 2)
        return max(min(backoff * self._uniform(0.5, 1.5), left / 2), asked + spread)


class Progress:
    """When calls of this process last got a score, by server. A queue that moves is not an outage."""

    def __init__(self) -> None:
        self._scored: dict[str, float] = {}

    def scored(self, url: str, now: float) -> None:
        """A call got its score."""
        self._scored[url] = now

    def forgiven(self, url: str, now: float, waited: float) -> float:
        """The ``waited`` seconds for a free slot, where another call got a score meanwhile; else none of them.

        A server that accepts and then says nothing would otherwise be an outage only after a deadline for each
        turn of the queue.
        """
        return waited if self._scored.get(url, -math.inf) >= now - waited else 0.0


PROGRESS = Progress()


def retry_after_seconds(text: str, now_epoch: float) -> float:
    """Seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); 0 where absent or unreadable."""
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_epoch)
    except (ValueError, OverflowError):
        return 0.0
