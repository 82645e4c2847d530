"""The ports of a job: a block of its own, derived from the job id, tested on the node before use."""

import errno
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Dict, List, Optional

from launch.supervisor.verdict import SetupError

# Below the kernel's ephemeral range (32768 and up) and below SGLang's own ports (30000 and up), above the
# well-known ones.
FIRST_PORT = 10000
BLOCKS = 100
BLOCK_SIZE = 200
# Every fourth port of Ray's worker range is tried: a millisecond, and enough to see that most are taken.
_SAMPLE = 4
_KERNEL = Path("/proc/sys/net/ipv4")


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

    @property
    def ports(self) -> range:
        """All ports of the block."""
        return range(min(self.services.values()), self.worker_max + 1)


_SERVICES = [field.name for field in fields(PortPlan) if not field.name.startswith("worker_")]


@dataclass(frozen=True)
class Ephemeral:
    """Ports that the kernel gives to outgoing connections of any program on this node.

    Attributes:
        reserved: of those between `low` and `high`, the ones that it keeps for servers.
    """

    low: int
    high: int
    reserved: "frozenset[int]" = frozenset()

    def overlaps(self, block: int) -> bool:
        """Whether a block (0 to BLOCKS - 1) holds such ports."""
        first = FIRST_PORT + block * BLOCK_SIZE
        if first > self.high or first + BLOCK_SIZE - 1 < self.low:
            return False
        shared = range(max(first, self.low), min(first + BLOCK_SIZE - 1, self.high) + 1)
        return any(port not in self.reserved for port in shared)


def ephemeral_ports(kernel: Path = _KERNEL) -> Optional[Ephemeral]:
    """What this node's kernel says, or None where it does not."""
    try:
        low, high = map(int, (kernel / "ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return None
    reserved: List[int] = []
    try:
        for part in (kernel / "ip_local_reserved_ports").read_text().strip().split(","):
            first, _, last = part.partition("-")
            reserved += range(int(first), int(last or first) + 1) if first else []
    except (OSError, ValueError):
        reserved = []
    return Ephemeral(low, high, frozenset(reserved))


def blocks_of(job_number: int, ephemeral: Optional[Ephemeral] = None) -> List[int]:
    """Blocks in the order in which a job tries them: its own first; those with ephemeral ports last.

    Jobs whose ids differ by less than the number of blocks without ephemeral ports (100 on a usual node, where the
    kernel's range begins at 32768) begin with different ones.
    """
    kept = [block for block in range(BLOCKS) if ephemeral is None or not ephemeral.overlaps(block)]
    order: List[int] = []
    for group in (kept, sorted(set(range(BLOCKS)) - set(kept))):
        if group:
            own = job_number % len(group)
            order += group[own:] + group[:own]
    return order


def _plan(block: int) -> PortPlan:
    base = FIRST_PORT + block * BLOCK_SIZE
    services = {name: base + offset for offset, name in enumerate(_SERVICES)}
    return PortPlan(**services, worker_min=base + len(services), worker_max=base + BLOCK_SIZE - 1)


def port_plan(job_number: int, shift: int = 0) -> PortPlan:
    """The block of a job on a usual node. Job ids that differ by less than 100 get different blocks.

    Args:
        job_number: Slurm's job id, or a process id outside Slurm; not negative.
        shift: how many blocks further to look, after a collision.
    """
    return _plan(blocks_of(job_number)[shift])


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


def _busy(plan: PortPlan) -> Dict[str, int]:
    """What of a plan is taken: services by name; the workers' range where most of a sample is."""
    busy = {name: port for name, port in plan.services.items() if taken(port)}
    if not busy:
        sample = range(plan.worker_min, plan.worker_max + 1, _SAMPLE)
        used = [port for port in sample if taken(port)]
        if 2 * len(used) > len(sample):
            busy["workers from"] = plan.worker_min
    return busy


def free_plan(job_number: int, ephemeral: Optional[Ephemeral] = None) -> PortPlan:
    """The first block of the job's order whose service ports are all free, and most of its workers' ports.

    Args:
        ephemeral: as `ephemeral_ports` tells it; read from the kernel where it is not given.

    Raises:
        PortError: when every block has a taken port; names the job's own ones.
    """
    collisions = []
    for block in blocks_of(job_number, ephemeral or ephemeral_ports()):
        plan = _plan(block)
        busy = _busy(plan)
        if not busy:
            return plan
        collisions.append(busy)
    raise PortError(
        f"none of the {BLOCKS} port blocks from {FIRST_PORT} on is free; in this job's own block "
        f"{collisions[0]} are taken; see what listens with: ss -ltnp"
    )


def ephemeral_warning(plan: PortPlan, ephemeral: Optional[Ephemeral] = None) -> Optional[str]:
    """A line for the log where the plan lies in the kernel's ephemeral range, because all blocks do."""
    found = ephemeral or ephemeral_ports()
    if found is None or not found.overlaps((plan.ports.start - FIRST_PORT) // BLOCK_SIZE):
        return None
    return (
        f"net.ipv4.ip_local_port_range is {found.low} {found.high} on this node: the kernel may give ports of "
        f"this job ({plan.ports.start}-{plan.worker_max}) to connections of any program, and Ray then fails with "
        f"'Address already in use'; ask the site to begin the range at 32768, or to keep {FIRST_PORT}-"
        f"{FIRST_PORT + BLOCKS * BLOCK_SIZE - 1} in net.ipv4.ip_local_reserved_ports"
    )
