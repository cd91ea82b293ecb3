"""A comparison for terminals."""

from __future__ import annotations

from collections.abc import Iterator

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


def render_parity(record: ParityRecord) -> str:
    """Lay a comparison out for a terminal."""
    pairs = facts(record)
    width = max(len(name) for name, _ in pairs) + 2
    parts = ["\n".join([f"Parity of {record.deployment}", *(f"{name:<{width}}{text}" for name, text in pairs)])]
    parts += ["\n\n".join(_variant(one)) for one in record.variants]
    return "\n\n".join([*parts, verdict(record)])


def _variant(variant: VariantParity) -> Iterator[str]:
    version = f" of {variant.version}" if variant.version else ""
    yield f"{variant.variant}{version}: {headline(variant)}"
    if variant.fields:
        yield _aligned(fields_table(variant))
    if found := reasons(variant):
        yield "\n".join(found)
    for title, table in (
        ("inputs of the model that differ", columns_table(variant)),
        ("first values that differ", differences_table(variant)),
        ("first requests that one side only answered", statuses_table(variant)),
    ):
        if len(table) > 1:
            yield f"{title}\n{_aligned(table)}"


def _aligned(table: Table) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines)
