"""A comparison as tables and lines of short texts: the terminal and the page show the same ones."""

from __future__ import annotations

from typing import Any

import msgspec

from tailcut.report.parity.file import ColumnParity, InputsParity, ParityRecord, VariantParity

_LONGEST = 60
Table = list[list[str]]
"""First row: the header."""


def verdict(record: ParityRecord) -> str:
    """Say in a line whether the deployment gives the pilot's answers."""
    if record.equal:
        left = ", ".join(record.unmatched_outputs)
        rest = f"; not compared, as the pilot has no field of the name (pair them with --map): {left}" if left else ""
        return f"equal: every judged variant gives the pilot's answers{rest}"
    wrong = [one.variant for one in record.variants if not one.equal]
    return f"differs: {', '.join(wrong)}"


def facts(record: ParityRecord) -> list[tuple[str, str]]:
    """List what was compared with what, and how."""
    first = next((one for one in record.variants if one.fields), None)
    matched = [f"{one.pilot} = {one.output} ({one.matched})" for one in first.fields] if first is not None else []
    found = [
        ("pilot", record.pilot),
        ("payloads", record.payloads),
        ("deployment's request", record.form),
        ("caches", record.caches),
        ("matched", "; ".join(matched)),
    ]
    if record.unmatched_outputs:
        found.append(("not compared", f"outputs {', '.join(record.unmatched_outputs)}"))
    if record.unmatched_pilot:
        found.append(("only the pilot has", ", ".join(record.unmatched_pilot)))
    return found


def headline(variant: VariantParity) -> str:
    """Sum a variant up."""
    if variant.failed:
        return f"not compared: {variant.failed}"
    parts = [f"{variant.differing_requests} of {variant.both_answered} requests differ"]
    if variant.status_differences:
        parts.append(f"{variant.status_differences} answered by one side only")
    if variant.uncompared:
        parts.append(f"{variant.uncompared} not compared: neither answer has a compared field")
    if variant.both_refused:
        parts.append(f"{variant.both_refused} refused by both")
    if not variant.judged:
        parts.append("not judged by values: it is a smaller variant within the quality budget")
    return "; ".join(parts)


def fields_table(variant: VariantParity) -> Table:
    """One row per output."""
    table = [["output", "rows", "differ", "requests", "max", "mean", "tolerance", "pilot's value (x: deployment's)"]]
    for one in variant.fields:
        share = one.differing_requests / variant.both_answered if variant.both_answered else 0.0
        table.append(
            [
                one.output,
                str(one.rows),
                str(one.differing_rows),
                f"{one.differing_requests} ({share:.1%})",
                number(one.max_difference),
                number(one.mean_difference),
                one.tolerance,
                one.relation,
            ]
        )
    return table


def columns_table(variant: VariantParity) -> Table:
    """One row per column of the model's inputs that differs."""
    header = [
        "input",
        "filled by",
        "rows",
        "differ",
        "max",
        "pilot's value (x: deployment's)",
        "first: pilot, deployment",
    ]
    return [header, *(_column(one) for one in (variant.inputs.differing if variant.inputs is not None else ()))]


def differences_table(variant: VariantParity) -> Table:
    """The first values that differ."""
    table = [["request", "row", "output", "pilot", "deployment", "difference", "body"]]
    for one in variant.differences:
        cells = [str(one.request), str(one.row), one.output, shown(one.pilot), shown(one.deployment)]
        table.append([*cells, number(one.difference), shown(one.body)])
    return table


def statuses_table(variant: VariantParity) -> Table:
    """The first requests that one side only answered."""
    table = [["request", "pilot", "deployment", "body"]]
    for one in variant.statuses:
        theirs = f"{one.pilot_status or 'no reply'} {_cut(one.pilot_text)}"
        ours = f"{one.deployment_status or 'no reply'} {_cut(one.deployment_text)}"
        table.append([str(one.request), theirs, ours, shown(one.body)])
    return table


def reasons(variant: VariantParity) -> list[str]:
    """Say which inputs differ and how, which could not be compared, and what differing rows have in common."""
    found = []
    differing = variant.inputs.differing if variant.inputs is not None else ()
    if len(differing) > 1 and (shared := set.intersection(*(set(one.features) for one in differing))):
        found.append(f"every input that differs is filled by {', '.join(sorted(shared))}")
    for one in differing:
        filled = f", filled by {', '.join(one.features)}," if one.features else ""
        what = f": the pilot has {one.change} (x: the deployment's value)" if one.change else ""
        found.append(f"input {one.column}{filled} differs in {one.differing_rows} of {one.rows} rows{what}")
    if variant.inputs is not None:
        found += _inputs(variant.inputs, variant.differing_requests)
    found += [f"in common: {one}" for one in variant.common]
    return [*found, *variant.notes]


def _inputs(inputs: InputsParity, differing_requests: int) -> list[str]:
    """Say which inputs are equal, and which could not be compared."""
    if not inputs.rows and not inputs.problem:
        return []
    if not inputs.rows:
        return [f"inputs were not compared: {inputs.problem}"]
    found = []
    if not inputs.differing:
        end = "; the differences come from the model or from later steps"
        found.append(
            f"the model's inputs are equal: {inputs.columns} columns of {inputs.rows} rows, {inputs.model}"
            f"{end if differing_requests and inputs.equal else ''}"
        )
    if inputs.left_out:
        found.append(
            f"the inputs of {inputs.left_out} requests ({inputs.left_out_differing} of them differ) were not compared:"
            f" {inputs.problem}"
        )
    return found


def number(value: float | None) -> str:
    """Format a difference."""
    return "-" if value is None else f"{value:.3g}"


def shown(value: Any) -> str:
    """Format a value of a reply or a request, cut where it is long."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return _cut(value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode())


def _column(one: ColumnParity) -> list[str]:
    filled, change = ", ".join(one.features) or "-", one.change or "-"
    return [one.column, filled, str(one.rows), str(one.differing_rows), number(one.max_difference), change, _first(one)]


def _first(one: ColumnParity) -> str:
    return "; ".join(f"{shown(theirs)}, {shown(ours)}" for _, theirs, ours in one.first)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
