"""Compares a span of the history with the same span earlier: stages, rates and shares, and what of it is noise.

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
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.slo import samples_needed
from tailcut.gate.distributions import student_quantile
from tailcut.observe import exposition, path_metrics
from tailcut.observe.fine_histogram import FineHistogram, percentiles_ns
from tailcut.observe.history import MINUTE_S, CountRow, History
from tailcut.observe.latency_figures import REQUEST
from tailcut.observe.outcomes import SHED_CODES

Verdict = Literal["grew", "shrank", "small", "noise", "new", "gone"]
"""Small: certain, but less than the least change that counts. New and gone: only one of the spans has it."""


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in both spans.

    Attributes:
        before, after: in the figure's own unit.
        change: relative to before; of shares the difference.
        low, high: its 99.5 % interval; NaN, as ``change``, where one of both values is 0.
    """

    before: float
    after: float
    change: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """A stage in both spans.

    Attributes:
        mean: milliseconds per answered request, of those that did not meet the stage, too.
        p95: milliseconds of those that met it; None where too few did.
        met_before, met_after: share of requests that met it.
        growth_ms, growth_low_ms, growth_high_ms: by which the mean grew, with its interval.
        growth_share: part of the whole request's growth; None where that did not change.
    """

    stage: str
    verdict: Verdict
    mean: MetricChange
    p95: MetricChange | None
    met_before: float
    met_after: float
    growth_ms: float
    growth_low_ms: float
    growth_high_ms: float
    growth_share: float | None = None


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside the latencies: a rate, a share, rows per batch.

    Attributes:
        unit: "share", "1/s" or "rows".
    """

    name: str
    unit: str
    verdict: Verdict
    change: MetricChange


class VariantComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of one variant.

    Attributes:
        variant: empty: all variants together, where the spans have different ones.
        requests_before, requests_after: that were answered.
        too_little: why nothing is said; empty where something is.
        stages: the whole request first, then by how much they grew.
    """

    variant: str
    requests_before: int
    requests_after: int
    too_little: str = ""
    stages: tuple[StageChange, ...] = ()


class ModelComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        notes: what makes the spans hard to compare: another variant, gaps.
    """

    model: str
    variants: tuple[VariantComparison, ...]
    figures: tuple[FigureChange, ...] = ()
    notes: tuple[str, ...] = ()


class HistoryComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two spans of one history.

    Attributes:
        since_s, until_s: the recent span, in Unix seconds.
        against_s: how much earlier the other one is.
        bucket_s: seconds that were added up; blocks of buckets were resampled.
        min_change: the least change that counts.
    """

    history: str
    since_s: int
    until_s: int
    against_s: int
    bucket_s: int
    min_change: float
    models: tuple[ModelComparison, ...]

    @property
    def grew(self) -> tuple[tuple[str, str, StageChange], ...]:
        """Model, variant and stage of everything that grew, or is new."""
        return tuple(
            (model.model, variant.variant, stage)
            for model in self.models
            for variant in model.variants
            for stage in variant.stages
            if stage.verdict in {"grew", "new"}
        )

    @property
    def said(self) -> bool:
        """Whether anything could be compared."""
        return any(variant.stages for model in self.models for variant in model.variants)


