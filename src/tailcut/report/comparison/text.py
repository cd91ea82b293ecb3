"""A comparison of two spans of the history as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tailcut.common.units import format_duration
from tailcut.observe.comparison.records import (
    Change,
    Comparison,
    FigureChange,
    ModelComparison,
    StageChange,
    VariantComparison,
)

_MET_CHANGE = 0.02
_PLAIN = {"small", "noise"}
_MANY_TIMES = 10
"""As much as before, from which a factor reads better than a percentage."""


def render_comparison(comparison: Comparison) -> str:
    """Lay a comparison out for a terminal, readable without colour."""
    head = [
        f"{_time(comparison.since_s)} to {_time(comparison.until_s)} UTC against {_ago(comparison.against_s)} earlier",
        f"history {comparison.history}; 99.5 % intervals from blocks of {_ago(comparison.bucket_s)} buckets; "
        f"changes under {comparison.min_change:.0%} do not count",
    ]
    parts = ["\n".join(head), *("\n".join(_model(model)) for model in comparison.models)]
    return "\n\n".join([*parts, _verdict(comparison)])


def _model(model: ModelComparison) -> Iterator[str]:
    for note in model.notes:
        yield f"{model.model}: note: {note}"
    for variant in model.variants:
        yield from _variant(model.model, variant)
    changed = [each for each in model.figures if each.verdict not in _PLAIN]
    if changed:
        yield ""
        yield _aligned([["figure", "before", "now", "change", ""], *(_figure_row(each) for each in changed)])
    rest = [each.name for each in model.figures if each.verdict in _PLAIN]
    if rest:
        yield f"within noise, or too small to count: {', '.join(rest)}"
    if not model.variants:
        yield f"{model.model}: no variant answered in both spans"


def _variant(model: str, variant: VariantComparison) -> Iterator[str]:
    name = f"variant {variant.variant}" if variant.variant else "all variants together"
    counts = f"{variant.requests_after} answered requests, {variant.requests_before} earlier"
    yield f"{model}, {name}: {counts}"
    if variant.too_little:
        yield f"  not compared: {variant.too_little}"
        return
    whole, *rest = variant.stages
    shown = [whole, *(each for each in rest if each.verdict not in _PLAIN)]
    head = ["stage", "mean ms", "change", "p95 ms", "change", "of the growth", ""]
    yield _aligned([head, *(_stage_row(each) for each in shown)])
    for each in shown[1:]:
        if abs(each.met_after - each.met_before) >= _MET_CHANGE:
            yield f"{each.stage}: met by {each.met_after:.0%} of the requests, {each.met_before:.0%} earlier"
    small = [each.stage for each in rest if each.verdict == "small"]
    noise = [each.stage for each in rest if each.verdict == "noise"]
    if small:
        yield f"changed too little to count: {', '.join(small)}"
    if noise:
        yield f"within noise: {', '.join(noise)}"


def _stage_row(stage: StageChange) -> list[str]:
    tail = stage.p95
    return [
        stage.stage,
        f"{stage.mean.before:.3f} -> {stage.mean.after:.3f}",
        _relative(stage.mean) if stage.verdict not in {"new", "gone"} else f"{stage.growth_ms:+z.3f} ms",
        "-" if tail is None else f"{tail.before:.3f} -> {tail.after:.3f}",
        "-" if tail is None else _relative(tail),
        "" if stage.growth_share is None else f"{stage.growth_share:z,.0%}",
        _word(stage.verdict),
    ]


def _figure_row(figure: FigureChange) -> list[str]:
    change = figure.change
    if figure.unit == "share":
        moved = f"{change.change * 100:+z.2f} ({change.low * 100:+z.2f} to {change.high * 100:+z.2f}) points"
        return [figure.name, f"{change.before:.2%}", f"{change.after:.2%}", moved, _word(figure.verdict)]
    unit = "/s" if figure.unit == "1/s" else ""
    return [
        figure.name,
        f"{_figure(change.before)}{unit}",
        f"{_figure(change.after)}{unit}",
        _relative(change),
        _word(figure.verdict),
    ]


def _verdict(comparison: Comparison) -> str:
    if not comparison.said:
        return "nothing could be compared"
    grew = [
        f"{stage.stage} of {model} ({variant or 'all variants'}) grew {_growth(stage)}"
        for model, variant, stage in comparison.grew
    ]
    return "\n".join(grew) if grew else "no stage grew beyond noise"


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


def _relative(change: Change) -> str:
    if change.change >= _MANY_TIMES - 1:
        times, low, high = (_factor(1 + each) for each in (change.change, change.low, change.high))
        return f"{times} times as much ({low} to {high})"
    return f"{change.change:+z.1%} ({change.low:+z.1%} to {change.high:+z,.1%})"


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= _MANY_TIMES else f"{value:z.1f}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _time(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


def _ago(seconds: int) -> str:
    return format_duration(seconds)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
