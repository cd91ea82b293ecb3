"""The ladder as a table of short texts: the terminal and the Markdown show the same cells."""

from __future__ import annotations

from tailcut.common.statistics import Spread
from tailcut.report.ladder.figures import (
    PERCENTILES,
    Change,
    RateFigures,
    RungFigures,
    ladder_figures,
    percent,
    plain,
    rate_title,
)
from tailcut.report.ladder.file import COMFORTABLE, Capacity, LadderRecord, RungParity

_MOST_FAILED = 0.02
"""Share of requests that may fail before the CPU time per reply says nothing of the cost of an answer."""

Table = list[list[str]]
"""First row: the header. A row that is shorter than it says in its second cell why it has no figures."""


def summary(ladder: LadderRecord) -> Table:
    """The ladder in one narrow table: p95 per rate, capacity, cost and quality."""
    table = [["rung", *(f"p95 ms at {_rate(ladder, name)}" for name in ladder.rate_names), *_cost_header(ladder)]]
    for row in ladder_figures(ladder):
        if row.status:
            table.append([row.record.name, row.status])
            continue
        p95 = [latency_text(row.rates.get(name), "p95") for name in ladder.rate_names]
        table.append([row.record.name, *p95, *_cost(ladder, row)])
    return table


def blocks(ladder: LadderRecord) -> list[tuple[str, Table]]:
    """All figures as titled tables: one per rate, then capacity, cost and quality."""
    figures = ladder_figures(ladder)
    found = []
    for name in ladder.rate_names:
        table = [["rung", "p50 ms", "p95 ms", "p99 ms", "p95 vs rung before", "CPU s per 1,000"]]
        for row in figures:
            if row.status:
                table.append([row.record.name, row.status])
                continue
            at = row.rates.get(name)
            cells = [latency_text(at, which) for which in PERCENTILES]
            table.append([row.record.name, *cells, change_text(row.change.get(name)), _cpu(at)])
        found.append((f"At {rate_title(ladder, name)}", table))
    table = [["rung", *_cost_header(ladder)]]
    for row in figures:
        cells = [row.status.partition(":")[0]] if row.status else _cost(ladder, row)
        table.append([row.record.name, *cells])
    return [*found, ("Capacity, cost and quality", table)]


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
    return f"{text} {figures.trouble}" if figures.trouble and which == "p95" else text


def capacity_text(row: RungFigures, pilot: RungFigures | None) -> str:
    """Format a capacity, with how many times the pilot's it is where both have one and the pilot's was found."""
    capacity = row.record.capacity
    if capacity is None or row.unfound:
        return no_capacity(row) if capacity is not None or row.record.capacity_failed else "-"
    if capacity.rate == 0:
        return "0 (missed at every rate)"
    text = f"{'' if _is_found(capacity) else '>= '}{plain(capacity.rate)}/s"
    base = pilot.record.capacity if pilot is not None and pilot.capacity else None
    # Of a pilot that bears more than was found nobody knows how many times as much a rung bears.
    is_known = base is not None and _is_found(base) and row is not pilot
    return f"{text} ({capacity.rate / base.rate:.1f}x)" if base is not None and is_known else text


def _is_found(capacity: Capacity) -> bool:
    """Whether the search ended at a rate that the server missed, and not at its own highest one or its time."""
    return capacity.complete and bool(capacity.limit) and not capacity.generator_limited


def no_capacity(row: RungFigures) -> str:
    """Say why a rung has no capacity to draw; empty where it has one."""
    if row.status or row.record.capacity_failed:
        return row.status or "failed in the search"
    if row.capacity is None:
        return "not searched"
    return "none found in time" if row.unfound else ""


def key_lines(ladder: LadderRecord) -> list[str]:
    """What a reader must know to read the table."""
    lines = [
        f"Milliseconds from the intended send time: {_of_rounds(str(ladder.settings.get('rounds', '?')))}.",
        "'~': the rounds of both rungs overlap, the change may be noise. '!': saturated.",
        "Capacity: '>=' where the search ended before a rate was missed; no ratio to a pilot's of that kind.",
        "CPU s: of the server per 1,000 replies; '-' where more than 2 % of the requests failed or were refused.",
        f"SLO: {ladder.slo}.",
    ]
    if ladder.pilot is not None:
        lines.append(f"Comfortable rate: {ladder.pilot.comfortable_rate:.3g} req/s. {ladder.pilot.note}")
    if _compared(ladder):
        lines.append(
            "Parity: answers that differ from the pilot's beyond float32's rounding (`tailcut parity` finds causes), "
            "of one"
            " sample of the traffic; caches as the rung has them."
        )
    lines += [f"{rate_title(ladder, name)}." for name in ladder.rate_names if name != COMFORTABLE and not ladder.pilot]
    return [*lines, *ladder.notes]


def _of_rounds(rounds: str) -> str:
    """What a figure over rounds is; of two middle ones the spread has the slower (see ``statistics.spread``)."""
    middle = {"1": "one round", "2": "the slower of 2 rounds (lowest-highest)"}
    return middle.get(rounds, f"median round (lowest-highest of {rounds} rounds)")


def parity_text(found: RungParity | None) -> str:
    """Format how a rung's answers compare with the pilot's."""
    if found is None:
        return "-"
    if found.failed:
        return "not compared"
    parts = []
    if found.differing:
        most = "" if found.max_difference is None else f", max {found.max_difference:.2g}"
        parts.append(f"{found.differing} of {found.requests}{most}")
    if found.status_differences:
        parts.append(f"{found.status_differences} of {found.requests} by one side only")
    return "; ".join(parts) or f"0 of {found.requests}"


def _compared(ladder: LadderRecord) -> bool:
    return any(rung.parity is not None for rung in ladder.rungs)


def _cost_header(ladder: LadderRecord) -> list[str]:
    cpu = f"CPU s per 1,000 at {_rate(ladder, ladder.rate_names[0])}"
    return ["capacity at SLO", cpu, *quality_names(ladder), *(["parity"] if _compared(ladder) else [])]


def _cost(ladder: LadderRecord, row: RungFigures) -> list[str]:
    pilot = next((one for one in ladder_figures(ladder) if one.record.pilot), None)
    quality = row.record.quality
    return [
        capacity_text(row, pilot),
        _cpu(row.rates.get(ladder.rate_names[0])),
        *(f"{quality[name]:.4f}" if name in quality else "-" for name in quality_names(ladder)),
        *([parity_text(row.record.parity)] if _compared(ladder) else []),
    ]


def _cpu(figures: RateFigures | None) -> str:
    # Per 1,000 replies, and a refusal is a quick one: a rung that refuses much would look cheap.
    refuses = figures is not None and figures.failed_share > _MOST_FAILED
    return milliseconds(figures.cpu_s_per_1000 if figures is not None and not refuses else None)


def _rate(ladder: LadderRecord, name: str) -> str:
    return rate_title(ladder, name).partition(" (")[0].replace(" req", "")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
