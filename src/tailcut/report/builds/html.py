"""A build as one self-contained page: inline style, inline SVG, no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tailcut.registry import Promotion, Version
from tailcut.report.builds import figures
from tailcut.report.builds import plot as build_plot
from tailcut.report.builds.figures import figure
from tailcut.report.style import CSS

_MARKS = """
svg .point{fill:#1f618d;stroke:#1f618d} svg .best{fill:#2e8b57;stroke:#2e8b57} svg .out{fill:#8a949e;stroke:#8a949e}
svg path.spread{stroke-width:1.5;fill:none;opacity:.75} svg .leader{stroke:var(--soft);stroke-width:.8}
svg .label{text-anchor:middle;paint-order:stroke;stroke:var(--card);stroke-width:3px} svg .tick.name{text-anchor:end}
th,td{text-align:left;white-space:normal;vertical-align:top} td span{display:inline-block;white-space:nowrap}
td.prose span{display:inline;white-space:normal;overflow-wrap:anywhere}
@media (max-width:1000px){main{padding:16px 12px 32px} section{padding:14px 14px} th,td{padding:6px 5px;font-size:12px}
td span{white-space:normal}}
"""

_LONG = 24
"""Characters from which a part of a cell may wrap; shorter ones, such as an interval, stay on one line."""

_PARTS = re.compile(r"(?<=,) | (?=\()| (?=<=)| (?=of \d)")
"""Where a cell wraps first: after a comma, before an interval, a limit or a budget."""


def render(version: Version, promotion: Promotion | None) -> str:
    """Lay the build out as a page: figures against quality, the variants, their slices, and what it rests on."""
    title = f"Build of {version.model}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">Version {escape(version.id)}, built {escape(version.created[:19])} UTC.'
        f"{escape(_chosen(version))}</p>",
        _pareto(version, promotion),
        _variants(version, promotion),
        _slices(version),
        _facts(version),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{CSS}{_MARKS}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _chosen(version: Version) -> str:
    why = version.evidence.get("choice", {}).get("why", "")
    return f" Chosen: {why}." if why else ""


def _pareto(version: Version, promotion: Promotion | None) -> str:
    plot = build_plot.pareto(version, promotion)
    text = "To the left is faster, down is closer to the source model. Bars: 95 % interval of the latency, lower and"
    return _section("Speed against quality", f"{text} upper limit of the drop. Green is promoted, grey refused.", plot)


def _variants(version: Version, promotion: Promotion | None) -> str:
    rows = figures.rows(version, promotion)
    priced = any(row.money != figures.NONE for row in rows)
    latency = f"{figures.percentile(version)} under load"
    cost = ["cost per 1M"] if priced else []
    head = ["variant", "verdict", "quality", "drop, upper limit", latency, "ratio", "CPU per 1M", *cost, "size"]
    cells = [
        [
            row.name,
            row.verdict,
            ", ".join(f"{metric} {value}" for metric, value in row.metrics.items()) or figures.NONE,
            row.drop,
            row.latency,
            row.ratio,
            row.cpu,
            *([row.money] if priced else []),
            row.size,
        ]
        for row in rows
    ]
    made = [f"{name} refused: {one.refused}" for name, one in version.variants.items() if one.sha256 and one.refused]
    told = (*made, *figures.rows_alone(version), *figures.logged(version), *figures.not_made(version))
    notes = "".join(f"<li>{escape(line)}</li>" for line in told)
    return _section("Variants", "", f"{_table(head, cells)}<ul>{notes}</ul>")


def _slices(version: Version) -> str:
    """Every slice of every variant, the largest drop over its limit first."""
    found = [
        (name, part)
        for name, each in version.variants.items()
        for part in (each.evidence.get("quality") or {}).get("slices", [])
    ]
    if not found:
        return _section("Slices", "", "<p>No slice was named in the manifest.</p>")
    found.sort(key=lambda pair: _harm(pair[1]), reverse=True)
    head = ["variant", "slice", "metric", "rows", "drop", "upper limit", "may drop", "outcome"]
    cells = [
        [
            name,
            f"{part['slice']} = {part['value']}",
            part["metric"],
            str(part["rows"]),
            figure(part["drop"]),
            figure(part["upper"]),
            figure(part["limit"]),
            f"{part['outcome']} {part['note']}".strip(),
        ]
        for name, part in found
    ]
    return _section("Slices, worst first", "", _table(head, cells))


def _harm(part: Mapping[str, Any]) -> float:
    drop, limit = part["drop"], part["limit"]
    return float("-inf") if drop is None or not limit else float(drop / limit)


def _facts(version: Version) -> str:
    evidence = version.evidence
    cpu, holdout = (evidence.get(name, {}) for name in ("cpu", "holdout"))
    facts = {
        "processor": f"{cpu.get('model', '?')}, {cpu.get('cores', '?')} cores ({', '.join(cpu.get('flags', []))})",
        "load": figures.load(version),
        "holdout": f"{holdout.get('rows', '?')} rows",
        **{f"{name} split": _split(holdout[name]) for name in ("selection", "confirmation") if name in holdout},
        **{name: str(number) for name, number in evidence.get("versions", {}).items()},
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return _section("Measured on", "", f"<dl>{items}</dl>")


def _split(part: Mapping[str, Any]) -> str:
    return f"{part.get('rows', '?')} rows, SHA-256 {str(part.get('sha256', '?'))[:12]}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    names = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rows = "".join(f"<tr>{''.join(map(_cell, cells))}</tr>" for cells in lines)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    parts = _PARTS.split(text)
    style = ' class="prose"' if max(map(len, parts)) > _LONG else ""
    return f"<td{style}>{' '.join(f'<span>{escape(part)}</span>' for part in parts)}</td>"


def _section(title: str, text: str, inner: str) -> str:
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{inner}</section>" if inner else ""
