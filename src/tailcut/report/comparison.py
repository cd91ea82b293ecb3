"""A comparison of two spans of the history as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tailcut.common.units import format_duration
from tailcut.observe.comparison import (
    FigureChange,
    HistoryComparison,
    MetricChange,
    ModelComparison,
    StageChange,
    VariantComparison,
)
from tailcut.report.document import Document, DocumentSection, Table

_MET_CHANGE = 0.02
_PLAIN = {"small", "noise"}
_MANY_TIMES = 10
"""As much as before, from which a factor reads better than a percentage."""


def comparison_document(comparison: HistoryComparison) -> Document:
    """Lay a comparison out: each model's variants and figures, and what grew at the end."""
    since, until = (
        datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
        for at_s in (comparison.since_s, comparison.until_s)
    )
    grew = tuple(
        f"{stage.stage} of {model} ({variant or 'all variants'}) grew {_growth(stage)}"
        for model, variant, stage in comparison.grew
    )
    verdict = grew or ("no stage grew beyond noise" if comparison.said else "nothing could be compared",)
    return Document(
        title=f"{since} to {until} UTC against {format_duration(comparison.against_s)} earlier",
        lead=f"history {comparison.history}; 99.5 % intervals from blocks of {format_duration(comparison.bucket_s)}"
        f" buckets; changes under {comparison.min_change:.0%} do not count",
        sections=(
            *(section for model in comparison.models for section in _model(model)),
            DocumentSection(title="Verdict", lines=verdict),
        ),
    )


def _model(model: ModelComparison) -> Iterator[DocumentSection]:
    none = () if model.variants else ("no variant answered in both spans",)
    yield DocumentSection(title=model.model, lines=(*(f"note: {note}" for note in model.notes), *none))
    for variant in model.variants:
        yield _variant(model.model, variant)
    head = ("figure", "before", "now", "change", "")
    rows = tuple(_figure_row(each) for each in model.figures if each.verdict not in _PLAIN)
    rest = _names("within noise, or too small to count", [one.name for one in model.figures if one.verdict in _PLAIN])
    table = Table(head=head, rows=rows, left=tuple(range(5)))
    yield DocumentSection(title=f"Figures of {model.model}", tables=(table,), lines=rest)


def _variant(model: str, variant: VariantComparison) -> DocumentSection:
    name = f"variant {variant.variant}" if variant.variant else "all variants together"
    title = f"{model}, {name}: {variant.requests_after} answered requests, {variant.requests_before} earlier"
    if variant.too_little:
        return DocumentSection(title=title, text=f"not compared: {variant.too_little}")
    whole, *rest = variant.stages
    shown = [each for each in rest if each.verdict not in _PLAIN]
    head = ("stage", "mean ms", "change", "p95 ms", "change", "of the growth", "")
    met = (
        f"{each.stage}: met by {each.met_after:.0%} of the requests, {each.met_before:.0%} earlier"
        for each in shown
        if abs(each.met_after - each.met_before) >= _MET_CHANGE
    )
    small = _names("changed too little to count", [each.stage for each in rest if each.verdict == "small"])
    noise = _names("within noise", [each.stage for each in rest if each.verdict == "noise"])
    table = Table(head=head, rows=tuple(map(_stage_row, [whole, *shown])), left=tuple(range(7)))
    return DocumentSection(title=title, tables=(table,), lines=(*met, *small, *noise))


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    return (f"{what}: {', '.join(names)}",) if names else ()


def _stage_row(stage: StageChange) -> tuple[str, ...]:
    tail = stage.p95
    return (
        stage.stage,
        f"{stage.mean.before:.3f} -> {stage.mean.after:.3f}",
        _relative(stage.mean) if stage.verdict not in {"new", "gone"} else f"{stage.growth_ms:+z.3f} ms",
        "-" if tail is None else f"{tail.before:.3f} -> {tail.after:.3f}",
        "-" if tail is None else _relative(tail),
        "" if stage.growth_share is None else f"{stage.growth_share:z,.0%}",
        _word(stage.verdict),
    )


def _figure_row(figure: FigureChange) -> tuple[str, ...]:
    change = figure.change
    if figure.unit == "share":
        moved = f"{change.change * 100:+z.2f} ({change.low * 100:+z.2f} to {change.high * 100:+z.2f}) points"
        return figure.name, f"{change.before:.2%}", f"{change.after:.2%}", moved, _word(figure.verdict)
    unit = "/s" if figure.unit == "1/s" else ""
    before, after = (f"{each:,.0f}" if abs(each) >= 1000 else f"{each:.4g}" for each in (change.before, change.after))
    return figure.name, f"{before}{unit}", f"{after}{unit}", _relative(change), _word(figure.verdict)


def _growth(stage: StageChange) -> str:
    low, high = stage.growth_low_ms, stage.growth_high_ms
    if stage.verdict == "grew" and stage.p95 is not None and stage.growth_ms <= 0:
        return f"in p95 by {stage.p95.after - stage.p95.before:z.3f} ms, {_relative(stage.p95)}, not in the mean"
    text = f"by {stage.growth_ms:z.3f} ms a request ({low:z.3f} to {high:z.3f})"
    if stage.verdict == "grew":
        text += f", mean {_relative(stage.mean)}"
    if stage.growth_share is not None:
        text += f": {stage.growth_share:z,.0%} of the whole growth"
    return text


def _word(verdict: str) -> str:
    return "within noise" if verdict == "noise" else "too small to count" if verdict == "small" else verdict


def _relative(change: MetricChange) -> str:
    if change.change >= _MANY_TIMES - 1:
        times, low, high = (_factor(1 + each) for each in (change.change, change.low, change.high))
        return f"{times} times as much ({low} to {high})"
    return f"{change.change:+z.1%} ({change.low:+z.1%} to {change.high:+z,.1%})"


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= _MANY_TIMES else f"{value:z.1f}"
