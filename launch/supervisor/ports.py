"""A block of ports for each job, so that two jobs on one node do not meet, tested by binding."""

import errno
import socket
from dataclasses import asdict, dataclass, fields
from typing import Dict, Optional

from launch.supervisor.verdict import SetupError

# Below the kernel's ephemeral range (32768-60999) and SGLang's own ports (30000 and up), above well-known ones.
FIRST_PORT = 10000
BLOCKS = 100
BLOCK_SIZE = 200


class PortError(SetupError):
    """No block of ports is free on this node."""


@dataclass(frozen=True)
class PortPlan:
    """The ports of one job on one node. `worker_min` to `worker_max` is Ray's range for its worker processes."""

    control: int
    reward: int
    gcs: int
    node_manager: int
    object_manager: int
    ray_client: int
    dashboard: int
    dashboard_agent_listen: int
    dashboard_agent_grpc: int
    metrics_export: int
    runtime_env_agent: int
    merge: int
    worker_min: int
    worker_max: int

    @property
    def services(self) -> Dict[str, int]:
        """Every port that one process listens on, by name."""
        return {name: port for name, port in asdict(self).items() if name in _SERVICES}


_SERVICES = [field.name for field in fields(PortPlan) if not field.name.startswith("worker_")]


def port_plan(job_number: int, shift: int = 0) -> PortPlan:
    """The block of a job. Job ids that differ by less than 100 get different blocks.

    Args:
        job_number: Slurm's job id, or a process id outside Slurm; not negative.
        shift: how many blocks further to look, after a collision.
    """
    base = FIRST_PORT + (job_number + shift) % BLOCKS * BLOCK_SIZE
    services = {name: base + offset for offset, name in enumerate(_SERVICES)}
    return PortPlan(**services, worker_min=base + len(services), worker_max=base + BLOCK_SIZE - 1)


def taken(port: int) -> Optional[str]:
    """Why `port` cannot be bound on this node, or None when it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: an old connection in TIME_WAIT is no collision.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen(1)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
    return None


def free_plan(job_number: int) -> PortPlan:
    """The first block, from the job's own on, whose service ports are all free.

    Raises:
        PortError: when every block has a taken port; names the job's own ones.
    """
    collisions = []
    for shift in range(BLOCKS):
        plan = port_plan(job_number, shift)
        busy = {name: port for name, port in plan.services.items() if taken(port)}
        if not busy:
            return plan
        collisions.append(busy)
    raise PortError(
        f"none of the {BLOCKS} port blocks from {FIRST_PORT} on is free; in this job's own block "
        f"{collisions[0]} are taken; see what listens with: ss -ltnp"
    )
