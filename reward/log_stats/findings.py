"""What in the figures a person should look at: rewards that teach nothing, or something else than was meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reward.log_stats.figures import Figures, Spread
from reward.log_stats.series import Series

CONSTANT_FROM = 10  # rows: fewer may well agree
CONSTANT_SPREAD = 1e-9  # of the largest score
SHARE_CLAMPED = 0.1
SHARE_PENALTIES = 0.5
SHARE_TRUNCATED = 0.1
CORRELATION, CORRELATION_FROM = 0.5, 30
DRIFT, DRIFT_FROM, DRIFT_SIGMA = 1.5, 40, 3.0


@dataclass(frozen=True)
class Warned:
    """One warning: a stable ``kind`` for programs, the text for people."""

    kind: str
    data_source: str
    text: str

    def __str__(self) -> str:
        return f"{self.data_source}: {self.text}"


def warnings_of(name: str, series: Series, figures: Figures) -> list[Warned]:
    """The warnings of one data source."""
    found = [*_lost(figures), *_constant(series, figures), *_limits(figures), *_shape(series, figures)]
    return [Warned(kind, name, text) for kind, text in found]


def _lost(figures: Figures) -> Iterator[tuple[str, str]]:
    """Rewards that are none."""
    if figures.non_finite:
        yield "non-finite", f"{figures.non_finite} scores are NaN or infinite; they are left out of all figures"
    if figures.outage_penalties:
        yield (
            "outage-penalties",
            f"{figures.outage_penalties} responses got the minimum score because the server did not answer "
            "(on_outage: penalty); the policy learns from them as from bad ones",
        )
    without = {"outages": figures.outages, "errors": figures.errors, "cancelled": figures.cancelled}
    told = ", ".join(f"{name} {count}" for name, count in without.items() if count)
    if told:
        yield "no-score", f"responses without a score: {told}"


def _constant(series: Series, figures: Figures) -> Iterator[tuple[str, str]]:
    whole = figures.score
    if whole is None:
        return
    judged = Spread.of(series.scores[index] for index in series.judged())
    for spread, what in ((whole, "rewards"), (judged, "scores of the reward model")):
        if (
            spread is not None
            and spread.count >= CONSTANT_FROM
            and spread.max - spread.min <= CONSTANT_SPREAD * max(abs(spread.max), abs(spread.min))
        ):
            yield "constant", f"all {spread.count} {what} are {spread.mean:.6g}: nothing to learn from them"
            return


def _limits(figures: Figures) -> Iterator[tuple[str, str]]:
    numbers = figures.scored
    if numbers and figures.clamped >= numbers:
        yield "clamped", f"all {numbers} scores were outside of min_score..max_score and cut: check the limits"
    elif figures.clamped > SHARE_CLAMPED * numbers:
        share = figures.clamped / numbers
        yield "clamped", f"{share:.0%} of the scores were outside of min_score..max_score and cut"
    if numbers and figures.truncated > SHARE_TRUNCATED * numbers:
        share = figures.truncated / numbers
        yield "truncated", f"{share:.0%} of the pairs were longer than the reward model reads and truncated"
    if figures.penalty_share > SHARE_PENALTIES:
        yield (
            "penalties",
            f"{figures.penalty_share:.0%} of the rewards are penalties, not scores of the reward model",
        )


def _shape(series: Series, figures: Figures) -> Iterator[tuple[str, str]]:
    """How response length and score hang together, and how the length moves."""
    scores, lengths = series.judged_pairs(series.in_time())
    r = figures.length_correlation
    if r is not None and len(scores) >= CORRELATION_FROM and abs(r) >= CORRELATION:
        longer = "longer" if r > 0 else "shorter"
        yield "length-correlation", f"{longer} responses score higher (r = {r:.2f}): is length what is rewarded?"
    if len(lengths) >= DRIFT_FROM:
        quarter = len(lengths) // 4
        yield from _drift(lengths[:quarter], lengths[-quarter:])


def _drift(early: Sequence[float], late: Sequence[float]) -> Iterator[tuple[str, str]]:
    first, last = Spread.of(early), Spread.of(late)
    assert first is not None
    assert last is not None
    ratio = last.mean / first.mean if first.mean > 0 else math.inf if last.mean > 0 else 1.0
    noise = math.hypot(first.std / math.sqrt(first.count), last.std / math.sqrt(last.count))
    if not 1 / DRIFT < ratio < DRIFT and abs(last.mean - first.mean) > DRIFT_SIGMA * noise:
        yield (
            "length-drift",
            f"responses went from {first.mean:.0f} characters (first quarter) to {last.mean:.0f} (last quarter)",
        )
