"""Tables, targets and the picture of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed import CONNECTIONS, LIMIT, Measured, Results


@dataclass(frozen=True)
class Target:
    """Our rate over another's, in the same round, median of the rounds, must reach `least`."""

    other: str
    connections: int
    least: float


TARGETS = (
    Target(LIMIT, 64, 0.9),
    Target("seed-like", 64, 1.35),
    Target("infinity", 64, 1.0),
    Target("vllm", 64, 1.0),
    Target("seed-like", 1, 1.0),
)
OURS = "ours"
NOISY = 0.1
_COLOURS = {OURS: "C0", "vllm": "C1", "seed-like": "C7", "infinity": "C2"}


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def ratios(results: Results, other: str, connections: int) -> list[float]:
    """Our rate over the other's, of each round."""
    others = results[other][0 if other == LIMIT else connections].rates
    return [ours / theirs for ours, theirs in zip(results[OURS][connections].rates, others, strict=True)]


def check_targets(results: Results) -> list[tuple[str, bool]]:
    """A line and a verdict for each target whose systems were measured."""
    checked = []
    for target in TARGETS:
        if target.other in results and OURS in results:
            found = ratios(results, target.other, target.connections)
            middle = statistics.median(found)
            reached = middle >= target.least
            line = (
                f"{'reached' if reached else 'MISSED '}  ours / {target.other} at {target.connections}: "
                f"{middle:.2f} (rounds {min(found):.2f} to {max(found):.2f}), at least {target.least:g}"
            )
            checked.append((line, reached))
    return checked


def _row(name: str, cell: Measured) -> str:
    rate = statistics.median(cell.rates)
    line = f"{name:14} {rate:8.1f}  {min(cell.rates):6.1f} to {max(cell.rates):6.1f}"
    if cell.latencies:
        line += f"  {1e3 * quantile(cell.latencies, 0.5):8.0f} ms {1e3 * quantile(cell.latencies, 0.99):8.0f} ms"
    else:
        line += " " * 24
    return f"{line}  {100 * statistics.median(cell.others):6.1f} % {100 * max(cell.others):6.1f} %"


def table(results: Results) -> str:
    """All cells, by connections."""
    lines = []
    for connections in CONNECTIONS:
        name = f"{connections} connections"
        lines.append(f"\n{name:16} pairs/s            rounds      median          p99   other CPU, most")
        lines += [
            _row(name, cells[connections])
            for name, cells in sorted(
                results.items(), key=lambda item: -statistics.median(item[1].get(connections, Measured([0])).rates)
            )
            if connections in cells
        ]
        if connections == CONNECTIONS[0] and LIMIT in results:
            lines.append(_row(LIMIT, results[LIMIT][0]))
    return "\n".join(lines)


def noise(results: Results) -> str:
    """What other programs took meanwhile, and whether that is too much for the numbers to tell anything."""
    shares = [share for cells in results.values() for cell in cells.values() for share in cell.others]
    middle, most = statistics.median(shares), max(shares)
    told = f"CPU used by others: median {100 * middle:.1f} %, most {100 * most:.1f} % of the cores"
    return f"{told}; TOO MUCH: measure again on a quiet machine" if middle > NOISY else told


def as_json(results: Results) -> dict[str, Any]:
    """Every number but the single latencies."""
    return {
        name: {
            str(connections): {
                "pairs_per_s": cell.rates,
                "median_s": quantile(cell.latencies, 0.5) if cell.latencies else None,
                "p99_s": quantile(cell.latencies, 0.99) if cell.latencies else None,
                "cpu_of_others": cell.others,
            }
            for connections, cell in cells.items()
        }
        for name, cells in results.items()
    }


def draw(results: Results, file: Path, title: str) -> None:
    """Throughput on the left, latency on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted((name for name in results if name != LIMIT), key=list(_COLOURS).index)
    numbers = sorted(CONNECTIONS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        cells, colour = [results[name][connections] for connections in numbers], _COLOURS[name]
        middle = [statistics.median(cell.rates) for cell in cells]
        spread = [
            [value - min(cell.rates) for value, cell in zip(middle, cells, strict=True)],
            [max(cell.rates) - value for value, cell in zip(middle, cells, strict=True)],
        ]
        at = [index + (place - (len(names) - 1) / 2) * width for index in range(len(cells))]
        bars = left.bar(at, middle, width * 0.92, yerr=spread, label=name, color=colour, capsize=2)
        left.bar_label(bars, fmt="%.0f", fontsize=8)
        halves = [1e3 * quantile(cell.latencies, 0.5) for cell in cells]
        ends = [1e3 * quantile(cell.latencies, 0.99) for cell in cells]
        right.vlines(at, halves, ends, color=colour, linewidth=2)
        right.plot(at, halves, "o", color=colour, label=name)
        right.plot(at, ends, "_", color=colour, markersize=10)
    if LIMIT in results:
        limit = statistics.median(results[LIMIT][0].rates)
        left.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"{LIMIT} {limit:.0f}")
    for axis in (left, right):
        axis.set_xticks(range(len(numbers)), [f"{n} connection{'s' * (n > 1)}" for n in numbers])
        axis.legend(fontsize=8)
    left.set_ylabel("pairs/s (median of rounds, their spread)")
    right.set_yscale("log")
    right.set_ylabel("latency in ms: median (dot) to p99 (bar)")
    figure.suptitle(title)
    figure.savefig(file, dpi=120)
    plt.close(figure)
