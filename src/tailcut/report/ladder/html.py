"""The ladder as one self-contained page: inline style, inline SVG, no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from tailcut.common.slo import parse_objectives
from tailcut.common.statistics import Spread
from tailcut.errors import LoadTestError
from tailcut.report import svg
from tailcut.report.ladder.cells import Table, blocks, capacity_text, change_text, key_lines, no_capacity
from tailcut.report.ladder.figures import RungFigures, headline, ladder_figures, plain, rate_title, stage_order
from tailcut.report.ladder.file import LadderRecord
from tailcut.report.style import CSS, FASTER, PERCENTILE_COLOURS, SLOWER, STAGE_COLOURS, UNCLEAR


def render_html(ladder: LadderRecord) -> str:
    """Lay the ladder out as a page."""
    figures = ladder_figures(ladder)
    title = f"Ladder of {ladder.deployment}"
    body = [
        f"<h1>{escape(title)}</h1>",
        '<p class="lead">The same traffic against the pilot, then one lever more per rung.'
        f" {escape(ladder.created)}, commit {escape(ladder.commit)}.</p>",
        _tiles(ladder),
        *(_latency(ladder, figures, name) for name in ladder.rate_names),
        *(_changes(ladder, figures, name) for name in ladder.rate_names),
        _capacity(ladder, figures),
        *(_stages(ladder, figures, name) for name in ladder.rate_names),
        _table(ladder),
        _rungs(figures),
        _facts(ladder),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{CSS}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def p95_limit_ms(ladder: LadderRecord) -> float | None:
    """Find the p95 objective in the SLO, in milliseconds."""
    try:
        objectives = parse_objectives(ladder.slo)
    except LoadTestError:
        return None
    return next((one.limit_s * 1e3 for one in objectives.latency if one.name == "p95"), None)


def _tiles(ladder: LadderRecord) -> str:
    tiles = (
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in headline(ladder)
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _latency(ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> str:
    lines: list[tuple[str, Mapping[str, Spread], str]] = []
    for row in figures:
        at = row.rates.get(name)
        if at is None or not at.latency_ms:
            lines.append((row.record.name, {}, row.status or "no answers"))
        else:
            lines.append((row.record.name, at.latency_ms, at.trouble))
    limit = p95_limit_ms(ladder)
    chart = svg.ranges(lines, unit="ms (log)", limit=limit, limit_name=f"SLO: p95 {limit:g} ms" if limit else "")
    return _section(
        f"Latency at {rate_title(ladder, name)}",
        "From the intended send time. A dot is the median round, the band around it the lowest and highest round."
        " '!' marks a rung that was saturated: requests given up count at their time-out.",
        _legend(PERCENTILE_COLOURS.items()) + chart,
    )


def _changes(ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> str:
    lines: list[tuple[str, svg.Bar | str]] = []
    for row in figures:
        change = row.change.get(name)
        if row.status:
            lines.append((row.record.name, row.status))
        elif change is not None:
            style = "unclear" if not change.clear else "faster" if change.share < 0 else "slower"
            label = f"{change_text(change)}  ({plain(change.before_ms)} to {plain(change.after_ms)} ms)"
            lines.append((row.record.name, svg.Bar(value=change.share * 100, label=label, style=style)))
    legend = _legend([("faster", FASTER), ("slower", SLOWER), ("rounds overlap: may be noise", UNCLEAR)])
    return _section(
        f"What each rung did to the p95 at {rate_title(ladder, name)}",
        "Against the rung before it that ran, median rounds.",
        legend + svg.bars(lines, unit="% of p95"),
    )


def _capacity(ladder: LadderRecord, figures: tuple[RungFigures, ...]) -> str:
    pilot = next((row for row in figures if row.record.pilot), None)
    lines: list[tuple[str, svg.Bar | str]] = []
    for row in figures:
        bar = svg.Bar(value=row.capacity or 0.0, label=capacity_text(row, pilot))
        lines.append((row.record.name, no_capacity(row) or bar))
    own = ""
    if ladder.pilot is not None:
        own = (
            f" The pilot's own capacity, where its queue starts to grow, is {plain(ladder.pilot.saturation_rate)} req/s"
            f" (unloaded p95 {ladder.pilot.unloaded_p95_ms or 0:.1f} ms)."
        )
    return _section("Capacity within the SLO", f"Highest rate with {ladder.slo}.{own}", svg.bars(lines, unit="req/s"))


def _stages(ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> str:
    timed = [(row, row.rates[name]) for row in figures if name in row.rates and row.rates[name].stages_ms]
    stages = stage_order({stage for _, at in timed for stage in at.stages_ms})
    lines = [
        (row.record.name, at.stages_ms, f"{sum(at.stages_ms.get(one, 0.0) for one in stages):.2f} ms")
        for row, at in timed
    ]
    if not stages:
        return ""
    return _section(
        f"Where the server's time goes at {rate_title(ladder, name)}",
        "Share of each stage in the mean request, and that mean, from its Server-Timing; the pilot sends none.",
        _legend(zip(stages, STAGE_COLOURS, strict=False)) + svg.stacks(lines, stages, unit="ms"),
    )


def _table(ladder: LadderRecord) -> str:
    parts = [f"<h3>{escape(title)}</h3>{_html_table(table)}" for title, table in blocks(ladder)]
    notes = "".join(f"<li>{escape(line)}</li>" for line in key_lines(ladder))
    return _section("All figures", "", f"{''.join(parts)}<ul>{notes}</ul>")


def _html_table(table: Table) -> str:
    width = len(table[0])
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table[0])
    lines = []
    for cells in table[1:]:
        if len(cells) < width:
            inner = f'<td>{escape(cells[0])}</td><td class="why" colspan="{width - 1}">{escape(cells[1])}</td>'
        else:
            inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr>{inner}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _rungs(figures: tuple[RungFigures, ...]) -> str:
    items = []
    for row in figures:
        added = " ".join(f"<code>{escape(text)}</code>" for text in row.record.added) or "nothing added"
        command = escape(" ".join(row.record.command))
        run = f"<details><summary>command</summary><code>{command}</code></details>" if command else ""
        why = f" ({escape(row.status)})" if row.status else ""
        items.append(f"<li><b>{escape(row.record.name)}</b>{why}: {added}{run}</li>")
    return _section("Rungs", "What each rung adds to the settings of the one before.", f"<ul>{''.join(items)}</ul>")


def _facts(ladder: LadderRecord) -> str:
    facts = {"command": ladder.command, **ladder.machine, **ladder.settings, **ladder.versions}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return _section("Measured on", "", f"<dl>{items}</dl>")


def _section(title: str, text: str, inner: str) -> str:
    if not inner:
        return ""
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{inner}</section>"


def _legend(pairs: Iterable[tuple[str, str]]) -> str:
    items = (f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in pairs)
    return f'<div class="legend">{"".join(items)}</div>'
