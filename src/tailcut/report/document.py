"""A result as one document, and the document for terminals and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of texts.

    Args:
        head: names of the columns.
        rows: a cell per column. The last cell of a shorter row says why there is nothing in the columns that it spans.
        left: columns of words, aligned to the left.
        title: of the table within its section.
        note: how to read its figures.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    title: str = ""
    note: str = ""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A bar from ``low`` to ``high``; with ``mid`` a dot there, and a line from ``low`` to ``high``.

    Args:
        series: its colour's name in the chart.
    """

    series: str
    low: float
    high: float
    mid: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart: its name, its marks, and a text beside them; without marks the text takes their place."""

    name: str
    marks: tuple[Mark, ...] = ()
    note: str = ""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Horizontal bars, or dots with intervals, a row each.

    Args:
        colours: of the series, in the legend's order.
        limit: name and value of a line to mark.
        log: whether the axis is logarithmic.
    """

    title: str
    unit: str
    rows: tuple[Row, ...]
    colours: Mapping[str, str]
    limit: tuple[str, float] | None = None
    log: bool = False


class Area(msgspec.Struct, frozen=True, kw_only=True):
    """Stacked steps.

    Args:
        edges: of the steps, one more than there are steps.
        bands: name and colour -> height of each step, the lowest band first.
        limits: name -> height of a line to mark.
        top: of the axis.
        ticks: name -> place on the horizontal axis.
    """

    title: str
    unit: str
    edges: tuple[float, ...]
    bands: Mapping[tuple[str, str], tuple[float, ...]]
    limits: Mapping[str, float]
    top: float
    ticks: Mapping[str, float]


class DocumentSection(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document, in the order of its fields.

    Args:
        text: what it shows.
        charts: drawn beside each other; a text is an SVG. Only the HTML page and the picture have them.
        lines: separate statements.
        details: whether the terminal leaves it out.
    """

    title: str
    text: str = ""
    charts: tuple[Chart | Area | str, ...] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    details: bool = False


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A result.

    Args:
        lead: where it comes from.
        tiles: what to see first: (figure, what it is).
    """

    title: str
    lead: str = ""
    tiles: tuple[tuple[str, str], ...] = ()
    sections: tuple[DocumentSection, ...]


def terminal(document: Document) -> str:
    """Lay a document out for a terminal, readable without colour."""
    head = [document.title, document.lead, *(f"{big}: {small}" for big, small in document.tiles)]
    parts = ["\n".join(filter(None, head))]
    for section in document.sections:
        texts = [section.title, section.text, *map(aligned, section.tables), *section.lines]
        if not section.details and any(texts[1:]):
            parts.append("\n".join(filter(None, texts)))
    return "\n\n".join(filter(None, parts))


def markdown(document: Document, picture: str = "") -> str:
    """Lay a document out as Markdown, with a picture of its charts from another file."""
    head = [document.lead, *(f"**{big}**: {small}" for big, small in document.tiles)]
    parts = [f"# {document.title}", *filter(None, head), *([f"![{document.title}]({picture})"] if picture else [])]
    for section in document.sections:
        lines = "\n".join(f"- {line}" for line in section.lines)
        tables = ["\n".join(_markdown_table(table)) for table in section.tables]
        if texts := [text for text in (section.text, *tables, lines) if text]:
            parts += [f"## {section.title}", *texts]
    return "\n\n".join(parts) + "\n"


def aligned(table: Table) -> str:
    """Lay a table out in columns, a rule below its head; empty without rows."""
    if not table.rows:
        return ""
    rows = [tuple(" ".join(cell.splitlines()) for cell in row) for row in (table.head, *table.rows)]
    full = len(table.head)
    # The last cell of a shorter row spans columns, so it does not widen its own.
    widths = [max(len(row[at]) for row in rows if at < len(row) - (len(row) < full)) for at in range(full)]
    lines = []
    for row in rows:
        cells = [f"{cell:{'<' if at in table.left else '>'}{widths[at]}}" for at, cell in enumerate(row)]
        cells[-1] = cells[-1] if len(row) == full else row[-1]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * full - 2))
    return "\n".join(
        [*([f"\n{table.title}"] if table.title else []), *lines, *([f"({table.note})"] if table.note else [])]
    )


def _markdown_table(table: Table) -> Iterator[str]:
    if not table.rows:
        return
    if table.title:
        yield f"### {table.title}\n"
    for row in (table.head, ("---",) * len(table.head), *table.rows):
        cells = [" ".join(cell.replace("|", "\\|").splitlines()) for cell in row]
        yield "| " + " | ".join([*cells, *[""] * (len(table.head) - len(cells))]) + " |"
    if table.note:
        yield f"\n{table.note}"


def shortened(text: str, longest: int) -> str:
    """Text on one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def first_line(text: str) -> str:
    """The first line with something in it: cells have one line; the whole text is in the file."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
