"""A node other than the head: run a Ray worker, tell the head when it dies, end when the head says so."""

import json
import os
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, Optional

from launch.supervisor.control import ControlError, Link
from launch.supervisor.environment import base_environment, device_environments, with_head
from launch.supervisor.ports import free_plan
from launch.supervisor.processes import Component, reap_orphans
from launch.supervisor.ray_cluster import worker_command
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, find_evidence

# A cancelled job signals all nodes at once: the head's own word comes first.
_CANCEL_GRACE_S = 5.0
_HEAD_ENDS_S = 20.0


def _read_rendezvous(settings: Settings, cancelled: Callable[[], Optional[int]]) -> Dict[str, Any]:
    deadline = time.monotonic() + settings.join_s
    while cancelled() is None:
        # Listing the folder makes NFS clients look again where they remember a missing file.
        if settings.run_dir.is_dir() and settings.rendezvous in settings.run_dir.iterdir():
            data = json.loads(settings.rendezvous.read_text())
            if isinstance(data, dict):
                return data
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
    raise _failed(settings, "node", "ended by a signal before the head appeared", "cancelled")


def _failed(settings: Settings, component: str, cause: str, code: str) -> JobFailed:
    return JobFailed(Failure(component, settings.node, cause, EXIT_CODES[code]))


def run_worker(settings: Settings, cancelled: Callable[[], Optional[int]]) -> int:
    """Serve the head until the end of the job; returns this node's exit code.

    0 after an orderly end, whatever the job's outcome: the head's code is the job's. Raises JobFailed when there
    is no head to tell it to.
    """
    head = _read_rendezvous(settings, cancelled)
    hello = {"rank": settings.rank, "node": settings.node, "address": settings.address, "token": head["token"]}
    try:
        link = Link(str(head["address"]), int(head["control_port"]), hello, settings.join_s)
    except ControlError as error:
        raise _failed(settings, "head", str(error), "head") from error
    env = with_head(base_environment(settings, os.environ), head["address"], head["gcs_port"], head["reward_url"])
    env, _ = device_environments(env, settings)
    ray = Component(
        "ray worker",
        worker_command(settings, free_plan(settings.job_number), f"{head['address']}:{head['gcs_port']}"),
        settings.log("ray worker"),
        env,
        settings.run_dir,
    )
    try:
        return _serve(settings, link, ray, cancelled)
    except ControlError as error:
        raise _failed(settings, "head", f"the head node is gone: {error}", "head") from error
    finally:
        ray.stop(grace_s=3.0)
        link.close()


def _serve(settings: Settings, link: Link, ray: Component, cancelled: Callable[[], Optional[int]]) -> int:
    reported: Optional[float] = None
    signalled: Optional[float] = None
    while True:
        for message in link.poll(0.2):
            if message.get("type") == "end":
                return 0
        now = time.monotonic()
        failure = None
        if ray.poll() is not None and reported is None:
            cause = f"the Ray worker ended with {ray.exit_code}"
            failure = Failure("ray worker", settings.node, cause, EXIT_CODES["ray worker"], find_evidence(ray.log))
        elif cancelled() is not None:
            signalled = signalled or now
            if reported is None and now - signalled > _CANCEL_GRACE_S:
                cause = f"signal {cancelled()} on this node only"
                failure = Failure("node", settings.node, cause, EXIT_CODES["node"])
        if failure is not None:
            reported = now
            link.report(asdict(failure))
        if reported is not None and now - reported > _HEAD_ENDS_S:
            raise ControlError(f"no end of the job {_HEAD_ENDS_S:.0f} s after this node's failure")
        reap_orphans()
