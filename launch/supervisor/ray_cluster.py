"""Command lines of Ray and what its cluster says of itself."""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

from launch.supervisor.limits import node_object_store
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.ports import PortPlan
from launch.supervisor.settings import Settings

# `ray` need not be on PATH, and its entry point may name another Python.
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def _resources(settings: Settings, ports: PortPlan) -> List[str]:
    words = [
        f"--node-ip-address={settings.address}",
        f"--num-cpus={settings.ray_cpus}",
        f"--num-gpus={settings.ray_gpus}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--dashboard-agent-listen-port={ports.dashboard_agent_listen}",
        f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
        f"--metrics-export-port={ports.metrics_export}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--min-worker-port={ports.worker_min}",
        f"--max-worker-port={ports.worker_max}",
        "--disable-usage-stats",
        "--log-color=false",
        "--block",
    ]
    size = settings.object_store_bytes or node_object_store(os.environ)
    if size is not None:
        words.append(f"--object-store-memory={size}")
    return words


def head_command(settings: Settings, ports: PortPlan) -> List[str]:
    """`ray start --head` in the foreground. Its temporary folder holds for all nodes of the cluster."""
    return [
        *_RAY,
        "start",
        "--head",
        f"--port={ports.gcs}",
        f"--ray-client-server-port={ports.ray_client}",
        f"--dashboard-port={ports.dashboard}",
        "--include-dashboard=false",
        f"--temp-dir={settings.temp_dir / 'ray'}",
        *_resources(settings, ports),
    ]


def start_command() -> List[str]:
    """A process that imports Ray and becomes `ray start` when it is told its arguments."""
    return [sys.executable, str(Path(__file__).with_name("ray_start.py"))]


def worker_arguments(settings: Settings, ports: PortPlan, head: str) -> List[str]:
    """Of `ray start` on another node, in the foreground; `head` is address:port of the GCS."""
    return ["start", f"--address={head}", *_resources(settings, ports)]


def port_was_taken(log: Path) -> bool:
    """Whether Ray's log says that another program has one of its ports."""
    from launch.supervisor.cause_finder import find_cause  # its patterns take their time, and are hardly needed

    found = find_cause(log)
    return found is not None and found.kind == "port-taken"


def watch_command() -> List[str]:
    """A process that prints a JSON line whenever the set of living nodes changes."""
    return [sys.executable, str(Path(__file__).with_name("ray_watch.py"))]


@dataclass
class RayNodes:
    """The cluster as the watcher last printed it: address -> (alive, GPUs).

    Attributes:
        silent_s: seconds without a line since the first one, in which this process ran and could read.
    """

    log: LogFollower
    nodes: Dict[str, Tuple[bool, float]] = field(default_factory=dict)
    silent_s: float = 0.0
    _looked: float = field(default_factory=time.monotonic)

    def update(self) -> List[str]:
        """Read what is new; returns the addresses of nodes that died since the last call.

        Raises:
            OSError: of the file system.
        """
        died: List[str] = []
        lines = self.log.lines()
        now = time.monotonic()
        # A whole job may be suspended (scontrol suspend).
        self.silent_s = 0.0 if lines or not self.nodes else self.silent_s + min(now - self._looked, 1.0)
        self._looked = now
        for line in lines:
            if not line.startswith('{"nodes"'):
                continue  # a warning that Ray printed
            seen = {str(n["address"]): (bool(n["alive"]), float(n["gpus"])) for n in json.loads(line)["nodes"]}
            died += [a for a, (alive, _) in self.nodes.items() if alive and not seen.get(a, (False, 0))[0]]
            self.nodes = seen
        return died

    @property
    def alive(self) -> int:
        """Number of living nodes."""
        return sum(alive for alive, _ in self.nodes.values())

    @property
    def gpus(self) -> float:
        """GPUs of the living nodes together."""
        return sum(gpus for alive, gpus in self.nodes.values() if alive)
