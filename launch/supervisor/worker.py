"""A node other than the head: run a Ray worker, tell the head when it dies, end when the head says so."""

import json
import os
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, Optional

from launch.supervisor.control import ControlError, Link
from launch.supervisor.environment import base_environment, device_environments, with_head
from launch.supervisor.node_folder import clean_up
from launch.supervisor.ports import free_plan
from launch.supervisor.processes import REAP_S, SIGNAL_S, Component, reap_orphans
from launch.supervisor.ray_cluster import worker_command
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError, find_evidence

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
        link = Link(str(head["address"]), int(head["control_port"]), hello, settings.join_s, cancelled)
    except ControlError as error:
        raise _failed(settings, "head", str(error), "head") from error
    try:
        return _serve(settings, link, head, cancelled)
    except ControlError as error:
        raise _failed(settings, "head", f"the head node is gone: {error}", "head") from error
    finally:
        # Hanging up tells the head that this node is clean; srun may kill it after that.
        clean_up(settings.temp_dir, grace_s=3.0)
        link.close()


def _start_ray(settings: Settings, head: Dict[str, Any]) -> Component:
    env = with_head(base_environment(settings, os.environ), head["address"], head["gcs_port"], head["reward_url"])
    ray_env, _ = device_environments(env, settings)
    command = worker_command(settings, free_plan(settings.job_number), f"{head['address']}:{head['gcs_port']}")
    return Component("ray worker", command, settings.log("ray worker"), ray_env, settings.run_dir)


def _serve(settings: Settings, link: Link, head: Dict[str, Any], cancelled: Callable[[], Optional[int]]) -> int:
    """Run the Ray worker until the head ends the job, and report what fails first on this node."""
    ray: Optional[Component] = None
    failure: Optional[Failure] = None
    try:
        ray = _start_ray(settings, head)
    except (SetupError, OSError) as error:
        failure = Failure("setup", settings.node, str(error), EXIT_CODES["setup"])
    reported: Optional[float] = None
    signalled: Optional[float] = None
    died: Optional[float] = None
    reaped = time.monotonic()
    while True:
        for message in link.poll(0.2):
            if message.get("type") == "end":
                return 0
        now = time.monotonic()
        if ray is not None and ray.poll() is not None:
            died = died or now
        # A signal to the whole job may reach Ray before this process: it is no failure of Ray then.
        if (
            died is not None
            and now - died > SIGNAL_S
            and failure is None
            and cancelled() is None
            and ray is not None
        ):
            cause = f"the Ray worker ended with {ray.exit_code}"
            code = EXIT_CODES["ray worker"]
            failure = Failure("ray worker", settings.node, cause, code, find_evidence(ray.log))
        elif cancelled() is not None and failure is None:
            signalled = signalled or now
            if now - signalled > _CANCEL_GRACE_S:
                cause = f"signal {cancelled()} on this node only"
                failure = Failure("node", settings.node, cause, EXIT_CODES["node"])
        if failure is not None and reported is None:
            reported = now
            link.report(asdict(failure))
        if reported is not None and now - reported > _HEAD_ENDS_S:
            raise ControlError(f"no end of the job {_HEAD_ENDS_S:.0f} s after this node's failure")
        if now - reaped > REAP_S:
            reaped = now
            reap_orphans()
