"""The table of the bench of converters, and which targets were reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from timed import Run

OURS, COPY, DURABLE, VERL = "ours", "cp", "cp+fsync", "verl"
MOST_OF_COPY = 1.5
MOST_MB = 600
MOST_GROWTH = 1.2

Runs = Mapping[str, Sequence[Run]]  # system -> its rounds


def ratios(runs: Runs, other: str) -> list[float]:
    """By round, our time in that of the other."""
    return [ours.seconds / theirs.seconds for ours, theirs in zip(runs[OURS], runs[other], strict=True)]


def peak(runs: Runs) -> float:
    """Our largest memory, MiB."""
    return max(one.peak_mib for one in runs[OURS])


def targets(sizes: Mapping[int, Runs], largest: Mapping[int, int]) -> list[tuple[str, bool]]:
    """A line and a verdict for each target. The copy to compare with is on disk at the end, as our result is.

    Args:
        sizes: MB of the checkpoint -> runs.
        largest: MB of the checkpoint -> bytes of its largest tensor.
    """
    checked = []
    for size, runs in sizes.items():
        if VERL in runs:
            times = 1 / median(ratios(runs, VERL))
            checked.append((f"{size} MB: verl's merger takes {times:.1f} times our time, more than 1", times > 1))
        if size >= 1000 and DURABLE in runs:
            share = median(ratios(runs, DURABLE))
            line = f"{size} MB: {share:.2f} times the time of cp -r until it is on disk, at most {MOST_OF_COPY}"
            checked.append((line, share <= MOST_OF_COPY))
        allowed = MOST_MB + largest[size] / 2**20
        checked.append((f"{size} MB: peak {peak(runs):.0f} MiB, at most {allowed:.0f}", peak(runs) <= allowed))
    if len(sizes) > 1:
        growth = peak(sizes[max(sizes)]) / peak(sizes[min(sizes)])
        line = f"peak at {max(sizes)} MB is {growth:.2f} times that at {min(sizes)} MB, at most {MOST_GROWTH}"
        checked.append((line, growth <= MOST_GROWTH))
    return checked


def table(sizes: Mapping[int, Runs]) -> list[str]:
    """A line for each size and system."""
    head = f"{'MB':>5} {'':9} {'seconds':>8} {'rounds':>15} {'MB/s':>7} {'CPU s':>6} {'peak MiB':>9}"
    lines = [f"{head} {'ours / it':>10} {'others CPU':>11}"]
    for size, runs in sizes.items():
        for system, found in runs.items():
            middle = median(one.seconds for one in found)
            spread = f"{min(one.seconds for one in found):.2f} to {max(one.seconds for one in found):.2f}"
            cpu, most = median(one.cpu_s for one in found), max(one.peak_mib for one in found)
            share, others = median(ratios(runs, system)), max(one.others for one in found)
            lines.append(
                f"{size:5} {system:9} {middle:8.2f} {spread:>15} {size / middle:7,.0f} {cpu:6.2f} {most:9.0f} "
                f"{share:10.2f} {100 * others:9.1f} %"
            )
    return lines
