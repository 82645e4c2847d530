"""A node other than the head: run Ray or the reward server, tell the head when it dies, end when told to."""

import contextlib
import json
import os
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional

from launch.supervisor.control import ControlError, Link
from launch.supervisor.environment import (
    base_environment,
    device_environments,
    make_caches,
    with_direct,
    with_head,
)
from launch.supervisor.log_limit import cut_logs
from launch.supervisor.node_folder import clean_up
from launch.supervisor.ports import PortPlan, free_plan
from launch.supervisor.processes import REAP_S, SIGNAL_S, Component, reap_orphans
from launch.supervisor.ray_cluster import port_was_taken, worker_command
from launch.supervisor.reward_server import server_command
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import (
    EXIT_CODES,
    Failure,
    JobFailed,
    SetupError,
    noted_failures,
)
from launch.supervisor.watch import failure_of

# A cancelled job signals all nodes at once: the head's own word comes first.
_CANCEL_GRACE_S = 5.0
_HEAD_ENDS_S = 20.0
_TRIES = 3
# A shared file system shows what another node has written a little later.
_SEEN_S = 2.0


def _verdict_is_out(settings: Settings) -> bool:
    """Whether the head has told how the job ended: what is missing of it then is no failure of this node."""
    # Listing the folder makes NFS clients look again where they remember a missing file.
    return settings.run_dir.is_dir() and settings.run_dir / "verdict.json" in settings.run_dir.iterdir()


def _another_failed(settings: Settings) -> bool:
    """Whether the job ends for a known reason; srun then signals all nodes and takes the highest exit code."""
    noted = noted_failures(settings.run_dir)
    return _verdict_is_out(settings) or any(failure.exit_code != EXIT_CODES["cancelled"] for failure in noted)


def _read_rendezvous(settings: Settings, cancelled: Callable[[], Optional[int]]) -> Optional[Dict[str, Any]]:
    """Where the head is, or None when it has ended before it could say so."""
    deadline = time.monotonic() + settings.join_s
    over: Optional[float] = None
    while cancelled() is None:
        if settings.run_dir.is_dir() and settings.rendezvous in settings.run_dir.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the head removes it at its end
                data = json.loads(settings.rendezvous.read_text())
                if isinstance(data, dict):
                    return data
        elif _verdict_is_out(settings):
            over = over or time.monotonic()
            if time.monotonic() - over > _SEEN_S:  # no remembered listing of an earlier attempt
                return None
        if time.monotonic() > deadline:
            seen = "exists" if settings.run_dir.is_dir() else "does not exist"
            raise _failed(
                settings,
                "node",
                f"the head did not appear in {settings.rendezvous} for {settings.join_s:.0f} s; on this node "
                f"the run directory {seen}: it must be on a file system that all nodes share",
                "nodes",
            )
        time.sleep(0.2)
    until = time.monotonic() + _SEEN_S
    while time.monotonic() < until:
        if _another_failed(settings):
            return None
        time.sleep(0.2)
    raise _failed(settings, "node", "ended by a signal before the head appeared", "cancelled")


def _failed(settings: Settings, component: str, cause: str, code: str) -> JobFailed:
    return JobFailed(Failure(component, settings.node, cause, EXIT_CODES[code]))


def run_worker(settings: Settings, cancelled: Callable[[], Optional[int]]) -> int:
    """Serve the head until the end of the job; returns this node's exit code.

    0 after an orderly end, whatever the job's outcome: the head's code is the job's. Raises JobFailed when there
    is no head to tell it to.
    """
    head = _read_rendezvous(settings, cancelled)
    if head is None:
        return 0

    def given_up() -> Optional[int]:
        return 0 if _verdict_is_out(settings) else cancelled()

    ports = free_plan(settings.job_number)
    hello = {
        "rank": settings.rank,
        "node": settings.node,
        "address": settings.address,
        "ports": ports.services,
        "token": head["token"],
    }
    try:
        link = Link(str(head["address"]), int(head["control_port"]), hello, settings.join_s, given_up)
    except ControlError as error:
        if _verdict_is_out(settings):
            return 0
        raise _failed(settings, "head", str(error), "head") from error
    try:
        return _serve(link, _Node(settings, str(head["address"]), ports, cancelled), cancelled)
    except ControlError as error:
        if _verdict_is_out(settings):
            return 0
        raise _failed(settings, "head", f"the head node is gone: {error}", "head") from error
    finally:
        # Hanging up tells the head that this node is clean; srun may kill it after that.
        clean_up(settings.temp_dir, grace_s=3.0)
        link.close()


