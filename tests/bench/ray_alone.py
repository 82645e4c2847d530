"""Ray on the nodes of a job as fast as it comes up, then the stub trainer. Runs in the image on each node."""

import os
import socket
import subprocess
import sys
import time

NODES, RANK = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_PROCID"])
HEAD, PORT = os.environ["HEAD_IP"], 6379
RAY = ["--num-cpus=32", "--num-gpus=2", "--object-store-memory=200000000", "--disable-usage-stats", "--block"]


def _listens() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HEAD, PORT)) == 0


def _poll(ready: "object") -> None:
    deadline = time.monotonic() + 120
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit("Ray did not come up in 120 s")
        time.sleep(0.05)


def main() -> int:
    """Returns the exit code of the trainer on the first node, 0 on the others."""
    if RANK:
        _poll(_listens)
        os.execvp("ray", ["ray", "start", f"--address={HEAD}:{PORT}", *RAY])
    head = ["ray", "start", "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--include-dashboard=false"]
    ray_head = subprocess.Popen([*head, *RAY], stdout=subprocess.DEVNULL)
    import ray  # beside its start: it takes a second or two

    _poll(_listens)
    ray.init(address=f"{HEAD}:{PORT}", log_to_driver=False, logging_level="ERROR")
    _poll(lambda: sum(node["Alive"] for node in ray.nodes()) == NODES)
    trainer = [sys.executable, os.environ["STUB_TRAINER"], "--step-s", "0.05"]
    done = subprocess.run([*trainer, "trainer.total_training_steps=20", "trainer.save_freq=20"], check=False)
    ray_head.terminate()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
