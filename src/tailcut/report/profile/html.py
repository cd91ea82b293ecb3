"""A profile as one self-contained page: inline style, inline SVG, no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tailcut.common.slo import LatencyObjective, parse_objectives
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.records import Stage
from tailcut.report.profile.flame import flame_graph
from tailcut.report.profile.json import ProfileReport
from tailcut.report.profile.levers import levers_table, rests_on
from tailcut.report.profile.plot import cut_off, stacked_plot
from tailcut.report.profile.style import CSS, STAGE_COLOURS
from tailcut.report.profile.tables import (
    Table,
    calls_table,
    culprits_table,
    diversity_table,
    layers_table,
    operators_table,
    shown_lines,
    sizes_table,
    stages_table,
    steps_table,
)
from tailcut.report.profile.words import (
    STEPS_TITLE,
    bottleneck,
    felt,
    layers_words,
    ms,
    near_words,
    percent,
    tracing_words,
)

_LONG = 400
"""Longest query that is shown: a page wraps."""


def render_profile_html(report: ProfileReport) -> str:
    """Lay a profile out as a page."""
    title = f"Profile of {report.target}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{report.rate:.4g} requests/s for {report.duration_s:.3g} s. {escape(report.created)}.</p>',
        _tiles(report),
        _verdict(report),
        _levers(report),
        _plot(report),
        _stages(report),
        _flame(report),
        _section("Queries and other calls", "By total time.", _table(calls_table(report.budget, longest=_LONG))),
        _diversity(report),
        *(_layers(model) for model in report.layers),
        _facts(report),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{CSS}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _tiles(report: ProfileReport) -> str:
    budget = report.budget
    wall, line = budget.wall, budget.bottleneck
    tiles = []
    if wall is not None:
        tiles += [(f"{ms(wall.p95)} ms", f"p95, p50 {ms(wall.p50)} and p99 {ms(wall.p99)} ms")]
    if line is not None and budget.near:
        tiles.append((f"{percent(line.near_share)} {line.stage}", "largest part of the p95 request"))
    missed = [finding for finding in budget.findings if not finding.met]
    if budget.findings:
        tiles.append(("SLO missed" if missed else "SLO met", report.slo))
    tiles.append((str(budget.answered), f"requests answered, {budget.failed} failed"))
    shown = (f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>'


def _verdict(report: ProfileReport) -> str:
    budget = report.budget
    found = bottleneck(budget)
    said = f'<p class="bottleneck">{escape(found)}</p>' if found else ""
    findings = "".join(
        f'<li class="{"good" if finding.met else "bad"}">SLO {escape(str(finding))}</li>' for finding in budget.findings
    )
    return _section("The bottleneck", "", f"{said}<ul><li>{escape(felt(budget))}</li>{findings}</ul>")


def _levers(report: ProfileReport) -> str:
    advice = report.advice
    if advice is None:
        return ""
    summary = "".join(f"<li>{escape(line)}</li>" for line in advice.summary)
    rests = "".join(f"<li>{escape(line)}</li>" for line in (*rests_on(advice), *advice.notes))
    basis = f"<details><summary>What these ranges rest on</summary><ul>{rests}</ul></details>" if rests else ""
    doubts = "".join(f'<p class="bad">doubtful: {escape(line)}</p>' for line in advice.doubts)
    table = f"<h3>Each lever</h3>{doubts}{_table(levers_table(advice))}"
    return _section("What to do", "", f"<ul>{summary}</ul>{table}{basis}")


def _plot(report: ProfileReport) -> str:
    limits = []
    if report.slo:
        limits = [(f"SLO {one.name} {one.limit_s * 1e3:g} ms", one.limit_s * 1e3) for one in _latency(report.slo)]
    thresholds = [("100 ms: seems instant", 100.0), ("300 ms: is noticed", 300.0), ("1 s: focus is lost", 1000.0)]
    text = (
        "From the intended send time to the last byte. Each column is one request, or the mean of neighbours;"
        f" point at one for its figures. {cut_off(report.columns, limits)}"
    )
    used = [stage for stage in Stage if any(str(stage) in column.stages_ms for column in report.columns)]
    return _section(
        "Requests, the quickest on the left",
        text,
        _legend(used) + stacked_plot(report.columns, limits=limits, thresholds=thresholds),
    )


def _latency(slo: str) -> Iterable[LatencyObjective]:
    return parse_objectives(slo).latency


def _legend(stages: Iterable[Stage]) -> str:
    items = (f'<span><i style="background:{STAGE_COLOURS[stage]}"></i>{stage}</span>' for stage in stages)
    return f'<div class="legend">{"".join(items)}</div>'


def _stages(report: ProfileReport) -> str:
    budget = report.budget
    if not budget.lines:
        return ""
    most = max(line.near_share for line in budget.lines) or 1.0
    bars = [
        f'<td class="cell"><span class="bg-{line.stage}" style="width:{100 * line.near_share / most:.1f}%"></span></td>'
        for line in shown_lines(budget)
    ]
    table = stages_table(budget)
    head = "".join(_head(name, column in table.left) for column, name in enumerate(table.head))
    rows = []
    for place, row in enumerate(table.rows):
        cells = "".join(_cell(cell, column in table.left) for column, cell in enumerate(row[:-1]))
        whole = place >= len(bars)
        rows.append(f"<tr{' class=whole' if whole else ''}>{cells}{'<td></td>' if whole else bars[place]}</tr>")
    inner = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    named = f"<h3>By name, of the requests near the p95</h3>{_table(culprits_table(budget, longest=_LONG))}"
    if (steps := steps_table(budget, longest=_LONG)).rows:
        named += f"<h3>{STEPS_TITLE}</h3>{_table(steps)}"
    return _section("Where the time goes", f"{near_words(budget)[0].upper()}{near_words(budget)[1:]}.", inner + named)


def _flame(report: ProfileReport) -> str:
    graph = flame_graph(report.spans)
    if not graph:
        return ""
    inner = graph
    if report.stacks is not None:
        text = (
            "Sampled stacks of the threads that worked on requests, all requests together. Exact times are above;"
            " samples say which functions they went to."
        )
        inner += f"<h3>Down to functions</h3><p>{text}</p>{flame_graph(report.stacks)}"
    text = "A request near the p95: width is time, what runs inside something stands below it, largest first."
    return _section("Flame graph", text, inner)


def _diversity(report: ProfileReport) -> str:
    if report.diversity is None:
        return ""
    text = (
        "Share of look-ups that a cache would have answered, by how long its entries live, and how many it must hold."
    )
    sizes = sizes_table(report.diversity)
    by_size = f"<h3>By how many entries it holds</h3>{_table(sizes)}" if sizes.rows else ""
    return _section("How alike the requests are", text, _table(diversity_table(report.diversity)) + by_size)


def _layers(model: ModelLayers) -> str:
    first, *rest = layers_words(model)
    words = "".join(f"<li>{escape(line)}</li>" for line in rest)
    layers, operators = _table(layers_table(model)), _table(operators_table(model))
    return _section(
        f"Slow layers of {model.model}",
        first.partition(": ")[2],
        f"<ul>{words}</ul><h3>Layers</h3>{layers}<h3>Operators</h3>{operators}",
    )


def _facts(report: ProfileReport) -> str:
    pilot = report.pilot
    facts = {
        "command": report.command,
        "tailcut": report.tailcut,
        **report.machine,
        **({"event loop": pilot.loop} if pilot.loop else {}),
        **({"threads for handlers": str(pilot.threads)} if pilot.threads else {}),
        **({"hooked": ", ".join(pilot.hooks)} if pilot.hooks else {}),
        **pilot.versions,
    }
    notes = "".join(f"<li>{escape(note)}</li>" for note in (tracing_words(report.kind), *report.notes))
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return _section("What to know of these figures", "", f"<ul>{notes}</ul><h3>Measured by</h3><dl>{items}</dl>")


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(_head(name, column in table.left) for column, name in enumerate(table.head))
    rows = "".join(
        f"<tr>{''.join(_cell(cell, column in table.left) for column, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


def _head(name: str, words: bool) -> str:
    return f"<th{' class=words' if words else ''}>{escape(name)}</th>"


def _cell(text: str, words: bool) -> str:
    style = "words more" if text.startswith("  ") else "words" if words else ""
    return f'<td class="{style}">{escape(text.strip())}</td>' if style else f"<td>{escape(text)}</td>"


def _section(title: str, text: str, inner: str) -> str:
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{inner}</section>" if inner else ""
