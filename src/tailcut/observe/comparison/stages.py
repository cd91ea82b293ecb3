"""Compares the stages of one variant in two spans."""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.slo import samples_needed
from tailcut.gate.distributions import student_quantile
from tailcut.observe.comparison.records import Change, StageChange, VariantComparison, Verdict
from tailcut.observe.comparison.spans import Stages, StageSeries
from tailcut.observe.fine_histogram import percentiles_ns
from tailcut.observe.latency_figures import REQUEST

Values = npt.NDArray[np.float64]
Pair = tuple[Values, Values]
"""A series of the earlier span, and of the recent one."""

BLOCKS = 10
"""In a series."""

RESAMPLES = 600
"""Of a standard deviation they give 3 %."""

_CONFIDENCE = 0.995
"""A comparison looks at some twenty figures: of 95 % intervals one would exclude 0 by chance."""


def draw_weights(count: int, seed: int, resamples: int = RESAMPLES) -> Values:
    """Return how often each of ``count`` elements is in each resample of blocks, (resamples, count)."""
    rng = np.random.default_rng(seed)
    length = ceil(count / BLOCKS)
    starts = rng.integers(0, count, (resamples, ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    flat = places + np.arange(resamples)[:, None] * count
    return np.bincount(flat.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float64)


def ratio_change(above: Pair, below: Pair, weights: Values, *, is_relative: bool = True) -> Change:
    """Compare the ratio of two sums in both spans; see ``change_of``.

    Args:
        weights: of ``draw_weights``; elements at the same place of both spans are drawn together.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [float(one.sum() / other.sum()) for one, other in zip(above, below, strict=True)]
        drawn = [(weights @ one) / (weights @ other) for one, other in zip(above, below, strict=True)]
    return change_of((values[0], values[1]), (drawn[0], drawn[1]), weights.shape[1], is_relative=is_relative)


def change_of(values: tuple[float, float], drawn: Pair, count: int, *, is_relative: bool = True) -> Change:
    """Return the change of an estimate with Student's interval, from its standard deviation over resamples.

    Args:
        drawn: the estimate in each resample.
        count: elements of the series.
        is_relative: whether it is relative to the earlier value, and not the difference. There is none where a value
            is 0: all is NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if is_relative:
            change, replicates = float(np.log(values[1] / values[0])), np.log(drawn[1] / drawn[0])
        else:
            change, replicates = values[1] - values[0], drawn[1] - drawn[0]
    known = replicates[np.isfinite(replicates)]
    freedom = max(count / ceil(count / BLOCKS) - 1.0, 1.0)
    error = float(known.std(ddof=1)) * sqrt((freedom + 1) / freedom) if known.size > 1 else np.inf
    reach = student_quantile(0.5 + _CONFIDENCE / 2, freedom) * error
    found = (change, change - reach, change + reach) if np.isfinite(change) else (np.nan, np.nan, np.nan)
    value, low, high = (float(np.expm1(each)) for each in found) if is_relative else found
    return Change(before=values[0], after=values[1], change=value, low=low, high=high)


FEWEST_BUCKETS = 10
"""Of each span with requests, for anything to be said."""

_SHARE = 0.95
FEWEST_REQUESTS = samples_needed(_SHARE)


class Terms(NamedTuple):
    """What a comparison is made by.

    Attributes:
        min_change: the least relative change that counts.
        seed: of the resampling.
    """

    min_change: float = 0.05
    seed: int = 0


def compare_variant(name: str, before: Stages, after: Stages, terms: Terms) -> VariantComparison:
    """Compare the latencies of a variant.

    Args:
        before, after: buckets at the same place are of the same time of the day or week: both are resampled together,
            so that the daily rise and fall is in neither interval.
    """
    asked = before.get(REQUEST), after.get(REQUEST)
    counts = [0 if each is None else int(each.requests.sum()) for each in asked]
    found = VariantComparison(variant=name, requests_before=counts[0], requests_after=counts[1])
    for which, series, count in zip(("earlier", "recent"), asked, counts, strict=True):
        buckets = 0 if series is None else int((series.requests > 0).sum())
        if series is None or count < FEWEST_REQUESTS or buckets < FEWEST_BUCKETS:
            said = f"the {which} span has {count} answered requests in {buckets} buckets of time"
            need = f"at least {FEWEST_REQUESTS} in {FEWEST_BUCKETS} are needed"
            return msgspec.structs.replace(found, too_little=f"{said}; {need}")
    assert asked[0] is not None
    assert asked[1] is not None
    return msgspec.structs.replace(found, stages=tuple(_stages(before, after, (asked[0], asked[1]), terms)))


def _stages(before: Stages, after: Stages, asked: tuple[StageSeries, StageSeries], terms: Terms) -> list[StageChange]:
    """Return the whole request and its stages, by how much they grew."""
    empty = StageSeries.empty(asked[0].requests.size)
    weights = draw_weights(asked[0].requests.size, terms.seed)

    def compared(name: str) -> StageChange:
        return _compare(name, (before.get(name, empty), after.get(name, empty)), asked, weights, terms.min_change)

    whole, *rest = map(compared, [REQUEST, *sorted((before.keys() | after.keys()) - {REQUEST})])
    rest.sort(key=lambda each: -abs(each.growth_ms))
    if whole.verdict in {"grew", "shrank"}:
        rest = [msgspec.structs.replace(each, growth_share=each.growth_ms / whole.growth_ms) for each in rest]
    return [whole, *rest]


def _compare(
    name: str,
    stage: tuple[StageSeries, StageSeries],
    asked: tuple[StageSeries, StageSeries],
    weights: Values,
    least: float,
) -> StageChange:
    total_ms = stage[0].total_ns / 1e6, stage[1].total_ns / 1e6
    requests = asked[0].requests, asked[1].requests
    mean = ratio_change(total_ms, requests, weights)
    growth = ratio_change(total_ms, requests, weights, is_relative=False)
    tail = None
    if min(one.requests.sum() for one in stage) >= FEWEST_REQUESTS:
        before, after = (_percentiles_ms(one.histograms.sum(0)[None])[0] for one in stage)
        drawn = _percentiles_ms(weights @ stage[0].histograms), _percentiles_ms(weights @ stage[1].histograms)
        tail = change_of((float(before), float(after)), drawn, weights.shape[1])
    met = [float(one.requests.sum() / all_.sum()) for one, all_ in zip(stage, requests, strict=True)]
    return StageChange(
        stage=name,
        verdict=_verdict(mean, growth, tail, least),
        mean=mean,
        p95=tail,
        met_before=met[0],
        met_after=met[1],
        growth_ms=growth.change,
        growth_low_ms=growth.low,
        growth_high_ms=growth.high,
    )


def _percentiles_ms(histograms: Values) -> Values:
    """Return p95 per histogram, (n,); the counts are whole, as the weights of resamples are."""
    return percentiles_ns(histograms.astype(np.int64), (_SHARE,))[:, 0] / 1e6


def _verdict(mean: Change, growth: Change, tail: Change | None, least: float) -> Verdict:
    if not mean.before or not mean.after:
        if not growth.is_certain:
            return "noise"
        return "gone" if mean.before else "new"
    certain = [each for each in (mean, tail) if each is not None and each.is_certain]
    if not certain:
        return "noise"
    large = [each for each in certain if abs(each.change) >= least]
    if not large:
        return "small"
    return "grew" if any(each.change > 0 for each in large) else "shrank"
