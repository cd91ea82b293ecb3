"""Two spans of the history as arrays, and the stages of one variant compared in them.

A slow minute follows a slow minute: minutes that are drawn one by one give intervals that are far too narrow. Blocks
are drawn instead, around the end of the series (circular block bootstrap; Politis and Romano 1992, "A Circular
Block-Resampling Procedure for Stationary Data"). They are a tenth of the series: few and long blocks with Student's
quantile hold where dependence cannot be estimated well (Schmeiser 1982, "Batch Size Effects in the Analysis of
Simulation Output", Operations Research 30:556).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.slo import samples_needed
from tailcut.gate.distributions import student_quantile
from tailcut.observe import exposition, path_metrics
from tailcut.observe.comparison.records import MetricChange, StageChange, VariantComparison, Verdict
from tailcut.observe.fine_histogram import PLACES, percentiles_ns
from tailcut.observe.history.history import History
from tailcut.observe.history.rows import CountRow, LatencyRow
from tailcut.observe.latency_figures import REQUEST

Values = npt.NDArray[np.float64]


class StageSeries(NamedTuple):
    """A stage per bucket.

    Attributes:
        requests: that met it, (buckets,).
        total_ns: (buckets,).
        histograms: (buckets, ``PLACES``).
    """

    requests: Values
    total_ns: Values
    histograms: Values

    @classmethod
    def empty(cls, buckets: int) -> StageSeries:
        """Return a stage that no request met."""
        return cls(np.zeros(buckets), np.zeros(buckets), np.zeros((buckets, PLACES)))

    def added(self, other: StageSeries) -> StageSeries:
        """Return both together."""
        return StageSeries(
            self.requests + other.requests, self.total_ns + other.total_ns, self.histograms + other.histograms
        )


Stages = dict[str, StageSeries]


@dataclass
class ModelSpan:
    """A model in one span.

    Attributes:
        stages: by variant and stage.
        counts: of counters by name and labels, (buckets,).
        versions: that were served, "variant version".
    """

    stages: dict[str, Stages] = field(default_factory=dict)
    counts: dict[str, list[tuple[Mapping[str, str], Values]]] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    def sums(self, name: str, buckets: int, wanted: Callable[[Mapping[str, str]], bool]) -> Values:
        """Return a counter per bucket, over all labels that are wanted."""
        found = [values for labels, values in self.counts.get(name, ()) if wanted(labels)]
        return np.sum(found, axis=0) if found else np.zeros(buckets)

    def together(self) -> Stages:
        """Return the stages of all variants together."""
        found: Stages = {}
        for stages in self.stages.values():
            for stage, series in stages.items():
                found[stage] = found[stage].added(series) if stage in found else series
        return found


@dataclass
class SpanFigures:
    """Everything in one span.

    Attributes:
        minutes: that the history has, per bucket.
    """

    length_s: int
    buckets: int
    minutes: Values
    models: dict[str, ModelSpan]


def read_span(history: History, since_s: int, until_s: int, bucket_s: int, model: str | None) -> SpanFigures:
    """Read a span.

    Args:
        model: None for all.

    Raises:
        StoreError: the history cannot be read.
    """
    buckets = -(-(until_s - since_s) // bucket_s)
    span = SpanFigures(until_s - since_s, buckets, np.zeros(buckets), {})
    for start_s, minutes in history.coverage(since_s, until_s, bucket_s=bucket_s):
        span.minutes[(start_s - since_s) // bucket_s] = minutes
    for row in history.latency(since_s, until_s, model=model, bucket_s=bucket_s):
        _add_latency(span, row, (row.start_s - since_s) // bucket_s)
    for counted in _counted(history, since_s, until_s, bucket_s, model):
        _add_count(span, counted, (counted.start_s - since_s) // bucket_s)
    return span


def _counted(history: History, since_s: int, until_s: int, bucket_s: int, model: str | None) -> Iterator[CountRow]:
    for name in _NAMES:
        yield from history.counts(since_s, until_s, model=model, name=name, bucket_s=bucket_s)


def _add_latency(span: SpanFigures, row: LatencyRow, bucket: int) -> None:
    stages = span.models.setdefault(row.model, ModelSpan()).stages.setdefault(row.variant, {})
    series = stages.setdefault(row.stage, StageSeries.empty(span.buckets))
    series.requests[bucket] += row.requests
    series.total_ns[bucket] += row.total_ns
    series.histograms[bucket] += row.histogram


def _add_count(span: SpanFigures, row: CountRow, bucket: int) -> None:
    model = span.models.setdefault(row.model, ModelSpan())
    if row.name == _SERVED:
        model.versions.add(f"{row.labels.get('variant', '')} {row.labels.get('version', '')}".strip())
        return
    known = model.counts.setdefault(row.name, [])
    values = next((values for labels, values in known if labels == row.labels), None)
    if values is None:
        values = np.zeros(span.buckets)
        known.append((row.labels, values))
    values[bucket] += row.value


REQUESTS = exposition.REQUESTS.series[0]
FEATURE_LOOKUPS = path_metrics.FEATURE_LOOKUPS.series[0]
PREDICTION_LOOKUPS = path_metrics.PREDICTION_CACHE_LOOKUPS.series[0]
_, BATCH_ROWS, BATCHES = exposition.BATCH_ROWS.series
_SERVED = path_metrics.SERVED.series[0]
_NAMES = (REQUESTS, FEATURE_LOOKUPS, PREDICTION_LOOKUPS, BATCH_ROWS, BATCHES, _SERVED)


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


def ratio_change(above: Pair, below: Pair, weights: Values, *, is_relative: bool = True) -> MetricChange:
    """Compare the ratio of two sums in both spans; see ``change_of``.

    Args:
        weights: of ``draw_weights``; elements at the same place of both spans are drawn together.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [float(one.sum() / other.sum()) for one, other in zip(above, below, strict=True)]
        drawn = [(weights @ one) / (weights @ other) for one, other in zip(above, below, strict=True)]
    return change_of((values[0], values[1]), (drawn[0], drawn[1]), weights.shape[1], is_relative=is_relative)


def change_of(values: tuple[float, float], drawn: Pair, count: int, *, is_relative: bool = True) -> MetricChange:
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
    return MetricChange(before=values[0], after=values[1], change=value, low=low, high=high)


FEWEST_BUCKETS = 10
"""Of each span with requests, for anything to be said."""

_SHARE = 0.95
FEWEST_REQUESTS = samples_needed(_SHARE)


class ComparisonTerms(NamedTuple):
    """What a comparison is made by.

    Attributes:
        min_change: the least relative change that counts.
        seed: of the resampling.
    """

    min_change: float = 0.05
    seed: int = 0


def compare_variant(name: str, before: Stages, after: Stages, terms: ComparisonTerms) -> VariantComparison:
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


def _stages(
    before: Stages, after: Stages, asked: tuple[StageSeries, StageSeries], terms: ComparisonTerms
) -> list[StageChange]:
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
    if max(np.count_nonzero(one.requests) for one in stage) < FEWEST_BUCKETS:
        weights = weights[:1]  # few calls in the same buckets vary little over resamples: nothing is certain of them
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


def _verdict(mean: MetricChange, growth: MetricChange, tail: MetricChange | None, least: float) -> Verdict:
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
