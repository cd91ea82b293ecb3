"""Compares the stages of one variant in two spans."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.common.slo import samples_needed
from tailcut.gate.holm import adjust
from tailcut.observe.comparison.block_bootstrap import (
    Blocks,
    Interval,
    Values,
    choose_blocks,
    draw_weights,
    interval,
)
from tailcut.observe.comparison.records import Change, StageChange, VariantComparison, Verdict
from tailcut.observe.comparison.spans import Stages, StageSeries
from tailcut.observe.fine_histogram import percentiles_ns
from tailcut.observe.latency_figures import REQUEST

FEWEST_BUCKETS = 10
"""Of each span with requests, for anything to be said."""

_SHARE = 0.95
FEWEST_REQUESTS = samples_needed(_SHARE)
ALPHA = 0.05
_FEW_MET = 30
"""A stage that fewer requests met is compared only by its time per request."""


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
    return msgspec.structs.replace(found, stages=_stages(before, after, asked[0], asked[1], terms))


class _Tested(NamedTuple):
    """A stage before its p-values are adjusted; the last tests are of a mean and a percentile."""

    stage: str
    means: tuple[float, float]
    met: tuple[float, float]
    growth: Interval
    mean: Interval
    tail: Interval | None
    tails: tuple[float, float]


def _stages(
    before: Stages, after: Stages, asked_before: StageSeries, asked_after: StageSeries, terms: Terms
) -> tuple[StageChange, ...]:
    empty = StageSeries.empty(asked_before.requests.size)
    names = [REQUEST, *sorted((before.keys() | after.keys()) - {REQUEST})]
    tested = [
        _tested(name, (before.get(name, empty), after.get(name, empty)), (asked_before, asked_after), terms)
        for name in names
    ]
    places = [(place, kind) for place, each in enumerate(tested) for kind in ("mean", "tail") if getattr(each, kind)]
    adjusted = adjust([getattr(tested[place], kind).p for place, kind in places])
    ps = dict(zip(places, adjusted, strict=True))
    found = [
        _judged(each, ps[place, "mean"], ps.get((place, "tail"), 1.0), terms.min_change)
        for place, each in enumerate(tested)
    ]
    whole, rest = found[0], found[1:]
    rest.sort(key=lambda each: -abs(each.growth_ms))
    if whole.verdict in {"grew", "shrank"}:
        rest = [msgspec.structs.replace(each, growth_share=each.growth_ms / whole.growth_ms) for each in rest]
    return whole, *rest


def _tested(
    name: str, stage: tuple[StageSeries, StageSeries], asked: tuple[StageSeries, StageSeries], terms: Terms
) -> _Tested:
    per_request = [_ratio(one.total_ns, all_.requests) for one, all_ in zip(stage, asked, strict=True)]
    with np.errstate(divide="ignore", invalid="ignore"):
        blocks = choose_blocks(np.log(per_request[1] / per_request[0]))
    weights = draw_weights(per_request[0].size, blocks.length, terms.seed)
    sums = [weights @ np.stack([one.total_ns, all_.requests], axis=1) for one, all_ in zip(stage, asked, strict=True)]
    means = [_ratio(each[:, 0], each[:, 1]) / 1e6 for each in sums]
    mean = [float(one.total_ns.sum() / all_.requests.sum()) / 1e6 for one, all_ in zip(stage, asked, strict=True)]
    met = [float(one.requests.sum() / all_.requests.sum()) for one, all_ in zip(stage, asked, strict=True)]
    tail, tails = None, (np.nan, np.nan)
    if min(one.requests.sum() for one in stage) >= FEWEST_REQUESTS:
        tail, tails = _tail(stage, weights, blocks)
    return _Tested(
        name,
        (mean[0], mean[1]),
        (met[0], met[1]),
        interval(mean[1] - mean[0], means[1] - means[0], blocks),
        _log_interval(mean[0], mean[1], means[0], means[1], blocks),
        tail,
        tails,
    )


def _tail(
    stage: tuple[StageSeries, StageSeries], weights: Values, blocks: Blocks
) -> tuple[Interval, tuple[float, float]]:
    drawn = [_percentiles_ms(weights @ one.histograms) for one in stage]
    found = [float(_percentiles_ms(one.histograms.sum(0)[None])[0]) for one in stage]
    return _log_interval(found[0], found[1], drawn[0], drawn[1], blocks), (found[0], found[1])


def _percentiles_ms(histograms: Values) -> Values:
    """Return p95 per histogram, (n,); the counts are whole, as the weights of resamples are."""
    return percentiles_ns(histograms.astype(np.int64), (_SHARE,))[:, 0] / 1e6


def _log_interval(before: float, after: float, drawn_before: Values, drawn_after: Values, blocks: Blocks) -> Interval:
    """Return the interval of the logarithm of a ratio; nothing is said where one of both is 0."""
    if before <= 0 or after <= 0:
        return Interval(np.nan, np.nan, np.nan, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval(float(np.log(after / before)), np.log(drawn_after / drawn_before), blocks)


def _judged(tested: _Tested, p_mean: float, p_tail: float, least: float) -> StageChange:
    mean = _change(tested.means, tested.mean, p_mean)
    tail = None if tested.tail is None else _change(tested.tails, tested.tail, p_tail)
    return StageChange(
        stage=tested.stage,
        verdict=_verdict(tested, mean, tail, least),
        mean=mean,
        p95=tail,
        met_before=tested.met[0],
        met_after=tested.met[1],
        growth_ms=tested.growth.value,
        growth_low_ms=tested.growth.low,
        growth_high_ms=tested.growth.high,
    )


def _verdict(tested: _Tested, mean: Change, tail: Change | None, least: float) -> Verdict:
    if not tested.means[0] or not tested.means[1]:
        if tested.growth.p > ALPHA:
            return "noise"
        return "gone" if tested.means[0] else "new"
    certain = [each for each in (mean, tail) if each is not None and each.p <= ALPHA]
    if not certain:
        return "noise"
    large = [each for each in certain if abs(each.change) >= least]
    if not large:
        return "small"
    return "grew" if any(each.change > 0 for each in large) else "shrank"


def _change(values: tuple[float, float], found: Interval, p: float) -> Change:
    relative = [float(np.expm1(each)) for each in (found.value, found.low, found.high)]
    return Change(before=values[0], after=values[1], change=relative[0], low=relative[1], high=relative[2], p=float(p))


def _ratio(above: Values, below: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)
