"""Compares the stages of one variant in two spans."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.common.slo import samples_needed
from tailcut.observe.comparison.block_bootstrap import Values, change_of, draw_weights, ratio_change
from tailcut.observe.comparison.records import Change, StageChange, VariantComparison, Verdict
from tailcut.observe.comparison.spans import Stages, StageSeries
from tailcut.observe.fine_histogram import percentiles_ns
from tailcut.observe.latency_figures import REQUEST

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
