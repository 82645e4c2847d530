"""How long a merge takes and in how much memory: converters.merge beside verl's merger and beside `cp -r`.

    .venv/bin/python tests/bench/convert/run.py [--rounds N] [--sizes 500,1000,4000] [--work DIR] [--json FILE]

Writes checkpoints of megatron-core of --sizes megabytes (`mcore_inputs.py`) and converts each with every system,
in turn, in rounds; verl's own merger, on the CPU backend of rehearsals, that of 1000 MB only. `cp -r` copies the
shards; `cp+fsync` also waits until the copies are on disk, as our result is when it appears. What is read is in
the page cache. Exits with 1 when a target is missed. About 3 minutes and 15 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from math import prod
from pathlib import Path

from convert_report import COPY, DURABLE, OURS, VERL, table, targets
from mcore_inputs import Dimensions, dimensions
from timed import Run, run

ROOT = Path(__file__).parents[3]
SYSTEMS = (OURS, COPY, DURABLE, VERL)
_WITH_VERL = 1000
_NOISY = 0.1
_CPU_BACKEND = {
    "VERL_USE_EXTERNAL_MODULES": "launch.rehearsal.backend", "VERL_PLATFORM": "cpu", "TORCH_COMPILE_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


def command_of(system: str, actor: Path, out: Path) -> list[str | Path]:
    """The command that makes `out`."""
    shards = actor / "model" / "dist_ckpt"
    places: list[str | Path] = ["--local_dir", actor, "--target_dir", out]
    commands: dict[str, list[str | Path]] = {
        OURS: [sys.executable, "-m", "converters.merge", *places],
        COPY: ["cp", "-r", shards, out],
        DURABLE: ["sh", "-c", 'cp -r "$0" "$1" && find "$1" -exec sync {} +', shards, out],
        VERL: [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "megatron", *places,
               "--use_cpu_initialization"],
    }  # fmt: skip
    return commands[system]


def convert(system: str, actor: Path, out: Path) -> Run:
    """Run one system; nothing of others waits to be written meanwhile."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(_CPU_BACKEND if system == VERL else {})}
    os.sync()
    return run(command_of(system, actor, out), environment, out.with_suffix(".log"))


def measure(systems: list[str], actor: Path, rounds: int, work: Path) -> dict[str, list[Run]]:
    """Every system in each round; what verl wrote must be what we wrote."""
    runs: dict[str, list[Run]] = {system: [] for system in systems}
    for number in range(rounds):
        for system in systems:
            out = work / system
            found = convert(system, actor, out)
            runs[system].append(found)
            print(f"{actor.name} MB, round {number + 1}, {system}: {found.seconds:.2f} s", flush=True)
        if number == 0 and VERL in systems:
            _compare(work / OURS, work / VERL)
        for system in systems:
            shutil.rmtree(work / system)
    return runs


def _compare(ours: Path, theirs: Path) -> None:
    command = [sys.executable, "-m", "converters.compare", ours, theirs, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    weights = json.loads(done.stdout)["weights"]
    if not weights.pop("same") or any(weights.values()):
        raise RuntimeError(f"verl's merger wrote other weights: {weights}")


def _write(actor: Path, megabytes: int) -> Dimensions:
    """In a process of its own, whose memory is not ours."""
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("mcore_inputs.py"), actor, str(megabytes)]
    subprocess.run(command, check=True)
    for path in (actor / "model" / "dist_ckpt").iterdir():
        path.read_bytes()
    return dimensions(megabytes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default %(default)s")
    parser.add_argument("--sizes", default="500,1000,4000", metavar="MB,MB", help="default %(default)s")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="with commas; default %(default)s")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder on disk; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number")
    return parser


def main() -> int:
    """Measure, print, and tell by the exit code whether all targets were reached."""
    parser = _parser()
    args = parser.parse_args()
    systems, sizes = args.systems.split(","), [int(size) for size in args.sizes.split(",")]
    if not {OURS, COPY} <= set(systems) <= set(SYSTEMS) or args.rounds < 1 or min(sizes) < 1:
        parser.error(f"expected --systems ours,cp and any of {', '.join(SYSTEMS)}, and numbers from 1")
    measured: dict[int, dict[str, list[Run]]] = {}
    largest = {}
    with tempfile.TemporaryDirectory(prefix="bench-convert-", dir=args.work) as folder:
        for size in sizes:
            actor = Path(folder) / str(size)
            shape = _write(actor, size)
            largest[size] = max(2 * prod(whole) for whole, _ in shape.tensors().values())
            chosen = [system for system in systems if system != VERL or size == _WITH_VERL]
            measured[size] = measure(chosen, actor, args.rounds, Path(folder))
            shutil.rmtree(actor)
    print("", *table(measured), "", sep="\n")
    everything = [one for runs in measured.values() for found in runs.values() for one in found]
    if any(one.others > _NOISY for one in everything):
        print(f"noisy: other processes had more than {100 * _NOISY:.0f} % of the machine in a round")
    checked = targets(measured, largest)
    for line, reached in checked:
        print(f"{'OK    ' if reached else 'MISSED'}  {line}")
    if args.json is not None:
        report = {
            "sizes": {
                size: {system: [asdict(one) for one in found] for system, found in runs.items()}
                for size, runs in measured.items()
            },
            "targets": [{"target": line, "reached": reached} for line, reached in checked],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(reached for _, reached in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
