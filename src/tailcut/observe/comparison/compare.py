"""Compares a span of the history with the same span earlier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tailcut.observe.comparison.records import (
    FigureChange,
    HistoryComparison,
    ModelComparison,
    VariantComparison,
    Verdict,
)
from tailcut.observe.comparison.stages import (
    BATCH_ROWS,
    BATCHES,
    FEATURE_LOOKUPS,
    FEWEST_BUCKETS,
    PREDICTION_LOOKUPS,
    REQUESTS,
    ComparisonTerms,
    ModelSpan,
    SpanFigures,
    Values,
    compare_variant,
    draw_weights,
    ratio_change,
    read_span,
)
from tailcut.observe.history.history import History
from tailcut.observe.history.rows import MINUTE_S
from tailcut.observe.outcomes import SHED_CODES

_MOST_BUCKETS = 288
"""In a span: five minutes each where it is a day."""


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
    since, until = (int(each // MINUTE_S) * MINUTE_S for each in (since_s, until_s))
    earlier = int(against_s // MINUTE_S) * MINUTE_S
    bucket_s = bucket_of(until - since)
    after = read_span(history, since, until, bucket_s, model)
    before = read_span(history, since - earlier, until - earlier, bucket_s, model)
    names = sorted(name for name in before.models.keys() | after.models.keys() if name)
    return HistoryComparison(
        history=str(history.path),
        since_s=since,
        until_s=until,
        against_s=earlier,
        bucket_s=bucket_s,
        min_change=terms.min_change,
        models=tuple(_model(before, after, name, terms) for name in names),
    )


def bucket_of(span_s: int) -> int:
    """Return the seconds that are added up of a span."""
    return max(-(-span_s // (_MOST_BUCKETS * MINUTE_S)), 1) * MINUTE_S


def _model(before: SpanFigures, after: SpanFigures, name: str, terms: ComparisonTerms) -> ModelComparison:
    figures = compare_figures(before, after, name, terms)
    spans = before.models.get(name, ModelSpan()), after.models.get(name, ModelSpan())
    return ModelComparison(
        model=name,
        variants=tuple(_variants(*spans, terms)),
        figures=figures,
        notes=tuple(notes_on(before, after, name)),
    )


def _variants(before: ModelSpan, after: ModelSpan, terms: ComparisonTerms) -> Iterator[VariantComparison]:
    """Yield each variant that both spans have; all together where one of them has others."""
    for variant in sorted(before.stages.keys() & after.stages.keys()):
        yield compare_variant(variant, before.stages[variant], after.stages[variant], terms)
    if before.stages.keys() != after.stages.keys():
        yield compare_variant("", before.together(), after.together(), terms)


_SHARE_CHANGE = 0.01
"""The least difference of shares that counts."""

_FULL_SHARE = 0.9
_ERRORS_CHANGE = 0.001
_MINUTE_S = 60.0

Labels = Mapping[str, str]


class Ratio(NamedTuple):
    """A figure that is one sum over another, per bucket.

    Attributes:
        unit: see ``FigureChange``.
        least: change that counts: relative, of shares the difference.
    """

    name: str
    unit: str
    above: tuple[Values, Values]
    below: tuple[Values, Values]
    least: float


def compare_figures(
    before: SpanFigures, after: SpanFigures, model: str, terms: ComparisonTerms
) -> tuple[FigureChange, ...]:
    """Compare the figures of a model; those that neither span has are left out."""
    spans = before.models.get(model, ModelSpan()), after.models.get(model, ModelSpan())
    minutes = before.minutes, after.minutes
    weights = draw_weights(before.buckets, terms.seed)
    return tuple(
        _compare(ratio, weights)
        for ratio in _ratios(spans, minutes, before.buckets, terms)
        if all((below > 0).sum() >= FEWEST_BUCKETS for below in ratio.below)
        # By which factor nothing grew cannot be told: see the notes.
        and (ratio.unit == "share" or all(above.any() for above in ratio.above))
        # Nor is there anything to say of what was 0 in both.
        and any(above.any() for above in ratio.above)
    )


def _ratios(
    spans: tuple[ModelSpan, ModelSpan], minutes: tuple[Values, Values], buckets: int, terms: ComparisonTerms
) -> Iterator[Ratio]:
    def both(name: str, wanted: Callable[[Labels], bool] = _any) -> tuple[Values, Values]:
        first, second = (span.sums(name, buckets, wanted) for span in spans)
        return first, second

    seconds = minutes[0] * _MINUTE_S, minutes[1] * _MINUTE_S
    requests = both(REQUESTS)
    yield Ratio("request rate", "1/s", requests, seconds, terms.min_change)
    # As the alerts count them: a request that was itself wrong says nothing of the server.
    judged = both(REQUESTS, lambda labels: _is_shed(labels) or labels.get("outcome") != "4xx")
    failed = both(REQUESTS, lambda labels: not _is_shed(labels) and labels.get("outcome") == "5xx")
    yield Ratio("error share", "share", failed, judged, _ERRORS_CHANGE)
    yield Ratio("shed share", "share", both(REQUESTS, _is_shed), judged, _ERRORS_CHANGE)
    yield Ratio("stale share", "share", both(REQUESTS, _with("cache", "stale")), requests, _ERRORS_CHANGE)
    yield Ratio("rows per batch", "rows", both(BATCH_ROWS), both(BATCHES), terms.min_change)
    for name, label, title in ((FEATURE_LOOKUPS, "group", "feature group"), (PREDICTION_LOOKUPS, "cache", "cache")):
        values = {labels.get(label, "") for span in spans for labels, _ in span.counts.get(name, ())}
        for value in sorted(values):
            hits = both(name, _with(label, value, result="hit"))
            below = both(name, _with(label, value))
            yield Ratio(f"hit rate of {title} {value}", "share", hits, below, _SHARE_CHANGE)


def _is_shed(labels: Labels) -> bool:
    return labels.get("code") in SHED_CODES


def _compare(ratio: Ratio, weights: Values) -> FigureChange:
    change = ratio_change(ratio.above, ratio.below, weights, is_relative=ratio.unit != "share")
    verdict: Verdict = "noise"
    if change.is_certain:
        verdict = "small" if abs(change.change) < ratio.least else "grew" if change.change > 0 else "shrank"
    return FigureChange(name=ratio.name, unit=ratio.unit, verdict=verdict, change=change)


def notes_on(before: SpanFigures, after: SpanFigures, model: str) -> Iterator[str]:
    """Yield what makes two spans of a model hard to compare."""
    spans = before.models.get(model, ModelSpan()), after.models.get(model, ModelSpan())
    for which, span, asked in (("earlier", before, spans[0]), ("recent", after, spans[1])):
        there, minutes = int(span.minutes.sum()), span.length_s // 60
        if there < _FULL_SHARE * minutes:
            yield f"the {which} span has rows of {there} of its {minutes} minutes; no server ran in the others"
        if there and not asked.sums(REQUESTS, span.buckets, _any).any():
            yield f"no requests came in the {which} span"
    if spans[0].versions and spans[1].versions and spans[0].versions != spans[1].versions:
        old, new = (", ".join(sorted(span.versions)) for span in spans)
        yield f"another variant or version was served: {old} before, {new} now"


def _any(labels: Labels) -> bool:
    return True


def _with(label: str, value: str, **others: str) -> Callable[[Labels], bool]:
    wanted = {label: value, **others}.items()
    return lambda labels: wanted <= labels.items()
