"""The ladder for terminals and as Markdown."""

from __future__ import annotations

from tailcut.report.ladder.cells import blocks, key_lines, summary
from tailcut.report.ladder.figures import RungFigures, first_line, ladder_figures, rate_title, stage_order
from tailcut.report.ladder.file import LadderRecord


def render_terminal(ladder: LadderRecord) -> str:
    """Lay the ladder out for a terminal: a block per rate, then capacity, cost and quality."""
    parts = ["\n".join([f"Ladder of {ladder.deployment}", *key_lines(ladder)])]
    parts += [f"{title}\n{_aligned(table)}" for title, table in blocks(ladder)]
    return "\n\n".join(parts)


def render_markdown(ladder: LadderRecord) -> str:
    """Lay the ladder out as Markdown: summary, all figures, stages, rungs, machine."""
    figures = ladder_figures(ladder)
    parts = [f"# Ladder: {ladder.deployment}", _markdown_table(summary(ladder))]
    parts.append("\n".join(f"- {line}" for line in key_lines(ladder)))
    parts.append("![The ladder](ladder.png)")
    parts += [f"## {title}\n\n{_markdown_table(table)}" for title, table in blocks(ladder)]
    parts += [text for name in ladder.rate_names if (text := _stages(ladder, figures, name))]
    parts.append("## Rungs\n\n" + "\n".join(_settings(row) for row in figures))
    parts.append("## Capacity\n\n" + "\n".join(line for row in figures for line in _capacity(row)))
    facts = {**ladder.machine, **ladder.versions, **ladder.settings}
    parts.append(
        f"## Made by\n\n`{ladder.command}`, {ladder.created}, commit {ladder.commit}\n\n"
        + "\n".join(f"- {name}: {value}" for name, value in facts.items())
    )
    return "\n\n".join(parts) + "\n"


def _stages(ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> str:
    timed = [row for row in figures if name in row.rates and row.rates[name].stages_ms]
    if not timed:
        return ""
    stages = stage_order({stage for row in timed for stage in row.rates[name].stages_ms})
    table = [["rung", *stages, "total", "cache"]]
    for row in timed:
        at = row.rates[name]
        cache = ", ".join(f"{outcome} {count}" for outcome, count in at.cache.items()) or "-"
        table.append([row.record.name, *(f"{at.stages_ms.get(one, 0.0):.3f}" for one in [*stages, "total"]), cache])
    title = f"## Where the server's time goes at {rate_title(ladder, name)} (mean ms per request)"
    return f"{title}\n\n{_markdown_table(table)}"


def _settings(row: RungFigures) -> str:
    added = ", ".join(f"`{text}`" for text in row.record.added) or "nothing added"
    command = f"\n  `{' '.join(row.record.command)}`" if row.record.command else ""
    return f"- **{row.record.name}**: {row.status + '; ' if row.status else ''}{added}{command}"


def _capacity(row: RungFigures) -> list[str]:
    found = row.record.capacity
    if found is None:
        why = row.record.capacity_failed
        return [f"- **{row.record.name}**: the search failed: {first_line(why)}"] if why else []
    if row.unfound:
        return [f"- **{row.record.name}**: no rate within {found.objectives} was found in time"]
    state = "passed twice" if found.confirmed else "not confirmed"
    limit = f"; limited by {found.limit}" if found.limit else ""
    return [f"- **{row.record.name}**: {found.rate:.4g} req/s within {found.objectives} ({state}){limit}"]


def _markdown_table(table: list[list[str]]) -> str:
    width = len(table[0])
    lines = [_markdown_row(table[0], width), "|" + "---|" * width]
    return "\n".join([*lines, *(_markdown_row(row, width) for row in table[1:])])


def _markdown_row(row: list[str], width: int) -> str:
    cells = [" ".join(cell.replace("|", "\\|").splitlines()) for cell in row]
    return "| " + " | ".join(cells + [""] * (width - len(cells))) + " |"


def _aligned(table: list[list[str]]) -> str:
    table = [[" ".join(cell.splitlines()) for cell in row] for row in table]
    # A row that is shorter than the header says why in one long cell: it must not widen a column.
    full = len(table[0])
    widths = [max(len(row[column]) for row in table if len(row) == full) for column in range(full)]
    widths[0] = max(len(row[0]) for row in table)
    lines = []
    for row in table:
        padded = [
            cell.ljust(widths[column]) if column == 0 or len(row) < full else cell.rjust(widths[column])
            for column, cell in enumerate(row)
        ]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)
