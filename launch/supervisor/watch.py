"""What the head node watches while the job runs: the other nodes, Ray, its own parts, rewards, signals."""

import contextlib
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set, Tuple

from launch.supervisor.control import Hub, Message
from launch.supervisor.guard import is_unguarded
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.log_limit import cut_logs
from launch.supervisor.missing_nodes import MissingNodes
from launch.supervisor.nodelist import expand
from launch.supervisor.parts import Parts, failure_of, say
from launch.supervisor.processes import REAP_S, SIGNAL_S, Component, reap_orphans
from launch.supervisor.ray_cluster import RayNodes
from launch.supervisor.ray_head import RayHead
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
from launch.supervisor.wall_time import in_last_minutes, out_of_time

_POLL_S = 0.2
# A part that died takes the trainer with it; the part is the cause, and is noticed within this time.
_ROOT_CAUSE_S = 4.0
# A message to a node has at most 65536 bytes.
_TOLD_NODES = 3000
# After that the nodes that are there start without those that come late.
_ADDRESSES_S = 20.0
_HEARTBEAT_S = 10.0
# A busy head of a thousand nodes answers late; one that is stopped never does.
_RAY_SILENT_S = 120.0
# A shared file system shows what another node has written a little later.
SEEN_S = 2.0
# Any other signal comes from sbatch's --signal, some minutes before the end.
_OF_SCANCEL = (signal.SIGTERM, signal.SIGINT)

Cancelled = Callable[[], Optional[int]]


def out_of_time_failure(settings: Settings) -> Failure:
    """The end of the allocation is near, or here."""
    at = time.strftime("%H:%M:%S", time.localtime(settings.ends_at))
    cause = f"out of time: the allocation ends at {at}"
    return Failure("job", settings.node, cause, EXIT_CODES["wall time"], kind="wall-time")


def _notes(settings: Settings) -> List[Failure]:
    """What nodes have noted; nothing while the file system has a hiccup."""
    try:
        return noted_failures(settings.run_dir)
    except OSError:
        return []


