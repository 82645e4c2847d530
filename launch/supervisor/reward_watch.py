"""End with one line when the reward server gives no answer for too long. Runs as a process of its own.

    python3 launch/supervisor/reward_watch.py URL SECONDS

It asks GET /health, which reward/serving/app.py answers on its event loop while the model scores in a thread: a
server under load answers, perhaps late; one that is stopped, or whose event loop is stuck, still accepts
connections and says nothing. Exit codes: 1 no answer for SECONDS, 2 usage.
"""

import http.client
import queue
import sys
import threading
import time
from pathlib import Path
from typing import List, Optional
from urllib.parse import urlsplit

POLL_S = 2.0
# Questions that wait for an answer at the same time: one may be lost with its connection, a late one still counts.
_WAITING = 4
_TURN_S = 0.25


def command(url: str, limit_s: float) -> List[str]:
    """The command line of this watcher, for the supervisor."""
    return [sys.executable, str(Path(__file__).resolve()), url, f"{limit_s:g}"]


class RewardWatch:
    """Asks one server again and again.

    Attributes:
        silent_s: seconds without an answer, in which this process ran: while a whole job is suspended
            (scontrol suspend) nobody answers and nobody is to blame.
        cause: what the last question met, e.g. "Connection refused".
    """

    def __init__(self, url: str, limit_s: float) -> None:
        """Raises ValueError for a URL without host and port."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"{url!r} is not http://HOST:PORT")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/") + "/health"
        self._limit_s = limit_s
        self._answers: "queue.SimpleQueue[Optional[str]]" = queue.SimpleQueue()
        self._waiting = 0
        self._asked = -POLL_S
        self._looked = time.monotonic()
        self.silent_s = 0.0
        self.cause = "no answer yet"

    def turn(self) -> bool:
        """One round of up to 0.25 s; whether the server has answered within the limit."""
        now = time.monotonic()
        share = self._limit_s / _WAITING
        spacing = share if self._waiting else min(POLL_S, share)
        if now - self._asked >= spacing and self._waiting < _WAITING:
            self._asked = now
            self._waiting += 1
            # A thread for each question: `http.client` blocks, and none may hold up the next one.
            threading.Thread(target=self._ask, daemon=True).start()
        told = self._take()
        now = time.monotonic()
        self.silent_s = 0.0 if told else self.silent_s + min(now - self._looked, 2 * _TURN_S)
        self._looked = now
        return self.silent_s <= self._limit_s

    def _take(self) -> bool:
        """Wait for what the questions met; whether one was answered."""
        answered = False
        wait_s = _TURN_S
        while True:
            try:
                failure = self._answers.get(timeout=wait_s)
            except queue.Empty:
                return answered
            self._waiting -= 1
            answered = answered or failure is None
            self.cause = failure or "answered"
            wait_s = 0.001

    def _ask(self) -> None:
        # Directly, whatever http_proxy says: the server is inside the job.
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._limit_s)
        try:
            connection.request("GET", self._path)
            connection.getresponse().read()  # whatever it says: who answers does not hang
            self._answers.put(None)
        except (OSError, http.client.HTTPException) as error:
            self._answers.put(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def verdict(self) -> str:
        """One line for the log: the evidence of a hang."""
        last = self.cause if self.cause != "answered" else "connected, but no reply"
        return (
            f"error: the reward server at http://{self._host}:{self._port} hangs: no answer to GET {self._path} "
            f"for {self._limit_s:g} s ({last})"
        )


def main(words: List[str]) -> int:
    """Watch until the server is silent for too long. Exit codes: see the module."""
    try:
        url, seconds = words
        watch = RewardWatch(url, float(seconds))
    except ValueError as error:
        print(f"usage: reward_watch.py URL SECONDS ({error})", file=sys.stderr)
        return 2
    while watch.turn():
        pass
    print(watch.verdict(), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
