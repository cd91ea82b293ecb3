"""p95 week over week: the same hour of the same day, compared by fine histograms in blocks of minutes.

Between blocks a p95 varies by more than counting alone explains, because minutes hang together. So the interval is of
the difference of two means of log p95 over blocks (Welch 1947, "The generalization of 'Student's' problem").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from tailcut.gate.distributions import student_quantile
from tailcut.observe.alerts.findings import Finding, Level
from tailcut.observe.alerts.likely_place import grown_group
from tailcut.observe.fine_histogram import PLACES, RATIO, Counts, percentile_ns
from tailcut.observe.latency_figures import REQUEST

BLOCK_S = 300
BLOCKS = 12
WEEK_S = 7 * 24 * 3600

_SHARE = 0.95
_LEAST_IN_BLOCK = 100
_LEAST_BLOCKS = 4
_CONFIDENCE = 0.95


class Period(NamedTuple):
    """Answered requests of one model in one hour.

    Attributes:
        stages: fine histograms by stage, "request" included, (blocks, ``PLACES``); blocks without requests are absent.
        group_s: seconds in feature sources per request by group.
    """

    stages: Mapping[str, Counts]
    group_s: Mapping[str, float]

    @classmethod
    def of(cls, blocks: Sequence[Mapping[str, Counts]], group_s: Mapping[str, float]) -> Period:
        """Return a period of blocks that each have histograms by stage."""
        none = np.zeros(PLACES, np.int64)
        names = {stage for block in blocks for stage in block}
        return cls({name: np.array([block.get(name, none) for block in blocks]) for name in names}, group_s)

    @property
    def requests(self) -> int:
        """How many were answered."""
        return int(self.stages[REQUEST].sum()) if REQUEST in self.stages else 0


class Growth(NamedTuple):
    """p95 now against a week ago.

    Attributes:
        ratio: now over then; ``low`` and ``high`` are its interval (each side 95 %).
        place: stage whose p95 grew most, of features with the group; empty if none grew.
        grew_ms: by how much.
    """

    now_ms: float
    then_ms: float
    ratio: float
    low: float
    high: float
    requests_now: int
    requests_then: int
    place: str
    grew_ms: float


def compare(now: Period, then: Period, least_requests: int) -> Growth | None:
    """Compare two periods; None with fewer requests than that in either, or in too few blocks."""
    if min(now.requests, then.requests) < least_requests:
        return None
    logs = [_log_p95s(each.stages[REQUEST]) for each in (now, then)]
    if min(map(len, logs)) < _LEAST_BLOCKS:
        return None
    p95s = [percentile_ns(each.stages[REQUEST].sum(0), _SHARE) for each in (now, then)]
    ratio = p95s[0] / p95s[1]
    half = _half_width(*logs)
    place, grew_ns = _grown_place(now, then)
    return Growth(
        p95s[0] / 1e6,
        p95s[1] / 1e6,
        ratio,
        ratio * exp(-half),
        ratio * exp(half),
        now.requests,
        then.requests,
        place,
        grew_ns / 1e6,
    )


def find_growth(growth: Mapping[str, Growth], limit: float) -> Iterator[Finding]:
    """Yield a finding per model.

    Args:
        limit: growth that is alarmed, 0.15 for 15 %. A percentile of the fine histogram may be half a bound off on
            either side, so that much less fires, too; and the interval must exclude half of the limit.
    """
    fires, certain, clear = (1 + limit) / sqrt(RATIO), 1 + limit / 2, 1 + limit * 0.6
    for model, each in growth.items():
        beyond = each.ratio > fires and each.low > certain
        level: Level = "bad" if beyond else "good" if each.ratio <= clear or each.low <= 1 else "between"
        percent = (each.ratio - 1) * 100
        where = f"; {each.place} grew most, by {each.grew_ms:.3g} ms" if each.place else ""
        text = (
            f"p95 is {each.now_ms:.3g} ms, {percent:+.1f} % on the same hour a week ago ({each.then_ms:.3g} ms), limit "
            f"+{limit * 100:g} %; 95 % interval {_signed(each.low)} to {_signed(each.high)} %{where}"
        )
        hint = "tailcut compare --since 1h --against 1w shows every stage"
        yield Finding(
            "p95_growth",
            model,
            "",
            "ticket",
            level,
            percent,
            limit * 100,
            "%",
            each.place,
            text,
            hint,
        )


def _signed(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}"


def _log_p95s(blocks: Counts) -> list[float]:
    """Return log p95 of blocks; neighbours with few requests are joined."""
    found: list[float] = []
    waiting = np.zeros(PLACES, np.int64)
    for block in blocks:
        waiting = waiting + block
        if waiting.sum() >= _LEAST_IN_BLOCK:
            found.append(log(percentile_ns(waiting, _SHARE)))
            waiting = np.zeros(PLACES, np.int64)
    return found


def _half_width(now: Sequence[float], then: Sequence[float]) -> float:
    """Return half of the two-sided 90 % interval of the difference of two means: 95 % to each side."""
    parts = [float(np.var(each, ddof=1)) / len(each) for each in (now, then)]
    variance = sum(parts)
    if variance <= 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (now, then), strict=True))
    return student_quantile(_CONFIDENCE, freedom) * sqrt(variance)


def _grown_place(now: Period, then: Period) -> tuple[str, float]:
    """Return the stage whose p95 over all requests grew most, and by how many nanoseconds."""
    grown = {stage: _stage_p95(now, stage) - _stage_p95(then, stage) for stage in now.stages if stage != REQUEST}
    largest = max(grown, key=lambda stage: grown[stage], default="")
    if grown.get(largest, 0.0) <= 0:
        return "", 0.0
    if largest == "features":
        return grown_group(dict(now.group_s), dict(then.group_s)), grown[largest]
    return largest, grown[largest]


def _stage_p95(period: Period, stage: str) -> float:
    """Return a stage's p95 over all requests: those that did not meet it took no time in it."""
    if stage not in period.stages:
        return 0.0
    counts = period.stages[stage].sum(0)
    missing = period.requests - int(counts.sum())
    if missing >= _SHARE * period.requests:
        return 0.0
    counts[0] += max(missing, 0)
    return percentile_ns(counts, _SHARE)
