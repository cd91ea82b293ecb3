"""A document as one self-contained page: inline style, inline SVG, no script."""

from __future__ import annotations

from html import escape

from tailcut.report.document import Document, DocumentSection, Table
from tailcut.report.style import CSS

NO_CHARTS = "charts need matplotlib: pip install 'tailcut[report]'"


def html(document: Document) -> str:
    """Lay a document out as a page. Without matplotlib its charts are left out, and a line says so."""
    title = escape(document.title)
    tiles = "".join(
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in document.tiles
    )
    missing = ""
    sections = []
    for section in document.sections:
        try:
            charts = _charts(section)
        except ImportError:
            charts, missing = "", f'<p class="lead">{escape(NO_CHARTS)}</p>'
        sections.append(_section(section, charts))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{CSS}</style></head><body><main>'
        f'<h1>{title}</h1><p class="lead">{escape(document.lead)}</p>{missing}<div class="tiles">{tiles}</div>'
        f"{''.join(sections)}</main></body></html>\n"
    )


def _charts(section: DocumentSection) -> str:
    drawn = [chart for chart in section.charts if isinstance(chart, str)]
    to_draw = [chart for chart in section.charts if not isinstance(chart, str)]
    if to_draw:
        from tailcut.report.charts import svg

        drawn.append(svg(to_draw))
    return "".join(drawn)


def _section(section: DocumentSection, charts: str) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in section.lines)
    inner = f"{charts}{''.join(map(_table, section.tables))}{f'<ul>{lines}</ul>' if lines else ''}"
    return f"<section><h2>{escape(section.title)}</h2>{text}{inner}</section>" if text or inner else ""


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    full = len(table.head)
    kinds = [' class="words"' if at in table.left else "" for at in range(full)]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, table.head, strict=True))
    rows = []
    for row in table.rows:
        spanning = [f' class="words" colspan="{full + 1 - len(row)}"'] if len(row) < full else []
        styles = [*kinds[: len(row) - len(spanning)], *spanning]
        rows.append("".join(f"<td{style}>{_cell(cell)}</td>" for style, cell in zip(styles, row, strict=True)))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'{title}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


def _cell(text: str) -> str:
    """Indent by spaces that the page would drop."""
    inner = text.lstrip(" ")
    return "&emsp;" * ((len(text) - len(inner)) // 2) + escape(inner)
