"""How long nodes take to find each other: the real supervisor on simulated nodes, with a stub in the place of Ray.

    .venv/bin/python tests/bench/rendezvous.py [--nodes 16,64,256] [--json]

Root, Linux. From the start of all supervisors at once to the last node's Ray, the trainer, and the end of the job.
All of the supervisor is imported before: on real nodes Python starts everywhere at once, here on a few cores.
Exits with 1 when the largest number misses LIMIT_S.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
LIMIT_S = 10.0  # to the trainer, at 256 nodes on two cores
_JOB = 4711

_WATCHED = """import pathlib
def init(**options): pass
def nodes():
    joined = pathlib.Path({joined!r}).iterdir()
    return [dict(NodeManagerAddress=file.name, Alive=True, Resources=dict(GPU=1.0)) for file in joined]
"""

# A part of the job that costs next to nothing: all nodes of the job run on this one machine.
_PYTHON = """#!/bin/sh
case $1 in
*/ray_start.py)
  read -r told
  : >{joined}/"$SIM_ADDRESS"
  exec sleep 1000 ;;
*/ray_watch.py)
  exec env PYTHONPATH={stub} {python} "$@" ;;
esac
case "$*" in
"-m ray.scripts.scripts start --head "*)
  : >{joined}/"$SIM_ADDRESS"
  exec {python} -I -S {head} "$@" ;;
esac
exec {python} "$@"
"""

_HEAD = """import socket, sys, time
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
listener = socket.create_server(("0.0.0.0", port))
time.sleep(1000)
"""


def _stub(folder: Path) -> Path:
    """A `python` that plays Ray; returns its path."""
    (folder / "stub" / "ray").mkdir(parents=True)
    (folder / "stub" / "ray" / "__init__.py").write_text(_WATCHED.format(joined=str(folder / "joined")))
    (folder / "head.py").write_text(_HEAD)
    python = folder / "python"
    words = {"joined": folder / "joined", "stub": folder / "stub", "head": folder / "head.py", "python": PYTHON}
    python.write_text(_PYTHON.format(**words))
    python.chmod(0o755)
    return python


def _work(rank: int, nodes: int, folder: Path) -> int:
    """What srun starts on each node."""
    from simulated_nodes import address_of

    from launch.node import main

    os.environ.update(
        SLURM_JOB_ID=str(_JOB),
        SLURM_PROCID=str(rank),
        SLURM_NTASKS=str(nodes),
        SLURMD_NODENAME=f"sim{rank}",
        SLURM_JOB_NODELIST=f"sim[0-{nodes - 1}]",
        SIM_ADDRESS=address_of(rank),  # the shell of the stub is slow at finding it in a long line
    )
    trainer = f"date +%s.%N >{folder}/trainer"
    options = f"--run-dir={folder}/run --checkpoint-dir={folder}/checkpoints --nodes={nodes} --join-timeout=120"
    options += " --ray-gpus-head=1 --ray-gpus-other=1 --ray-cpus=1 --logical-gpus --object-store=100000000"
    return main([*options.split(), "::trainer", "sh", "-c", trainer])


def measure(nodes: int, base: Path) -> dict[str, float]:
    """Seconds from the common start for one job of that many nodes; `base` holds the stub.

    Raises:
        RuntimeError: a node ended with another code than 0; its message holds that node's log.
    """
    from simulated_nodes import Node, address_of

    folder = base / f"nodes-{nodes}"
    for name in ("run", "checkpoints", "logs"):
        (folder / name).mkdir(parents=True)
    shutil.rmtree(base / "joined", ignore_errors=True)
    (base / "joined").mkdir()
    hosts = folder / "hosts"
    names = (f"{address_of(rank)} sim{rank}\n" for rank in range(nodes))
    hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
    go = os.pipe()
    began = time.time()
    running = [
        Node(rank, hosts, folder / "logs" / f"{rank}.log", go, partial(_work, rank, nodes, folder))
        for rank in range(nodes)
    ]
    for node in running:
        node.wait_until_up()
    started = time.time()
    os.close(go[1])
    codes = [node.wait() for node in running]
    ended = time.time()
    os.close(go[0])
    for rank, code in enumerate(codes):
        if code != 0:
            text = (folder / "logs" / f"{rank}.log").read_text(errors="replace")
            raise RuntimeError(f"node {rank} of {nodes} ended with {code}:\n{text[-3000:]}")
    joined = [file.stat().st_mtime - started for file in (base / "joined").iterdir()]
    trainer = float((folder / "trainer").read_text()) - started
    return {
        "nodes": nodes,
        "set_up_s": started - began,
        "first_ray_s": min(joined),
        "last_ray_s": max(joined),
        "trainer_s": trainer,
        "end_s": ended - started,
    }


def main() -> int:
    """Print a table, or JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="16,64,256", help="numbers of nodes, with commas")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("simulated nodes have namespaces of their own, which needs root")
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    from simulated_nodes import enter_private_network

    enter_private_network()
    with tempfile.TemporaryDirectory(prefix="rendezvous-", dir="/var/tmp") as folder:
        sys.executable = str(_stub(Path(folder)))  # before the supervisor is imported, which calls Ray by it
        for module in (ROOT / "launch" / "supervisor").glob("[a-z]*.py"):
            if module.stem not in ("ray_start", "ray_watch"):  # programs, which import Ray
                importlib.import_module(f"launch.supervisor.{module.stem}")
        results = _measure_all([int(number) for number in args.nodes.split(",")], Path(folder), not args.json)
    if args.json:
        print(json.dumps(results, indent=2))
    return int(results[-1]["trainer_s"] > LIMIT_S)


def _measure_all(numbers: list[int], folder: Path, show: bool) -> list[dict[str, float]]:
    results: list[dict[str, float]] = []
    for nodes in numbers:
        results.append(measure(nodes, folder))
        if show:
            if len(results) == 1:
                print("nodes   first Ray   last Ray   trainer starts   end of the job   a node more costs")
            one = results[-1]
            before = results[-2] if len(results) > 1 else {"nodes": 0, "trainer_s": 0.0}
            growth = (one["trainer_s"] - before["trainer_s"]) / (one["nodes"] - before["nodes"]) * 1000
            print(
                f"{nodes:5}   {one['first_ray_s']:7.2f} s  {one['last_ray_s']:7.2f} s  "
                f"{one['trainer_s']:13.2f} s  {one['end_s']:13.2f} s  {growth:15.1f} ms",
                flush=True,
            )
    return results


if __name__ == "__main__":
    sys.exit(main())