class _Node:
    """This node's part of the job, Ray or the reward server, and what is wrong with it."""

    def __init__(
        self, settings: Settings, head_address: str, ports: PortPlan, cancelled: Callable[[], Optional[int]]
    ) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._head_address = head_address
        self._ports = ports
        self._part: Optional[Component] = None
        self._told: Dict[str, Any] = {}
        self._tries = 0
        self._setup: Optional[str] = None
        self._since: Dict[str, float] = {}

    def turn(self, messages: List[Dict[str, Any]]) -> None:
        """Start Ray when the head has told where the nodes are: its own Ray is up then. Or the reward server,
        when the head says that its model is there."""
        wanted = "serve" if self._settings.rank == self._settings.reward_rank else "nodes"
        for message in messages:
            if message.get("type") == wanted and not self._told:
                self._told = message
                self._start()
        if self._part is not None and self._part.poll() is not None and self._lost_a_port():
            self._ports = free_plan(self._settings.job_number)
            self._since.pop("death", None)
            self._start()

    def _start(self) -> None:
        self._tries += 1
        start = _start_reward_server if self._told["type"] == "serve" else _start_ray
        try:
            self._part = start(self._settings, self._head_address, self._ports, self._told)
        except (SetupError, OSError) as error:
            self._setup = str(error)

    def _lost_a_port(self) -> bool:
        """Whether Ray may be tried on other ports; the reward server's are known to everybody."""
        part = self._part
        return part is not None and part.name == "ray worker" and self._tries < _TRIES and port_was_taken(part.log)

    def cut_log(self) -> None:
        """Keep the log of this node's part within its limit."""
        if self._part is not None:
            for told in cut_logs([self._part.log]):
                print(f"[{self._settings.node}] {told}", flush=True)

    def _lasted(self, what: str) -> float:
        """Seconds since `what` was first asked about."""
        return time.monotonic() - self._since.setdefault(what, time.monotonic())

    def failure(self) -> Optional[Failure]:
        """What the head must know, or None while all is well.

        A signal to the whole job reaches Ray and this process at about the same time, and the head as well: it
        is neither a failure of Ray nor one of this node alone before some time has passed.
        """
        node = self._settings.node
        if self._setup is not None:
            return Failure("setup", node, str(self._setup), EXIT_CODES["setup"])
        if self._cancelled() is not None:
            if self._lasted("signal") > _CANCEL_GRACE_S:
                return Failure("node", node, f"signal {self._cancelled()} on this node only", EXIT_CODES["node"])
        elif self._part is not None and self._part.poll() is not None and self._lasted("death") > SIGNAL_S:
            return failure_of(self._part, node, EXIT_CODES[self._part.name])
        return None


def _start_ray(settings: Settings, head_address: str, ports: PortPlan, told: Dict[str, Any]) -> Component:
    gcs = int(told["gcs_port"])
    env = with_head(_base(settings), settings, head_address, gcs, str(told["reward_url"]))
    env = with_direct(env, [str(address) for address in told["addresses"]])
    ray_env, _ = device_environments(env, settings)
    command = worker_command(settings, ports, f"{head_address}:{gcs}")
    return Component("ray worker", command, settings.log("ray worker"), ray_env, settings.run_dir)


def _start_reward_server(
    settings: Settings, head_address: str, ports: PortPlan, _told: Dict[str, Any]
) -> Component:
    base = with_direct(_base(settings), [head_address, settings.address])
    _, env = device_environments(base, settings)
    command = server_command(settings, settings.address, ports.reward)
    return Component("reward server", command, settings.log("reward server"), env, settings.run_dir)


def _base(settings: Settings) -> Dict[str, str]:
    base = base_environment(settings, os.environ)
    make_caches(base)
    return base


def _serve(link: Link, node: _Node, cancelled: Callable[[], Optional[int]]) -> int:
    """Keep the node until the head ends the job, and report what fails first."""
    reported: Optional[float] = None
    asked_to_end = False
    reaped = time.monotonic()
    while True:
        messages = link.poll(0.2)
        if any(message.get("type") == "end" for message in messages):
            return 0
        if cancelled() is not None and not asked_to_end:
            # What follows, also the death of this process, is then no failure of this node.
            asked_to_end = True
            link.tell({"type": "signal"})
        node.turn(messages)
        now = time.monotonic()
        if reported is None:
            failure = node.failure()
            if failure is not None:
                reported = now
                link.report(asdict(failure))
        elif now - reported > _HEAD_ENDS_S:
            raise ControlError(f"no end of the job {_HEAD_ENDS_S:.0f} s after this node's failure")
        if now - reaped > REAP_S:
            reaped = now
            reap_orphans()
            node.cut_log()
