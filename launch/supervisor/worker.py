"""A node other than the head: run Ray or the reward server, tell the head when it dies, end when told to."""

import contextlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from launch.supervisor.control import ControlError, Link
from launch.supervisor.limits import oom_kills
from launch.supervisor.node_folder import clean_up
from launch.supervisor.node_part import NodePart
from launch.supervisor.ports import free_plan
from launch.supervisor.processes import REAP_S, reap_orphans
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import (
    EXIT_CODES,
    Failure,
    JobFailed,
    noted_failures,
)

_HEAD_ENDS_S = 20.0
# Ray ends the trainer for a worker that the kernel killed here: the head must hear of it before it judges.
_KILLS_S = 1.0
# A shared file system shows what another node has written a little later.
_SEEN_S = 2.0


def _verdict_is_out(settings: Settings) -> bool:
    """Whether the head has told how the job ended: what is missing of it then is no failure of this node."""
    return _shows(settings, settings.run_dir / "verdict.json")


def _shows(settings: Settings, file: Path) -> bool:
    """Whether a file is in the run directory; not while the file system has a hiccup."""
    try:
        # Listing the folder makes NFS clients look again where they remember a missing file.
        return file in settings.run_dir.iterdir()
    except OSError:
        return False


def _another_failed(settings: Settings) -> bool:
    """Whether the job ends for a known reason; srun then signals all nodes and takes the highest exit code."""
    try:
        noted = noted_failures(settings.run_dir)
    except OSError:  # of the file system: the next look is in 0.2 s
        noted = []
    return _verdict_is_out(settings) or any(failure.exit_code != EXIT_CODES["cancelled"] for failure in noted)


def _read_rendezvous(settings: Settings, cancelled: Callable[[], Optional[int]]) -> Optional[Dict[str, Any]]:
    """Where the head is, or None when it has ended before it could say so."""
    deadline = time.monotonic() + settings.join_s
    over: Optional[float] = None
    while cancelled() is None:
        if _shows(settings, settings.rendezvous):
            with contextlib.suppress(OSError):  # the head removes it at its end; or a hiccup, as above
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
        return _serve(link, NodePart(settings, str(head["address"]), ports, cancelled), cancelled)
    except ControlError as error:
        if _verdict_is_out(settings):
            return 0
        raise _failed(settings, "head", f"the head node is gone: {error}", "head") from error
    finally:
        # Hanging up tells the head that this node is clean; srun may kill it after that.
        clean_up(settings.temp_dir, grace_s=3.0)
        link.close()


def _serve(link: Link, node: NodePart, cancelled: Callable[[], Optional[int]]) -> int:
    """Keep the node until the head ends the job, and report what fails first."""
    reported: Optional[float] = None
    asked_to_end = False
    reaped = looked = time.monotonic()
    before, told_kills, ports = oom_kills(), 0, node.ports
    while True:
        messages = link.poll(0.2)
        if any(message.get("type") == "end" for message in messages):
            return 0
        if cancelled() is not None and not asked_to_end:
            # What follows, also the death of this process, is then no failure of this node.
            asked_to_end = True
            link.tell({"type": "signal"})
        node.turn(messages)
        if node.ports is not ports:
            ports = node.ports
            link.tell({"type": "ports", "ports": ports.services})
        now = time.monotonic()
        if before is not None and now - looked > _KILLS_S:
            looked = now
            kills = (oom_kills() or 0) - before
            if kills > told_kills:
                told_kills = kills
                link.tell({"type": "oom", "kills": kills})
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
