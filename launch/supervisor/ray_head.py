"""Ray's head and the process that watches its nodes: started at once, told to the other nodes when it listens."""

import socket
from dataclasses import replace
from typing import Dict, Optional

from launch.supervisor.environment import device_environments, with_head
from launch.supervisor.parts import Parts, say
from launch.supervisor.ports import PortPlan, free_plan
from launch.supervisor.processes import Component, stop
from launch.supervisor.ray_cluster import head_command, port_was_taken, watch_command
from launch.supervisor.settings import Settings

_TRIES = 3


class RayHead:
    """Ray's head on this node.

    Attributes:
        ports: of this node; Ray's own change when another program was quicker to take one.
        up: whether its GCS accepts connections.
        env: what parts of this node that use Ray get, once it is started.
    """

    def __init__(self, settings: Settings, ports: PortPlan, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._base: Dict[str, str] = {}
        self._reward_url = ""
        self._head: Optional[Component] = None
        self._watch: Optional[Component] = None
        self._tries = 0
        self.ports = ports
        self.up = False
        self.env: Dict[str, str] = {}

    def start(self, base: Dict[str, str], reward_url: str) -> None:
        """Start both. All of Ray's processes inherit their environment: rewards must have their place by now."""
        self._base, self._reward_url = base, reward_url
        head, watch = self._start()
        self._parts.watched += [head, watch]

    def turn(self) -> None:
        """See whether it is up; start it again on other ports where one was taken."""
        if self.up or self._head is None or self._watch is None:
            return
        self.up = _listens(self._settings.address, self.ports.gcs)
        if self.up or self._head.poll() is None or self._tries >= _TRIES or not port_was_taken(self._head.log):
            return
        say(self._settings, "a port of Ray was taken by another program; trying others")
        stop([self._watch], 0.0)
        own = {"control": self.ports.control, "reward": self.ports.reward}
        self.ports = replace(free_plan(self._settings.job_number), **own)
        old_head, old_watch = self._head, self._watch
        head, watch = self._start()
        self._parts.replace(old_head, head)
        self._parts.replace(old_watch, watch)

    def _start(self) -> "tuple[Component, Component]":
        self._tries += 1
        settings = self._settings
        self.env = with_head(self._base, settings, settings.address, self.ports.gcs, self._reward_url)
        ray_env, _ = device_environments(self.env, settings)
        # The head is what the address names; `ray start --head` would look for another one there.
        ray_env = {name: value for name, value in ray_env.items() if name != "RAY_ADDRESS"}
        self._head = self._parts.start("ray head", head_command(settings, self.ports), ray_env)
        self._watch = self._parts.start("ray watch", watch_command(), self.env)
        return self._head, self._watch


def _listens(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0
