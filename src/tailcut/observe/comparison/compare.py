"""Compares a span of the history with the same span earlier."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.observe.comparison.figures import compare_figures, notes_on
from tailcut.observe.comparison.records import Comparison, ModelComparison, VariantComparison
from tailcut.observe.comparison.spans import ModelSpan, Span, read_span
from tailcut.observe.comparison.stages import Terms, compare_variant
from tailcut.observe.history.history import History
from tailcut.observe.history.rows import MINUTE_S

_MOST_BUCKETS = 288
"""In a span: five minutes each where it is a day."""


def compare(
    history: History, since_s: float, until_s: float, against_s: float, *, model: str | None = None, terms: Terms
) -> Comparison:
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
    return Comparison(
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


def _model(before: Span, after: Span, name: str, terms: Terms) -> ModelComparison:
    figures = compare_figures(before, after, name, terms)
    spans = before.models.get(name, ModelSpan()), after.models.get(name, ModelSpan())
    return ModelComparison(
        model=name,
        variants=tuple(_variants(*spans, terms)),
        figures=figures,
        notes=tuple(notes_on(before, after, name, figures)),
    )


def _variants(before: ModelSpan, after: ModelSpan, terms: Terms) -> Iterator[VariantComparison]:
    """Yield each variant that both spans have; all together where one of them has others."""
    for variant in sorted(before.stages.keys() & after.stages.keys()):
        yield compare_variant(variant, before.stages[variant], after.stages[variant], terms)
    if before.stages.keys() != after.stages.keys():
        yield compare_variant("", before.together(), after.together(), terms)
