"""The reward server as a part of the job: its command, whether it is ready, and what watches it."""

import urllib.error
import urllib.request
from typing import List

from launch.supervisor import reward_watch
from launch.supervisor.settings import Settings


def server_command(settings: Settings, address: str, port: int) -> List[str]:
    """The job's command of the server, with where to listen and whom to answer."""
    where = ["--host", address, "--port", str(port), "--token-file", str(settings.reward_token)]
    return [*settings.reward, *where]


def watch_command(settings: Settings, url: str) -> List[str]:
    """A process that ends when the server has answered nothing for `settings.unresponsive_s` seconds."""
    return reward_watch.command(url, settings.unresponsive_s)


def is_ready(url: str) -> bool:
    """Whether the server answers GET /ready with 200, asked directly, not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/ready", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False  # not yet; the deadline is the caller's
