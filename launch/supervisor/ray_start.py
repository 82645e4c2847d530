"""`ray start` with its imports done before it is known where the head is. Runs as a process of its own.

It reads one JSON line from stdin: {"env": {NAME: VALUE}, "arguments": ["start", ...]}; without one it ends with 0.
Ray's imports take seconds, more from a cold image, and the nodes can spend them while the head starts.
"""

import json
import os
import sys

if __name__ == "__main__":
    del sys.path[0]  # modules of the supervisor must not shadow others

import ray.scripts.scripts as ray_command


def main() -> None:
    """Become `ray start`."""
    line = sys.stdin.readline()
    if not line:
        return
    told = json.loads(line)
    os.environ.update(told["env"])
    sys.argv = ["ray", *told["arguments"]]
    ray_command.main()


if __name__ == "__main__":
    main()
