"""How long a job takes from its first line to its trainer, beside other ways to start one, on the test cluster.

    .venv/bin/python tests/bench/bring_up.py [--rounds 3] [--json]

Three nodes; trainer (20 short steps) and reward server are stubs. The ways take turns in each round. The time runs
from the first line of the batch script to the first line of the trainer.

    ours    the rendered script: port plan, Ray, reward server, canary, all nodes and GPUs counted
    plain   fixed waits: 10 s for the reward server, 30 s for the head, 30 s in the workers
    sample  in the manner of verl's sample script: a step for the head, 10 s, one for each worker, 5 s each
    ray     `ray start` alone on all nodes at once, polled until they have joined: the floor

Exits with 1 when ours misses a target.
"""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))

from cluster_jobs import Run, edit, render_stub, submit  # noqa: E402
from harness import IMAGE, Cluster, ClusterError  # noqa: E402

WAYS = ("ours", "plain", "sample", "ray")
OVER_RAY_S = 3.0
OF_PLAIN = 0.35
_LIMIT_S = 150
_FOLDER = "bench"
_TRAINER = r"stub trainer: steps 1 to 20, began ([\d.]+)"


def _script_of_ours(cluster: Cluster) -> Path:
    settings = ("rehearsal.steps=20",)
    script = render_stub(cluster, f"{_FOLDER}-ours", "--step-s 0.05", *settings, nodes=3, server=True)
    edit(script, '"$PYTHON" -m reward.server ', f'"$PYTHON" {HERE}/stub_reward.py ')
    edit(script, "set -euo pipefail\n", 'set -euo pipefail\necho "began $(date +%s.%N)"\n')
    return script


def _script_of_another(cluster: Cluster, way: str) -> Path:
    name = f"{_FOLDER}-{way}"
    cluster.on("login", "rm", "-rf", f"/scratch/{name}")
    cluster.on("login", "mkdir", "-p", f"/scratch/{name}/checkpoints")
    values = {
        "TESTS": HERE.parent,
        "BENCH": HERE,
        "STUB_TRAINER": HERE.parent / "cluster" / "stub_trainer.py",
        "IMAGE": IMAGE,
        "CHECKPOINT_DIR": f"/scratch/{name}/checkpoints",
    }
    exports = "export " + " ".join(f"{key}={value}" for key, value in values.items()) + "\n"
    text = (HERE / "scripts" / f"{way}.sh").read_text(encoding="utf-8")
    script = cluster.scratch / name / "job.sh"
    script.write_text(text.replace('echo "began', exports + 'echo "began', 1), encoding="utf-8")
    return script


def measure(cluster: Cluster, way: str) -> float:
    """Seconds of one job from its first line to its trainer's; the nodes are clean behind it.

    Raises:
        ClusterError: the job ended, or time was up, before its trainer began.
    """
    script = _script_of_ours(cluster) if way == "ours" else _script_of_another(cluster, way)
    run = submit(cluster, script)
    try:
        text = _wait_for_trainer(cluster, script, run)
        time.sleep(3.0)  # the steps
    finally:
        cluster.clear()  # the plain script and the floor never end by themselves
        cluster.cancel_all()
        cluster.clear()
    began, trainer = (re.search(pattern, text, re.MULTILINE) for pattern in (r"^began ([\d.]+)$", _TRAINER))
    assert began is not None, text
    assert trainer is not None, text
    return float(trainer[1]) - float(began[1])


def _wait_for_trainer(cluster: Cluster, script: Path, run: Run) -> str:
    logs = [script.parent / f"bench-{run.job_id}.out", run.log, run.folder / "logs" / "n1-trainer.log"]
    deadline = time.monotonic() + _LIMIT_S
    while True:
        text = "".join(log.read_text(errors="replace") for log in logs if log.exists())
        if re.search(_TRAINER, text):
            return text
        if time.monotonic() > deadline or run.job_id not in cluster.queue():
            raise ClusterError(f"no trainer in job {run.job_id} of {script}:\n{text[-3000:]}")
        time.sleep(0.2)


def main() -> int:
    """Print a table, or JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cluster = Cluster()
    found_up = cluster.is_up()
    try:
        print(cluster.up(), file=sys.stderr, end="")
        measure(cluster, "ours")  # reads the image once: no way is to be the first
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(args.rounds):
            for way in WAYS[number % 4 :] + WAYS[: number % 4]:
                seconds[way].append(measure(cluster, way))
                print(f"round {number + 1}: {way:6} {seconds[way][-1]:6.2f} s", file=sys.stderr, flush=True)
    finally:
        if not found_up:
            cluster.down()
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    ours, plain, sample, ray = (medians[way] for way in WAYS)
    targets = {
        f"ours - ray <= {OVER_RAY_S:g} s": (ours - ray, ours - ray <= OVER_RAY_S),
        f"ours / plain <= {OF_PLAIN:g}": (ours / plain, ours / plain <= OF_PLAIN),
        "ours / sample < 1": (ours / sample, ours < sample),
    }
    if args.json:
        told = {name: {"value": value, "met": met} for name, (value, met) in targets.items()}
        print(json.dumps({"seconds": seconds, "medians": medians, "targets": told}, indent=2))
    else:
        print(f"way      median     ours/way   rounds of {args.rounds}")
        for way in WAYS:
            rounds = "  ".join(f"{value:.2f}" for value in seconds[way])
            print(f"{way:6}  {medians[way]:6.2f} s   {ours / medians[way]:8.2f}   {rounds}")
        for name, (value, met) in targets.items():
            print(f"{name:20} {value:6.2f}   {'met' if met else 'MISSED'}")
    return int(not all(met for _, met in targets.values()))


if __name__ == "__main__":
    sys.exit(main())
