"""How quickly raw data becomes what verl reads, and in how much memory: data_prep.convert beside other ways.

    .venv/bin/python tests/bench/data/run.py [--rounds N] [--mb N] [--systems ours,pandas] [--json FILE]

Makes GSM8K-like JSONL of --mb megabytes, which every system converts to the same columns, in turn, in rounds, each
in a process of its own; and one of ten times that size, which ours converts for its memory (and, with --large, the
others too). Exits with 1 when a target is missed. About 5 minutes and 8 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from inputs import make_jsonl
from measure import Run, run
from others import OTHERS

ROOT = Path(__file__).parents[3]
OURS = "ours"
LIMIT = "limit"
SYSTEMS = (OURS, *OTHERS)
MOST_GROWTH = 1.2
MOST_MIB = 500.0
_LARGER = 10
_NOISY = 0.1

Runs = dict[str, list[Run]]


def command_of(system: str, source: Path, out: Path) -> list[str | Path]:
    """The command that writes OUT/train.parquet."""
    if system == OURS:
        return [sys.executable, "-m", "data_prep.convert", source, "--out", out, "--force"]
    return [sys.executable, Path(__file__).with_name("others.py"), system, source, out / "train.parquet"]


def convert(system: str, source: Path, work: Path) -> Run:
    """Run one system; what it wrote is removed."""
    out = work / "out"
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hf")}
    try:
        found = run(command_of(system, source, out), environment, work / f"{system}.log")
        if not (out / "train.parquet").stat().st_size:
            raise RuntimeError(f"{system} wrote nothing")
        return found
    finally:
        shutil.rmtree(out)


def ratios(runs: Runs, other: str) -> list[float]:
    """By round, how many times as long as ours the other took."""
    return [theirs.seconds / ours.seconds for ours, theirs in zip(runs[OURS], runs[other], strict=True)]


def targets(runs: Runs, small: float, large: float | None) -> list[tuple[str, bool]]:
    """A line and a verdict for each target.

    Args:
        small, large: our peak memory in MiB with the small and the tenfold input; None: not measured.
    """
    checked = []
    for other in runs:
        if other not in (OURS, LIMIT):
            found = ratios(runs, other)
            middle = statistics.median(found)
            checked.append((f"{other} / ours: {middle:.2f} times as long, more than 1", middle > 1))
    most = max(small, large or 0.0)
    checked.append((f"memory: {most:.0f} MiB at most, under {MOST_MIB:g}", most < MOST_MIB))
    if large is not None:
        growth = large / small
        checked.append(
            (f"memory with {_LARGER}x the input: {growth:.2f}x, at most {MOST_GROWTH}", growth <= MOST_GROWTH)
        )
    return checked


def table(runs: Runs, rows: int) -> list[str]:
    """A line for each system."""
    lines = [
        f"{'':10} {'rows/s':>9} {'seconds':>8} {'rounds':>15} {'peak MiB':>9} {'x ours':>7} {'others CPU':>11}"
    ]
    for system, found in runs.items():
        seconds = [one.seconds for one in found]
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
        times = f"{statistics.median(ratios(runs, system)):.2f}" if OURS in runs else ""
        peak, others = max(one.peak_mib for one in found), max(one.others for one in found)
        line = f"{system:10} {rows / middle:9,.0f} {middle:8.1f} {spread:>15} {peak:9.0f} {times:>7}"
        lines.append(f"{line} {100 * others:9.1f} %")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default %(default)s")
    parser.add_argument("--mb", type=int, default=200, metavar="N", help="of the small input; default %(default)s")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="with commas; default %(default)s")
    parser.add_argument("--no-large", action="store_true", help="leave out the tenfold input")
    parser.add_argument(
        "--large", action="store_true", help="the other systems convert the tenfold input too, once"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for the inputs; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number")
    return parser


def _measure(systems: list[str], source: Path, rounds: int, work: Path) -> Runs:
    runs: Runs = {system: [] for system in systems}
    for number in range(rounds):
        for system in systems:
            found = convert(system, source, work)
            runs[system].append(found)
            print(
                f"{source.name}, round {number + 1}, {system}: {found.seconds:.1f} s, {found.peak_mib:.0f} MiB",
                flush=True,
            )
    return runs


def main() -> int:
    """Measure, print, and tell by the exit code whether all targets were reached."""
    parser = _parser()
    args = parser.parse_args()
    systems = args.systems.split(",")
    if OURS not in systems or set(systems) - set(SYSTEMS):
        parser.error(f"--systems: expected ours and any of {', '.join(OTHERS)}")
    if args.rounds < 1 or args.mb < 1:
        parser.error("--rounds and --mb: expected a number from 1")
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=args.work) as folder:
        work = Path(folder)
        small = work / "small.jsonl"
        rows = make_jsonl(small, args.mb * 1_000_000)
        print(f"small.jsonl: {rows:,} rows, {small.stat().st_size:,} bytes", flush=True)
        runs = _measure(systems, small, args.rounds, work)
        large_runs: Runs = {}
        large_rows = 0
        if not args.no_large:
            large = work / "large.jsonl"
            large_rows = make_jsonl(large, _LARGER * args.mb * 1_000_000, seed=1)
            print(f"large.jsonl: {large_rows:,} rows, {large.stat().st_size:,} bytes", flush=True)
            large_runs = _measure(systems if args.large else [OURS], large, 1, work)
    print("", *table(runs, rows), sep="\n")
    if large_runs:
        print(f"\n{_LARGER} times the input", *table(large_runs, large_rows), sep="\n")
    peak = max(one.peak_mib for one in runs[OURS])
    checked = targets(runs, peak, large_runs[OURS][0].peak_mib if large_runs else None)
    print("")
    if LIMIT in runs:
        share = statistics.median(ratios(runs, LIMIT))
        print(f"reading and encoding the same bytes by pyarrow alone takes {share:.2f} of our time")
    if any(one.others > _NOISY for found in runs.values() for one in found):
        print(f"noisy: other processes had more than {100 * _NOISY:.0f} % of the machine in a round")
    for line, reached in checked:
        print(f"{'OK    ' if reached else 'MISSED'}  {line}")
    if args.json is not None:
        report = {
            "rows": rows,
            "large_rows": large_rows,
            "runs": {system: [asdict(one) for one in found] for system, found in runs.items()},
            "large_runs": {system: [asdict(one) for one in found] for system, found in large_runs.items()},
            "targets": [{"target": line, "reached": reached} for line, reached in checked],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(reached for _, reached in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
