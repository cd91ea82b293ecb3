"""The ladder as a table of short texts: the terminal and the Markdown show the same cells."""

from __future__ import annotations

from tailcut.core.statistics import Spread
from tailcut.report.ladder_figures import Change, RateFigures, RungFigures, ladder_figures, percent, plain, rate_title
from tailcut.report.ladder_file import COMFORTABLE, IDLE_MISS, LadderRecord


def header(ladder: LadderRecord) -> list[str]:
    """Name the columns."""
    cells = ["rung"]
    for name in ladder.rate_names:
        rates = [one.rate for rung in ladder.rungs for one in rung.measurements if one.rate_name == name]
        at = f"{rates[0]:.3g}/s" if rates else name
        cells += [f"p50 at {at}", f"p95 at {at}", f"p99 at {at}", "p95 vs rung before"]
    return [*cells, "capacity at SLO", "CPU s per 1,000", *quality_names(ladder)]


def rows(ladder: LadderRecord) -> list[list[str]]:
    """Fill in a row per rung; a rung that did not run says why in its second cell."""
    pilot = next((row for row in ladder_figures(ladder) if row.record.pilot), None)
    return [_row(ladder, row, pilot) for row in ladder_figures(ladder)]


def quality_names(ladder: LadderRecord) -> list[str]:
    """The metrics shown: those with a budget, else all."""
    seen = {name for rung in ladder.rungs for name in rung.quality}
    return [name for name in sorted(seen) if name in ladder.quality_budget or not ladder.quality_budget]


def milliseconds(value: Spread | None) -> str:
    """Format a spread over rounds: the median round, then lowest and highest."""
    if value is None:
        return "-"
    return f"{_short(value.mid)} ({_short(value.low)}-{_short(value.high)})"


def change_text(change: Change | None) -> str:
    """Format what a rung did to the p95; '~' where the rounds overlap and it may be noise."""
    if change is None:
        return ""
    return f"{percent(change.share)}{'' if change.clear else ' ~'}"


def latency_text(figures: RateFigures | None, which: str) -> str:
    """Format a percentile; '!' and the share of failed requests where the rung was saturated."""
    if figures is None:
        return "-"
    text = milliseconds(figures.latency_ms.get(which))
    return f"{text} ! {figures.failed_share:.0%} failed" if figures.saturated and which == "p95" else text


def capacity_text(row: RungFigures, pilot: RungFigures | None) -> str:
    """Format a capacity, with how many times the pilot's it is where both have one."""
    capacity = row.record.capacity
    if capacity is None:
        return "-"
    if capacity.rate == 0:
        return "0 (misses the SLO when idle)" if capacity.limit.startswith(IDLE_MISS) else "0 (missed at every rate)"
    at_least = "" if capacity.complete and not capacity.generator_limited else ">= "
    text = f"{at_least}{plain(capacity.rate)}/s"
    base = pilot.capacity if pilot is not None else None
    return f"{text} ({capacity.rate / base:.1f}x)" if base and row is not pilot else text


def key_lines(ladder: LadderRecord) -> list[str]:
    """What a reader must know to read the table."""
    lines = [
        "Milliseconds from the intended send time: median round (lowest-highest of"
        f" {ladder.settings.get('rounds', '?')} rounds).",
        "'~': the rounds of both rungs overlap, the change may be noise. '!': saturated.",
        f"SLO: {ladder.slo}.",
    ]
    if ladder.pilot is not None:
        lines.append(f"Comfortable rate: {ladder.pilot.comfortable_rate:.3g} req/s. {ladder.pilot.note}")
    lines += [f"{rate_title(ladder, name)}." for name in ladder.rate_names if name != COMFORTABLE and not ladder.pilot]
    return [*lines, *ladder.notes]


def _row(ladder: LadderRecord, row: RungFigures, pilot: RungFigures | None) -> list[str]:
    cells = [row.record.name]
    if row.status:
        return [*cells, row.status]
    for name in ladder.rate_names:
        figures = row.rates.get(name)
        cells += [latency_text(figures, which) for which in ("p50", "p95", "p99")]
        cells.append(change_text(row.change.get(name)))
    cpu = next((one.cpu_s_per_1000 for one in row.rates.values() if one.cpu_s_per_1000 is not None), None)
    cells += [capacity_text(row, pilot), milliseconds(cpu)]
    return cells + [
        f"{row.record.quality[name]:.4f}" if name in row.record.quality else "-" for name in quality_names(ladder)
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
