"""The reward server as a part of the job: its command, whether it is ready, and what watches it."""

import http.client
import threading
import time
import urllib.error
import urllib.request
from typing import List, Optional

from launch.supervisor import reward_watch
from launch.supervisor.settings import Settings

# After that long another question is asked, whatever became of the last one.
_ASK_S = 10.0


def server_command(settings: Settings, address: str, port: int) -> List[str]:
    """The job's command of the server, with where to listen and whom to answer."""
    where = ["--host", address, "--port", str(port), "--token-file", str(settings.reward_token)]
    return [*settings.reward, *where]


def watch_command(settings: Settings, url: str) -> List[str]:
    """A process that ends when the server has answered nothing for `settings.unresponsive_s` seconds."""
    return reward_watch.command(url, settings.unresponsive_s)


class Readiness:
    """Asks a server again and again whether it is ready, from a thread: it may answer a byte a second."""

    def __init__(self) -> None:
        self._asking: Optional[threading.Thread] = None
        self._asked = 0.0
        self._ready = False

    def of(self, url: str) -> bool:
        """Whether the server at `url` has said that it is ready; asks it once more if not. Does not block."""
        now = time.monotonic()
        idle = self._asking is None or not self._asking.is_alive() or now - self._asked > _ASK_S
        if not self._ready and idle:
            self._asked = now
            self._asking = threading.Thread(target=self._ask, args=(url,), daemon=True)
            self._asking.start()
        return self._ready

    def _ask(self, url: str) -> None:
        self._ready = is_ready(url) or self._ready


def is_ready(url: str) -> bool:
    """Whether the server answers GET /ready with 200, asked directly, not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/ready", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
        return False  # not yet, or no reward server; the deadline is the caller's