Values = npt.NDArray[np.float64]
Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""A series of the earlier span, and of the recent one."""
Labels = Mapping[str, str]

REQUESTS = exposition.REQUESTS.series[0]
FEATURE_LOOKUPS = path_metrics.FEATURE_LOOKUPS.series[0]
PREDICTION_LOOKUPS = path_metrics.PREDICTION_CACHE_LOOKUPS.series[0]
_, BATCH_ROWS, BATCHES = exposition.BATCH_ROWS.series
_SERVED = path_metrics.SERVED.series[0]
_NAMES = (REQUESTS, FEATURE_LOOKUPS, PREDICTION_LOOKUPS, BATCH_ROWS, BATCHES, _SERVED)

_MOST_BUCKETS = 288
"""In a span: five minutes each where it is a day."""

_FEWEST_BUCKETS = 10
"""Of each span with requests, for anything to be said."""

_BLOCKS = 10
"""In a series."""

_RESAMPLES = 600
"""Of a standard deviation they give 3 %."""

_CONFIDENCE = 0.995
"""A comparison looks at some twenty figures: of 95 % intervals one would exclude 0 by chance."""

_SHARE = 0.95
_FEWEST_REQUESTS = samples_needed(_SHARE)

_SHARE_CHANGE, _ERRORS_CHANGE = 0.01, 0.001
"""The least difference of shares that counts: of hits, and of requests that were not answered as they should be."""

_FULL_SHARE = 0.9


class ComparisonTerms(NamedTuple):
    """What a comparison is made by.

    Attributes:
        min_change: the least relative change that counts.
        seed: of the resampling.
    """

    min_change: float = 0.05
    seed: int = 0


def compare(
    history: History,
    since_s: float,
    until_s: float,
    against_s: float,
    *,
    model: str | None = None,
    terms: ComparisonTerms,
) -> HistoryComparison:
    """Compare the requests from ``since_s`` to ``until_s`` with those ``against_s`` earlier.

    Args:
        since_s, until_s: Unix seconds, rounded down to minutes.
        against_s: whole minutes, at least the length of the span.
        model: None for all.

    Raises:
        StoreError: the history cannot be read.
    """
    since, until, earlier = (int(each // MINUTE_S) * MINUTE_S for each in (since_s, until_s, against_s))
    bucket_s = bucket_of(until - since)
    after = _read_span(history, since, until, bucket_s, model)
    before = _read_span(history, since - earlier, until - earlier, bucket_s, model)
    names = sorted(name for name in before.models.keys() | after.models.keys() if name)
    return HistoryComparison(
        history=str(history.path),
        since_s=since,
        until_s=until,
        against_s=earlier,
        bucket_s=bucket_s,
        min_change=terms.min_change,
        models=tuple(_compare_model(before, after, name, terms) for name in names),
    )


def bucket_of(span_s: int) -> int:
    """Return the seconds that are added up of a span."""
    return max(-(-span_s // (_MOST_BUCKETS * MINUTE_S)), 1) * MINUTE_S


def _compare_model(before: _Span, after: _Span, name: str, terms: ComparisonTerms) -> ModelComparison:
    models = before.models.get(name, _ModelSpan()), after.models.get(name, _ModelSpan())
    weights = draw_weights(before.buckets, terms.seed)
    return ModelComparison(
        model=name,
        variants=tuple(_variants(*models, terms)),
        figures=tuple(_figures(before, after, models, weights, terms)),
        notes=tuple(_notes(before, after, models)),
    )


def _variants(before: _ModelSpan, after: _ModelSpan, terms: ComparisonTerms) -> Iterator[VariantComparison]:
    """Yield each variant that both spans have; all together where one of them has others."""
    for variant in sorted(before.stages.keys() & after.stages.keys()):
        yield _compare_variant(variant, before.stages[variant], after.stages[variant], terms)
    if before.stages.keys() != after.stages.keys():
        yield _compare_variant("", before.together(), after.together(), terms)


def _notes(before: _Span, after: _Span, models: tuple[_ModelSpan, _ModelSpan]) -> Iterator[str]:
    """Yield what makes two spans of a model hard to compare."""
    for which, span, model in (("earlier", before, models[0]), ("recent", after, models[1])):
        there, minutes = int(span.minutes.sum()), span.length_s // 60
        if there < _FULL_SHARE * minutes:
            yield f"the {which} span has rows of {there} of its {minutes} minutes; no server ran in the others"
        if there and not model.sums(REQUESTS, span.buckets).any():
            yield f"no requests came in the {which} span"
    old, new = (", ".join(sorted(model.versions)) for model in models)
    if old and new and old != new:
        yield f"another variant or version was served: {old} before, {new} now"


# -- Two spans of the history as arrays --------------------------------------------------------------------------------


Stages = dict[str, FineHistogram]
"""By stage: a histogram per bucket."""


@dataclass
class _ModelSpan:
    """A model in one span.

    Attributes:
        stages: by variant and stage.
        counts: of counters by name and labels, (buckets,).
        versions: that were served, "variant version".
    """

    stages: dict[str, Stages] = field(default_factory=dict)
    counts: dict[str, list[tuple[Labels, Values]]] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    def sums(self, name: str, buckets: int, wanted: Callable[[Labels], bool] = lambda labels: True) -> Values:
        """Return a counter per bucket, over all labels that are wanted."""
        found = [values for labels, values in self.counts.get(name, ()) if wanted(labels)]
        return np.sum(found, axis=0) if found else np.zeros(buckets)

    def together(self) -> Stages:
        """Return the stages of all variants together."""
        found: Stages = {}
        for stages in self.stages.values():
            for stage, series in stages.items():
                found[stage] = found[stage].plus(series) if stage in found else series
        return found


@dataclass
class _Span:
    """Everything in one span.

    Attributes:
        minutes: that the history has, per bucket.
    """

    length_s: int
    buckets: int
    minutes: Values
    models: dict[str, _ModelSpan]


def _read_span(history: History, since_s: int, until_s: int, bucket_s: int, model: str | None) -> _Span:
    buckets = -(-(until_s - since_s) // bucket_s)
    span = _Span(until_s - since_s, buckets, np.zeros(buckets), {})
    for start_s, minutes in history.coverage(since_s, until_s, bucket_s=bucket_s):
        span.minutes[(start_s - since_s) // bucket_s] = minutes
    for row in history.latency(since_s, until_s, model=model, bucket_s=bucket_s):
        stages = span.models.setdefault(row.model, _ModelSpan()).stages.setdefault(row.variant, {})
        series = stages.setdefault(row.stage, FineHistogram.empty(buckets))
        bucket = (row.start_s - since_s) // bucket_s
        series.places[bucket] += row.histogram
        series.total_ns[bucket] += row.total_ns
    for name in _NAMES:
        for count in history.counts(since_s, until_s, model=model, name=name, bucket_s=bucket_s):
            _add_count(span, count, (count.start_s - since_s) // bucket_s)
    return span


def _add_count(span: _Span, row: CountRow, bucket: int) -> None:
    model = span.models.setdefault(row.model, _ModelSpan())
    if row.name == _SERVED:
        model.versions.add(f"{row.labels.get('variant', '')} {row.labels.get('version', '')}".strip())
        return
    known = model.counts.setdefault(row.name, [])
    values = next((values for labels, values in known if labels == row.labels), None)
    if values is None:
        values = np.zeros(span.buckets)
        known.append((row.labels, values))
    values[bucket] += row.value


# -- Changes and their intervals ---------------------------------------------------------------------------------------


def draw_weights(count: int, seed: int, resamples: int = _RESAMPLES) -> Values:
    """Return how often each of ``count`` elements is in each resample of blocks, (resamples, count)."""
    rng = np.random.default_rng(seed)
    length = ceil(count / _BLOCKS)
    starts = rng.integers(0, count, (resamples, ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    flat = places + np.arange(resamples)[:, None] * count
    return np.bincount(flat.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float64)


def _ratio_change(above: Pair, below: Pair, weights: Values, *, is_relative: bool = True) -> MetricChange:
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
    freedom = max(count / ceil(count / _BLOCKS) - 1.0, 1.0)
    error = float(known.std(ddof=1)) * sqrt((freedom + 1) / freedom) if known.size > 1 else np.inf
    reach = student_quantile(0.5 + _CONFIDENCE / 2, freedom) * error
    found = (change, change - reach, change + reach) if np.isfinite(change) else (np.nan, np.nan, np.nan)
    value, low, high = (float(np.expm1(each)) for each in found) if is_relative else found
    return MetricChange(before=values[0], after=values[1], change=value, low=low, high=high)


# -- Rates and shares --------------------------------------------------------------------------------------------------


class _Ratio(NamedTuple):
    """A figure that is one sum over another, per bucket.

    Attributes:
        unit: see ``FigureChange``.
        least: change that counts: relative, of shares the difference.
    """

    name: str
    unit: str
    above: Pair
    below: Pair
    least: float


def _figures(
    before: _Span, after: _Span, models: tuple[_ModelSpan, _ModelSpan], weights: Values, terms: ComparisonTerms
) -> Iterator[FigureChange]:
    """Yield the figures of a model that both spans can tell."""
    for ratio in _ratios(before, after, models, terms):
        is_share = ratio.unit == "share"
        is_known = all((below > 0).sum() >= _FEWEST_BUCKETS for below in ratio.below)
        # By which factor nothing grew cannot be told: see the notes. What was 0 in both spans says nothing either.
        grew_from = any if is_share else all
        if is_known and grew_from(above.any() for above in ratio.above):
            change = _ratio_change(ratio.above, ratio.below, weights, is_relative=not is_share)
            verdict: Verdict = "noise"
            if change.is_certain:
                verdict = "small" if abs(change.change) < ratio.least else "grew" if change.change > 0 else "shrank"
            yield FigureChange(name=ratio.name, unit=ratio.unit, verdict=verdict, change=change)


def _ratios(
    before: _Span, after: _Span, models: tuple[_ModelSpan, _ModelSpan], terms: ComparisonTerms
) -> Iterator[_Ratio]:
    def both(name: str, wanted: Callable[[Labels], bool] = lambda labels: True) -> Pair:
        return models[0].sums(name, before.buckets, wanted), models[1].sums(name, before.buckets, wanted)

    requests = both(REQUESTS)
    yield _Ratio("request rate", "1/s", requests, (before.minutes * 60, after.minutes * 60), terms.min_change)
    # As the alerts count them: a request that was itself wrong says nothing of the server.
    judged = both(REQUESTS, lambda labels: _is_shed(labels) or labels.get("outcome") != "4xx")
    failed = both(REQUESTS, lambda labels: not _is_shed(labels) and labels.get("outcome") == "5xx")
    yield _Ratio("error share", "share", failed, judged, _ERRORS_CHANGE)
    yield _Ratio("shed share", "share", both(REQUESTS, _is_shed), judged, _ERRORS_CHANGE)
    yield _Ratio("stale share", "share", both(REQUESTS, _with(cache="stale")), requests, _ERRORS_CHANGE)
    yield _Ratio("rows per batch", "rows", both(BATCH_ROWS), both(BATCHES), terms.min_change)
    for name, label, title in ((FEATURE_LOOKUPS, "group", "feature group"), (PREDICTION_LOOKUPS, "cache", "cache")):
        values = {labels.get(label, "") for model in models for labels, _ in model.counts.get(name, ())}
        for value in sorted(values):
            hits, below = both(name, _with(result="hit", **{label: value})), both(name, _with(**{label: value}))
            yield _Ratio(f"hit rate of {title} {value}", "share", hits, below, _SHARE_CHANGE)


def _is_shed(labels: Labels) -> bool:
    return labels.get("code") in SHED_CODES


def _with(**wanted: str) -> Callable[[Labels], bool]:
    return lambda labels: wanted.items() <= labels.items()


# -- Stages ------------------------------------------------------------------------------------------------------------


def _compare_variant(name: str, before: Stages, after: Stages, terms: ComparisonTerms) -> VariantComparison:
    """Compare the latencies of a variant.

    Args:
        before, after: buckets at the same place are of the same time of the day or week: both are resampled together,
            so that the daily rise and fall is in neither interval.
    """
    nothing = FineHistogram.empty(0)
    asked = before.get(REQUEST, nothing), after.get(REQUEST, nothing)
    counts = [int(each.places.sum()) for each in asked]
    found = VariantComparison(variant=name, requests_before=counts[0], requests_after=counts[1])
    for which, series, count in zip(("earlier", "recent"), asked, counts, strict=True):
        buckets = int((series.counted > 0).sum())
        if count < _FEWEST_REQUESTS or buckets < _FEWEST_BUCKETS:
            said = f"the {which} span has {count} answered requests in {buckets} buckets of time"
            need = f"at least {_FEWEST_REQUESTS} in {_FEWEST_BUCKETS} are needed"
            return msgspec.structs.replace(found, too_little=f"{said}; {need}")
    return msgspec.structs.replace(found, stages=tuple(_stages(before, after, asked, terms)))


def _stages(
    before: Stages, after: Stages, asked: tuple[FineHistogram, FineHistogram], terms: ComparisonTerms
) -> list[StageChange]:
    """Return the whole request and its stages, by how much they grew."""
    buckets = len(asked[0].total_ns)
    empty, weights = FineHistogram.empty(buckets), draw_weights(buckets, terms.seed)
    requests = asked[0].counted, asked[1].counted

    def compared(name: str) -> StageChange:
        stage = before.get(name, empty), after.get(name, empty)
        return _compare_stage(name, stage, requests, weights, terms.min_change)

    whole, *rest = map(compared, [REQUEST, *sorted((before.keys() | after.keys()) - {REQUEST})])
    rest.sort(key=lambda each: -abs(each.growth_ms))
    if whole.verdict in {"grew", "shrank"}:
        rest = [msgspec.structs.replace(each, growth_share=each.growth_ms / whole.growth_ms) for each in rest]
    return [whole, *rest]


def _compare_stage(
    name: str, stage: tuple[FineHistogram, FineHistogram], requests: Pair, weights: Values, least: float
) -> StageChange:
    met = stage[0].counted, stage[1].counted
    if max(map(np.count_nonzero, met)) < _FEWEST_BUCKETS:
        weights = weights[:1]  # few calls in the same buckets vary little over resamples: nothing is certain of them
    total_ms = stage[0].total_ns / 1e6, stage[1].total_ns / 1e6
    mean = _ratio_change(total_ms, requests, weights)
    growth = _ratio_change(total_ms, requests, weights, is_relative=False)
    tail = None
    if min(one.sum() for one in met) >= _FEWEST_REQUESTS:
        before, after = (_percentiles_ms(one.places.sum(0)[None])[0] for one in stage)
        drawn = _percentiles_ms(weights @ stage[0].places), _percentiles_ms(weights @ stage[1].places)
        tail = change_of((float(before), float(after)), drawn, weights.shape[1])
    shares = [float(one.sum() / all_.sum()) for one, all_ in zip(met, requests, strict=True)]
    return StageChange(
        stage=name,
        verdict=_verdict(mean, growth, tail, least),
        mean=mean,
        p95=tail,
        met_before=shares[0],
        met_after=shares[1],
        growth_ms=growth.change,
        growth_low_ms=growth.low,
        growth_high_ms=growth.high,
    )


def _percentiles_ms(histograms: npt.NDArray[Any]) -> Values:
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
