"""A comparison as one self-contained page: inline style, no script."""

from __future__ import annotations

from html import escape

from tailcut.report import style
from tailcut.report.parity.cells import (
    Table,
    columns_table,
    differences_table,
    facts,
    fields_table,
    headline,
    reasons,
    statuses_table,
    verdict,
)
from tailcut.report.parity.file import ParityRecord, VariantParity

_CSS = f"""{style.CSS}
.verdict {{ font-size:18px; margin:0 0 20px }}
.bad {{ color:{style.SLOWER} }} .good {{ color:{style.FASTER} }}
@media (prefers-color-scheme: dark) {{ .bad {{ color:#f1857a }} .good {{ color:#6fcf97 }} }}
td.words, th.words {{ text-align:left; white-space:normal; overflow-wrap:anywhere; min-width:110px }}
.reasons li {{ font-size:15px; margin:2px 0 }}
"""
_WORDS = frozenset(
    {"output", "input", "filled by", "pilot's value (x: deployment's)", "first: pilot, deployment", "body", "pilot",
     "deployment"}
)  # fmt: skip
"""Columns of text."""


def render_parity_html(record: ParityRecord) -> str:
    """Lay a comparison out as a page."""
    title = f"Parity of {record.deployment}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(record.created)}, <code>{escape(record.command)}</code></p>',
        f'<p class="verdict {"good" if record.equal else "bad"}">{escape(verdict(record))}</p>',
        *(_variant(one) for one in record.variants),
        _section("What was compared", _facts(record)),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_CSS}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _variant(variant: VariantParity) -> str:
    parts = [f'<p class="{"good" if variant.equal else "bad"}">{escape(headline(variant))}</p>']
    if variant.fields:
        parts.append(_table(fields_table(variant)))
    if found := reasons(variant):
        parts.append(f"<h3>Causes</h3>{_list(found)}")
    for title, table in (
        ("Inputs of the model that differ", columns_table(variant)),
        ("First values that differ", differences_table(variant)),
        ("First requests that one side only answered", statuses_table(variant)),
    ):
        if len(table) > 1:
            parts.append(f"<h3>{title}</h3>{_table(table)}")
    version = f" of version {variant.version}" if variant.version else ""
    return _section(f"{variant.variant}{version}", "".join(parts))


def _facts(record: ParityRecord) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(record))
    return f"<dl>{items}</dl>"


def _list(lines: list[str]) -> str:
    return f'<ul class="reasons">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _table(table: Table) -> str:
    kinds = [' class="words"' if name in _WORDS else "" for name in table[0]]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, table[0], strict=True))
    lines = [
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in table[1:]
    ]
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"
