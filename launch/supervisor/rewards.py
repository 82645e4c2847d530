"""Where rewards come from: the server on this node or on its own, its readiness, one request."""

from typing import Dict, Optional

from launch.supervisor.control import Hub
from launch.supervisor.environment import device_environments
from launch.supervisor.parts import Parts, failure_of, say
from launch.supervisor.processes import Component
from launch.supervisor.reward_server import Readiness, server_command, watch_command
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, JobFailed

_SHOWN_LINES = 3


class Rewards:
    """The reward server as the head node sees it. `url` is empty before the node that serves is known."""

    def __init__(self, settings: Settings, parts: Parts, hub: Hub, port: int) -> None:
        self._settings = settings
        self._parts = parts
        self._hub = hub
        self._port = port
        self._env: Dict[str, str] = {}
        self._ready = False
        self._readiness = Readiness()
        self._canary: Optional[Component] = None
        self.url = "" if settings.reward_node else f"http://{settings.address}:{port}"

    def is_known(self) -> bool:
        """Whether it is known where rewards come from: a node of its own tells it in its hello."""
        told = self._hub.nodes.get(self._settings.reward_rank)
        if not self.url and told is not None:
            self.url = f"http://{told['address']}:{told['ports'].get('reward')}"
        return bool(self.url)

    def start(self, env: Dict[str, str]) -> None:
        """Start the server, whose model is there by now; `env`: of parts on this node."""
        settings, self._env = self._settings, env
        if settings.reward_node:
            self._hub.tell({"type": "serve"})
        elif settings.reward:
            _, own = device_environments(env, settings)
            self._parts.watch("reward server", server_command(settings, settings.address, self._port), own)

    def answer(self) -> bool:
        """Whether the server has its model and has scored one request as verl will send them; from the first on it
        is watched.

        Raises:
            JobFailed: the request got no score.
        """
        settings = self._settings
        if not settings.reward:
            return True
        if not self._ready and self._readiness.of(self.url):
            self._ready = True
            say(settings, f"reward server ready at {self.url}")
            self._parts.watch("reward watch", watch_command(settings, self.url), self._env)
            if settings.canary:
                self._canary = self._parts.start("canary", settings.canary, self._env)
        return self._ready and self._canary_is_done()

    def _canary_is_done(self) -> bool:
        canary = self._canary
        if canary is None:
            return True
        if canary.poll() is None:
            return False
        if canary.exit_code != 0:
            raise JobFailed(failure_of(canary, self._settings.node, EXIT_CODES["canary"]))
        for line in canary.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]:
            say(self._settings, f"canary: {line}")
        self._canary = None
        return True
