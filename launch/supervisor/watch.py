"""What the head node watches while the job runs: the other nodes, Ray, its own parts, rewards, signals."""

import json
import time
from typing import Callable, List, Optional

from launch.supervisor.control import Hub, Message
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.processes import REAP_S, SIGNAL_S, Component, reap_orphans
from launch.supervisor.ray_cluster import RayNodes
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import (
    EXIT_CODES,
    Evidence,
    Failure,
    JobFailed,
    find_evidence,
    noted_failures,
    read_failure,
)

_POLL_S = 0.2
# A part that died takes the trainer with it; the part is the cause, and is noticed within this time.
_ROOT_CAUSE_S = 4.0
# A message to a node has at most 65536 bytes.
_TOLD_NODES = 3000
# After that the nodes that are there start without those that come late.
_ADDRESSES_S = 20.0

Cancelled = Callable[[], Optional[int]]


def say(settings: Settings, text: str) -> None:
    """One line of progress on stdout, which is the job's log."""
    print(f"[{time.strftime('%H:%M:%S')} {settings.node}] {text}", flush=True)


def failure_of(part: Component, node: str, exit_code: int) -> Failure:
    """The failure of a part of this node that ended, with the telling line of its log."""
    ended = f"ended with {part.exit_code}"
    if part.exit_code is not None and part.exit_code > 128:
        ended = f"killed by signal {part.exit_code - 128}"
    return Failure(part.name, node, ended, exit_code, find_evidence(part.log))


class Watch:
    """Turns whatever fails into JobFailed.

    Attributes:
        parts: components that must run as long as they are watched.
        ray_nodes: the Ray cluster as its watcher tells it.
    """

    def __init__(self, settings: Settings, hub: Hub, cancelled: Cancelled) -> None:
        self._settings = settings
        self._hub = hub
        self._cancelled = cancelled
        self._reaped = time.monotonic()
        self._over = False
        self._ray_up: Optional[float] = None
        self._told = 0
        self.parts: List[Component] = []
        self.ray_nodes = RayNodes(LogFollower(settings.log("ray watch")))

    def turn(self) -> None:
        """One round, up to 0.2 s; raises JobFailed: a signal to this node before nodes, parts and rewards."""
        self._see_signal()
        try:
            self._see_failure()
        except JobFailed:
            # Slurm signals every process of a step, the image's file system too: what dies of it is no cause.
            until = time.monotonic() + SIGNAL_S
            while time.monotonic() < until:
                self._see_signal()
                time.sleep(0.05)
            raise
        if time.monotonic() - self._reaped > REAP_S:
            self._reaped = time.monotonic()
            reap_orphans()

    def _see_failure(self) -> None:
        if self._over:
            time.sleep(_POLL_S)
        else:
            self._see_nodes()
        for part in self.parts:
            if part.poll() is not None:
                raise JobFailed(failure_of(part, self._settings.node, EXIT_CODES[part.name]))
        self._see_reward_outage()

    def wait(self, ready: Callable[[], bool], limit_s: float, component: str) -> None:
        """Turn until `ready`; after `limit_s` seconds the component has failed."""
        deadline = time.monotonic() + limit_s
        while not ready():
            self.turn()
            if time.monotonic() > deadline:
                raise self.failed(component, f"not ready after {limit_s:.0f} s: {self._missing(component)}")

    def let_root_cause_show(self) -> None:
        """Give a part that took the trainer with it the time to be seen; raises JobFailed with it."""
        until = time.monotonic() + _ROOT_CAUSE_S
        while time.monotonic() < until:
            self.turn()

    def ray_is_up(self) -> None:
        """Let the other nodes start Ray: when all of them are known, or those that are after some time."""
        self._ray_up = time.monotonic()

    def nodes_are_over(self) -> None:
        """Stop watching the other nodes and the parts: what is left of the job needs this node alone."""
        self._over = True
        self.parts = []

    def failed(self, component: str, cause: str, node: Optional[str] = None) -> JobFailed:
        """The failure of a component with its code from the table; on this node unless another is named."""
        return JobFailed(Failure(component, node or self._settings.node, cause, EXIT_CODES[component]))

    # ---- one look each

    def _see_nodes(self) -> None:
        for event in self._hub.poll(_POLL_S):
            self._on_event(event)
        self._tell_addresses()
        for address in self.ray_nodes.update():
            names = {info["address"]: str(info["node"]) for info in self._hub.nodes.values()}
            raise self.failed("ray worker", f"Ray lost the node at {address}", names.get(address))

    def _on_event(self, event: Message) -> None:
        info = self._hub.nodes.get(int(event["rank"]), {})
        node = str(info.get("node"))
        if event["type"] == "failed":
            raise JobFailed(read_failure(event["failure"]))
        if event["type"] == "lost":
            for noted in noted_failures(self._settings.run_dir):
                if noted.node == node:
                    raise JobFailed(noted)
            raise self.failed("node", f"node lost: {event['why']}", node)
        if event["type"] == "hello":
            say(self._settings, f"{node} joined from {info['address']}")

    def _tell_addresses(self) -> None:
        known = len(self._hub.nodes)
        if self._ray_up is None or known == self._told:
            return
        if known == self._settings.nodes - 1 or time.monotonic() - self._ray_up > _ADDRESSES_S:
            self._told = known
            addresses = [self._settings.address, *(n["address"] for n in self._hub.nodes.values())]
            self._hub.tell({"type": "nodes", "addresses": addresses[:_TOLD_NODES]})

    def _see_reward_outage(self) -> None:
        """verl does not end for every exception of a reward function; the client's file says that it raised."""
        for file in sorted(self._settings.reward_log.glob("failure-*.json")):
            told = json.loads(file.read_text())
            evidence = Evidence(str(file), None, str(told["error"])[:500])
            code = EXIT_CODES["reward outage"]
            raise JobFailed(Failure("reward client", str(told["node"]), "reward outage", code, evidence))

    def _see_signal(self) -> None:
        number = self._cancelled()
        if number is None:
            return
        for noted in noted_failures(self._settings.run_dir):
            # srun signals everybody when one node fails; a cancelled job has such notes of a signal, too.
            if noted.exit_code != EXIT_CODES["cancelled"]:
                raise JobFailed(noted)
        cause = f"cancelled or out of time: signal {number}"
        raise JobFailed(Failure("job", self._settings.node, cause, EXIT_CODES["cancelled"]))

    def _missing(self, component: str) -> str:
        if component != "nodes":
            evidence = find_evidence(self._settings.log(component))
            return f"{evidence.file}: {evidence.text}" if evidence else "it has written no log"
        here = [f"{info['node']} ({info['address']})" for _, info in sorted(self._hub.nodes.items())]
        return (
            f"of {self._settings.nodes} nodes, {len(here)} besides the head said hello ({', '.join(here) or '-'})"
            f" and {self.ray_nodes.alive} are in Ray"
        )
