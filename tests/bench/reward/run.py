"""How quickly rewards are scored: our server beside others on the same two cores.

    .venv/bin/python tests/bench/reward/run.py [--rounds N] [--systems ours,vllm] [--json FILE] [--png FILE]

A real small model (all-MiniLM-L6-v2 with a one-label head, float32) and GSM8K's solutions, at 1, 8 and 64
connections. The systems are measured in turn, in rounds, each standing still while another one is measured; the
limit of sorted batches without HTTP is part of each round. Then the server's memory over 100,000 requests with a
tiny model, and the client's own cost. Exits with 1 when a target is missed. About 14 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench_models import CACHE, gsm8k_pairs, real_model, tiny_model
from client_overhead import client_overhead
from memory_curve import LIMIT_MIB, MemoryCurve, memory_curve
from memory_curve import as_json as memory_as_json
from speed import Results, compare
from speed_report import as_json, check_targets, draw, noise, table
from systems import SYSTEMS

_PAIRS = 256
_CORES = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default %(default)s")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="with commas; default %(default)s")
    parser.add_argument("--memory-requests", type=int, default=100_000, metavar="N", help="0 leaves it out")
    parser.add_argument("--parts", default="speed,memory,client", help="with commas; default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number")
    parser.add_argument(
        "--png", type=Path, default=CACHE / "reward.png", metavar="FILE", help="default %(default)s"
    )
    return parser


def _tell(line: str) -> None:
    print(line, flush=True)


def _speed(args: argparse.Namespace, cores: list[int], logs: Path) -> Results:
    chosen = [SYSTEMS[name] for name in args.systems.split(",")]
    results = compare(chosen, real_model(), gsm8k_pairs(_PAIRS), cores, args.rounds, logs, _tell)
    _tell(f"{table(results)}\n\n{noise(results)}")
    args.png.parent.mkdir(parents=True, exist_ok=True)
    draw(
        results, args.png, f"all-MiniLM-L6-v2, float32, GSM8K solutions, {len(cores)} cores, {args.rounds} rounds"
    )
    _tell(f"picture: {args.png}")
    return results


def _memory(args: argparse.Namespace, cores: list[int], logs: Path) -> tuple[MemoryCurve, str, bool]:
    curve = memory_curve(tiny_model(), gsm8k_pairs(400), cores, args.memory_requests, logs, _tell)
    flat = curve.growth_mib <= LIMIT_MIB and set(curve.statuses) == {200}
    line = (
        f"{'reached' if flat else 'MISSED '}  memory over {args.memory_requests} requests: "
        f"{curve.rss_mib[0]:.0f} MiB at the start, {curve.rss_mib[-1]:.0f} at the end, {curve.growth_mib:+.1f} "
        f"since it settled, at most {LIMIT_MIB:g}; statuses {curve.statuses}"
    )
    return curve, line, flat


def main() -> int:
    """Measure, print, and tell by the exit code whether all targets were reached."""
    args = _parser().parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # the systems end too, even if paused
    parts = args.parts.split(",")
    unknown = set(args.systems.split(",")) - set(SYSTEMS) | (set(parts) - {"speed", "memory", "client"})
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; systems are {', '.join(SYSTEMS)}")
    cores = sorted(os.sched_getaffinity(0))[:_CORES]
    os.sched_setaffinity(0, cores)
    CACHE.mkdir(parents=True, exist_ok=True)
    report: dict[str, object] = {"cores": cores, "rounds": args.rounds}
    verdicts: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory(prefix="bench-reward-") as folder:
        logs = Path(folder)
        if "speed" in parts:
            results = _speed(args, cores, logs)
            report["systems"] = as_json(results)
            verdicts += check_targets(results)
        if "memory" in parts and args.memory_requests:
            curve, line, flat = _memory(args, cores, logs)
            report["memory"] = memory_as_json(curve)
            verdicts.append((line, flat))
    if "client" in parts:
        report["client_us"] = client = client_overhead(gsm8k_pairs(1)[0])
        _tell("\nclient, microseconds a call against a server that answers at once:")
        for name, cost in client.items():
            _tell(f"  {name:32} {cost:7.0f}")
    _tell("")
    for line, _ in verdicts:
        _tell(line)
    report["targets"] = [{"target": line, "reached": reached} for line, reached in verdicts]
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(not all(reached for _, reached in verdicts))


if __name__ == "__main__":
    sys.exit(main())
