"""What a node other than the head runs, Ray or the reward server, and what is wrong with it."""

import json
import os
import time
from typing import Any, Callable, Dict, List, Optional

from launch.supervisor.environment import (
    base_environment,
    device_environments,
    make_caches,
    with_direct,
    with_head,
)
from launch.supervisor.log_limit import cut_logs
from launch.supervisor.parts import failure_of, say
from launch.supervisor.ports import PortPlan, free_plan
from launch.supervisor.processes import SIGNAL_S, Component
from launch.supervisor.ray_cluster import port_was_taken, start_command, worker_arguments
from launch.supervisor.reward_server import server_command
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, SetupError

# A cancelled job signals all nodes at once: the head's own word comes first.
_CANCEL_GRACE_S = 5.0
_TRIES = 3


class NodePart:
    """This node's part of the job.

    Attributes:
        ports: of this node; others when Ray found one of them taken.
    """

    def __init__(
        self, settings: Settings, head_address: str, ports: PortPlan, cancelled: Callable[[], Optional[int]]
    ) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._head_address = head_address
        self.ports = ports
        self._part: Optional[Component] = None
        self._told: Dict[str, Any] = {}
        self._tries = 0
        self._setup: Optional[str] = None
        self._since: Dict[str, float] = {}
        self._serves = settings.rank == settings.reward_rank
        if not self._serves:
            self._attempt(self._import_ray)

    def turn(self, messages: List[Dict[str, Any]]) -> None:
        """Start Ray when the head has told where the nodes are: its own Ray is up then. Or the reward server,
        when the head says that its model is there."""
        for message in messages:
            if message.get("type") == ("serve" if self._serves else "nodes") and not self._told:
                self._told = message
                self._attempt(self._start_server if self._serves else self._start_ray)
        if self._told and self._part is not None and self._part.poll() is not None and self._lost_a_port():
            self.ports = free_plan(self._settings.job_number)
            self._since.pop("death", None)
            self._attempt(self._import_ray)
            self._attempt(self._start_ray)

    def failure(self) -> Optional[Failure]:
        """What the head must know, or None while all is well.

        A signal to the whole job reaches Ray and this process at about the same time, and the head as well: it
        is neither a failure of Ray nor one of this node alone before some time has passed.
        """
        node = self._settings.node
        if self._setup is not None:
            return Failure("setup", node, self._setup, EXIT_CODES["setup"])
        if self._cancelled() is not None:
            if self._lasted("signal") > _CANCEL_GRACE_S:
                return Failure("node", node, f"signal {self._cancelled()} on this node only", EXIT_CODES["node"])
        elif self._part is not None and self._part.poll() is not None and self._lasted("death") > SIGNAL_S:
            return failure_of(self._part, node, EXIT_CODES[self._part.name])
        return None

    def cut_log(self) -> None:
        """Keep the log of this node's part within its limit."""
        if self._part is not None:
            for told in cut_logs([self._part.log]):
                say(self._settings, told)

    def _attempt(self, start: Callable[[], None]) -> None:
        """What goes wrong is told to the head with the next `failure`."""
        try:
            if self._setup is None:
                start()
        except (SetupError, OSError) as error:
            self._setup = str(error)

    def _import_ray(self) -> None:
        settings = self._settings
        env, _ = device_environments(self._base(), settings)
        log = settings.log("ray worker")
        self._part = Component("ray worker", start_command(), log, env, settings.run_dir, listens=True)

    def _start_ray(self) -> None:
        settings, told = self._settings, self._told
        self._tries += 1
        gcs = int(told["gcs_port"])
        env = with_head(self._base(), settings, self._head_address, gcs, str(told["reward_url"]))
        env, _ = device_environments(with_direct(env, [str(node) for node in told["addresses"]]), settings)
        arguments = worker_arguments(settings, self.ports, f"{self._head_address}:{gcs}")
        if self._part is not None:
            self._part.tell(json.dumps({"env": env, "arguments": arguments}) + "\n")

    def _start_server(self) -> None:
        settings = self._settings
        env = with_direct(self._base(), [self._head_address, settings.address])
        _, env = device_environments(env, settings)
        command = server_command(settings, settings.address, self.ports.reward)
        self._part = Component("reward server", command, settings.log("reward server"), env, settings.run_dir)

    def _lost_a_port(self) -> bool:
        """Whether Ray may be tried on other ports; the reward server's are known to everybody."""
        part = self._part
        return part is not None and part.name == "ray worker" and self._tries < _TRIES and port_was_taken(part.log)

    def _lasted(self, what: str) -> float:
        """Seconds since `what` was first asked about."""
        return time.monotonic() - self._since.setdefault(what, time.monotonic())

    def _base(self) -> Dict[str, str]:
        base = base_environment(self._settings, os.environ)
        make_caches(base)
        return base
