"""Print Ray's nodes as a JSON line at the start and at every change. Runs as a process of its own: imports ray.

Each line: {"nodes": [{"address": str, "alive": bool, "gpus": float}, ...]}.
"""

import json
import os
import time
from typing import Any, Dict, List

import ray

POLL_S = 0.5


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


def main() -> None:
    """Watch the cluster at RAY_ADDRESS until the process is ended."""
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
    last: List[Dict[str, Any]] = []
    while True:
        now = describe(ray.nodes())
        if now != last:
            print(json.dumps({"nodes": now}), flush=True)
            last = now
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
