"""Print Ray's nodes as a JSON line at the start and at every change. Runs as a process of its own: imports ray.

Each line: {"nodes": [{"address": str, "alive": bool, "gpus": float}, ...]}, or {} for: still so.
"""

import json
import os
import signal
import socket
import sys
import time
from typing import Any, Dict, List

if __name__ == "__main__":
    del sys.path[0]  # modules of the supervisor must not shadow others

import ray

POLL_S = 0.5
# So often a line comes at least: who stops says nothing, and a head that hangs stops this process too.
BEAT_S = 10.0
# While nodes come, and the job waits for them.
_BUSY_S, _BUSY_POLL_S = 20.0, 0.1


def describe(nodes: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Address, life and GPUs of each node as `ray.nodes()` tells them, sorted by address."""
    told = [
        {
            "address": str(node["NodeManagerAddress"]),
            "alive": bool(node["Alive"]),
            "gpus": float(node.get("Resources", {}).get("GPU", 0.0)),
        }
        for node in nodes
    ]
    return sorted(told, key=lambda node: (node["address"], node["alive"]))


def _await_head(address: str) -> None:
    """Until the head listens. Who started this process ends it when that takes too long."""
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(_BUSY_POLL_S)


def main() -> None:
    """Watch the cluster at RAY_ADDRESS until the process is ended."""
    address = os.environ["RAY_ADDRESS"]
    _await_head(address)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    # Ray's own handler writes a C++ stack: at the end of each job, in a log that people search for errors.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    last: List[Dict[str, Any]] = []
    changed = told = time.monotonic()
    while True:
        now = describe(ray.nodes())
        if now != last:
            print(json.dumps({"nodes": now}), flush=True)
            last, changed = now, time.monotonic()
            told = changed
        elif time.monotonic() - told > BEAT_S:
            print("{}", flush=True)
            told = time.monotonic()
        time.sleep(_BUSY_POLL_S if time.monotonic() - changed < _BUSY_S else POLL_S)


if __name__ == "__main__":
    main()
