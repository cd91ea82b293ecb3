"""Compares what is counted beside latencies: rate, errors, hit rates, rows per batch; and the mix of the traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tailcut.observe.comparison.block_bootstrap import Values, draw_weights, ratio_change
from tailcut.observe.comparison.records import FigureChange, Verdict
from tailcut.observe.comparison.spans import (
    BATCH_ROWS,
    BATCHES,
    FEATURE_LOOKUPS,
    PREDICTION_LOOKUPS,
    REQUESTS,
    ModelSpan,
    Span,
)
from tailcut.observe.comparison.stages import FEWEST_BUCKETS, Terms
from tailcut.observe.outcomes import SHED_CODES

_SHARE_CHANGE = 0.01
"""The least difference of shares that counts."""

_MIX_CHANGE = 0.1
"""Share of requests that would have to be of another kind for both spans to have the same mix."""

_FULL_SHARE = 0.9
_ERRORS_CHANGE = 0.001
_RATE_CHANGE = 1.5
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


def compare_figures(before: Span, after: Span, model: str, terms: Terms) -> tuple[FigureChange, ...]:
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
    spans: tuple[ModelSpan, ModelSpan], minutes: tuple[Values, Values], buckets: int, terms: Terms
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


def notes_on(before: Span, after: Span, model: str, figures: tuple[FigureChange, ...]) -> Iterator[str]:
    """Yield what makes two spans of a model hard to compare."""
    spans = before.models.get(model, ModelSpan()), after.models.get(model, ModelSpan())
    for which, span, asked in (("earlier", before, spans[0]), ("recent", after, spans[1])):
        there, minutes = int(span.minutes.sum()), span.length_s // 60
        if there < _FULL_SHARE * minutes:
            yield f"the {which} span has rows of {there} of its {minutes} minutes; no server ran in the others"
        if there and not _mix(asked, "route"):
            yield f"no requests came in the {which} span"
    if spans[0].versions and spans[1].versions and spans[0].versions != spans[1].versions:
        old, new = (", ".join(sorted(span.versions)) for span in spans)
        yield f"another variant or version was served: {old} before, {new} now"
    for label in ("route", "variant"):
        yield from _other_mix(spans, label)
    rate = next((each.change for each in figures if each.name == "request rate"), None)
    if rate is not None and not 1 / _RATE_CHANGE < 1 + rate.change < _RATE_CHANGE:
        times = 1 + rate.change
        shown = f"{times:,.0f}" if times >= 10 else f"{times:.2g}"
        yield f"{shown} times as many requests per second: queueing and batches follow the rate"


def _other_mix(spans: tuple[ModelSpan, ModelSpan], label: str) -> Iterator[str]:
    shares = [_mix(span, label) for span in spans]
    if not all(shares):
        return
    values = sorted({value for each in shares for value in each})
    moved = sum(abs(shares[1].get(value, 0.0) - shares[0].get(value, 0.0)) for value in values) / 2
    if moved >= _MIX_CHANGE:
        said = ", ".join(
            f"{value} {shares[0].get(value, 0.0):.0%} -> {shares[1].get(value, 0.0):.0%}" for value in values
        )
        yield f"another mix of requests by {label}: {said}"


def _mix(span: ModelSpan, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, values in span.counts.get(REQUESTS, ()):
        value = labels.get(label, "")
        found[value] = found.get(value, 0.0) + float(values.sum())
    total = sum(found.values())
    return {value: count / total for value, count in found.items()} if total else {}


def _any(labels: Labels) -> bool:
    return True


def _with(label: str, value: str, **others: str) -> Callable[[Labels], bool]:
    wanted = {label: value, **others}.items()
    return lambda labels: wanted <= labels.items()