def _read_outage(file: Path, here: str) -> Tuple[str, str]:
    """(node, what the reward client said) from its note. One that is damaged tells of an outage all the same."""
    text = file.read_text(errors="replace")
    try:
        told = json.loads(text)
        return str(told["node"]), str(told["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return here, text.strip() or "the note of the reward client is empty"


@dataclass(frozen=True)
class Wait:
    """Something that must be ready within a time, and the component that has failed otherwise."""

    component: str
    ready: Callable[[], bool]
    limit_s: float


class Watch:
    """Turns whatever fails into JobFailed.

    Attributes:
        dead: nodes that were lost before they joined.
        oom_kills: rank -> processes that the kernel of that node killed for want of memory.
        ray_nodes: the Ray cluster as its watcher tells it.
    """

    def __init__(self, settings: Settings, hub: Hub, parts: Parts, ray: RayHead, cancelled: Cancelled) -> None:
        self._settings = settings
        self._hub = hub
        self._parts = parts
        self._ray = ray
        self._cancelled = cancelled
        self._reaped = 0.0
        self._beaten = 0.0
        self._over = False
        self._ray_up: Optional[float] = None
        self._told = 0
        self._signalled: Set[int] = set()
        self._missing = MissingNodes() if settings.nodes > 1 else None
        self.dead: List[str] = []
        self.oom_kills: Dict[int, int] = {}
        self.ray_nodes = RayNodes(LogFollower(settings.log("ray watch")))

    def turn(self) -> None:
        """One round, up to 0.2 s; raises JobFailed: a signal to this node before nodes, parts and rewards."""
        self._see_signal()
        try:
            self._see_failure()
        except JobFailed as error:
            if error.failure.kind == "node-lost":
                raise  # srun then signals the other nodes
            # Slurm signals every process of a step, the image's file system too: what dies of it is no cause.
            until = time.monotonic() + SIGNAL_S
            while time.monotonic() < until:
                self._see_signal()
                time.sleep(0.05)
            raise
        self._keep_house()

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now - self._reaped > REAP_S:
            self._reaped = now
            reap_orphans()
            self._parts.collect()
            for told in cut_logs(self._parts.logs):
                say(self._settings, told)
        if now - self._beaten > _HEARTBEAT_S:
            self._beaten = now
            with contextlib.suppress(OSError):  # for people who look; a hiccup of the file system is no failure
                self._settings.heartbeat.touch()

    def _see_failure(self) -> None:
        if self._over:
            time.sleep(_POLL_S)
        else:
            self._see_nodes()
            self._ray.turn()
        for part in self._parts.watched:
            if part.poll() is not None:
                raise JobFailed(self._failure_of(part))
        with contextlib.suppress(OSError):  # of the file system: the next look is in 0.2 s
            self._see_reward_outage()

    def wait_for(self, *waits: Wait) -> None:
        """Turn until all are ready; one that is not within its time has failed."""
        begun = time.monotonic()
        while True:
            missing = [wait for wait in waits if not wait.ready()]
            if not missing:
                return
            self.turn()
            for wait in missing:
                if time.monotonic() - begun > wait.limit_s:
                    why = self._why_not(wait.component)
                    raise self.failed(wait.component, f"not ready after {wait.limit_s:.0f} s: {why}")

    def let_root_cause_show(self) -> None:
        """Give a part that took the trainer with it the time to be seen; raises JobFailed with it."""
        until = time.monotonic() + _ROOT_CAUSE_S
        while time.monotonic() < until:
            self.turn()

    def nodes_are_over(self) -> None:
        """Stop watching the other nodes: what is left of the job needs this node alone."""
        self._over = True

    def failed(self, component: str, cause: str, node: Optional[str] = None) -> JobFailed:
        """The failure of a component with its code from the table; on this node unless another is named."""
        return JobFailed(Failure(component, node or self._settings.node, cause, EXIT_CODES[component]))

    # ---- one look each

    def _failure_of(self, part: Component) -> Failure:
        code = EXIT_CODES.get(part.name, EXIT_CODES["reward server"])
        if part.name != "reward watch":
            return failure_of(part, self._settings.node, code)
        cause = f"has hung: no answer for {self._settings.unresponsive_s:g} s"
        evidence = find_evidence(part.log)
        return Failure("reward server", self.reward_node, cause, code, evidence, kind="reward-hang")

    @property
    def reward_node(self) -> str:
        """Name of the node that serves rewards."""
        info = self._hub.nodes.get(self._settings.reward_rank)
        return str(info["node"]) if info else self._settings.node

    def _see_nodes(self) -> None:
        for event in self._hub.poll(_POLL_S):
            self._on_event(event)
        self._see_missing()
        self._tell_addresses()
        for address in self._lost_by_ray():
            names = {info["address"]: str(info["node"]) for info in self._hub.nodes.values()}
            lost = Failure(
                "ray worker",
                names.get(address) or self._settings.node,
                f"Ray lost the node at {address}",
                EXIT_CODES["ray worker"],
                kind="ray-node-lost",
            )
            raise JobFailed(lost)
        if self.ray_nodes.silent_s > _RAY_SILENT_S:
            cause = f"has hung: no answer to a question for its nodes for {_RAY_SILENT_S:.0f} s"
            code = EXIT_CODES["ray head"]
            raise JobFailed(Failure("ray head", self._settings.node, cause, code, kind="ray-node-lost"))

    def _lost_by_ray(self) -> List[str]:
        try:
            return self.ray_nodes.update()
        except OSError:  # of the file system: the next look is in 0.2 s
            return []

    def _see_missing(self) -> None:
        if self._missing is None or len(self._hub.nodes) == self._settings.nodes - 1:
            return
        joined = [str(info["node"]) for info in self._hub.nodes.values()]
        names = [name for name in expand(self._settings.nodelist) if name != self._settings.node]
        self.dead = self._missing.dead(joined, [name for name in names if name not in joined])
        if self.dead:
            cause = "node lost before it joined: it does not answer, other nodes do"
            raise JobFailed(Failure("node", self.dead[0], cause, EXIT_CODES["node"], kind="node-lost"))

    def _on_event(self, event: Message) -> None:
        info = self._hub.nodes.get(int(event["rank"]), {})
        node = str(info.get("node"))
        if event["type"] == "failed":
            raise JobFailed(read_failure(event["failure"]))
        if event["type"] == "signal":
            self._signalled.add(int(event["rank"]))
        if event["type"] == "oom":
            self.oom_kills[int(event["rank"])] = int(event["kills"])
        if event["type"] == "ports":
            info["ports"] = event["ports"]
        if event["type"] == "lost":
            for noted in _notes(self._settings):
                if noted.node == node:
                    raise JobFailed(noted)
            # One that was told to end first is a cancelled job's.
            kind = "" if event["rank"] in self._signalled else "node-lost"
            raise JobFailed(Failure("node", node, f"node lost: {event['why']}", EXIT_CODES["node"], kind=kind))
        if event["type"] == "hello":
            say(self._settings, f"{node} joined from {info['address']}")

    def _tell_addresses(self) -> None:
        known = len(self._hub.nodes)
        if self._ray_up is None and self._ray.up:
            self._ray_up = time.monotonic()
        if self._ray_up is None or known == self._told:
            return
        if known == self._settings.nodes - 1 or time.monotonic() - self._ray_up > _ADDRESSES_S:
            self._told = known
            addresses = [self._settings.address, *(n["address"] for n in self._hub.nodes.values())]
            told = {"gcs_port": self._ray.ports.gcs, "reward_url": self._ray.env["REWARD_SERVER_URL"]}
            self._hub.tell({"type": "nodes", "addresses": addresses[:_TOLD_NODES], **told})

    def _see_reward_outage(self) -> None:
        """verl does not end for every exception of a reward function; the client's file says that it raised."""
        for file in sorted(self._settings.reward_log.glob("failure-*.json")):
            node, text = _read_outage(file, self._settings.node)
            evidence = Evidence(str(file), None, text[:500])
            code = EXIT_CODES["reward outage"]
            raise JobFailed(Failure("reward client", node, "reward outage", code, evidence, kind="reward-outage"))

    def _see_signal(self) -> None:
        number = self._cancelled()
        if number is None:
            return
        self._see_notes()
        if is_unguarded():
            raise self.failed("head", "the guard of the supervisor was killed")
        now = time.time()
        early = number not in _OF_SCANCEL and in_last_minutes(self._settings, now)
        if early or out_of_time(self._settings, now):
            raise JobFailed(out_of_time_failure(self._settings))
        # srun signals everybody when one node fails; the note of that node shows a little later.
        until = time.monotonic() + (SEEN_S if self._settings.nodes > 1 else 0.0)
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            self._see_notes()
        cause = f"cancelled: {signal.Signals(number).name}"
        raise JobFailed(Failure("job", self._settings.node, cause, EXIT_CODES["cancelled"], kind="cancelled"))

    def _see_notes(self) -> None:
        """Fail with what a node has noted. A cancelled job has such notes of a signal, too."""
        for noted in _notes(self._settings):
            if noted.exit_code != EXIT_CODES["cancelled"]:
                raise JobFailed(noted)

    def _why_not(self, component: str) -> str:
        if component != "nodes":
            node = self.reward_node if component == "reward server" else self._settings.node
            evidence = find_evidence(self._settings.log(component, node))
            return f"{evidence.file}: {evidence.text}" if evidence else "it has written no log"
        here = [f"{info['node']} ({info['address']})" for _, info in sorted(self._hub.nodes.items())]
        return (
            f"of {self._settings.nodes} nodes, {len(here)} besides the head said hello ({', '.join(here) or '-'})"
            f" and {self.ray_nodes.alive} are in Ray"
        )
