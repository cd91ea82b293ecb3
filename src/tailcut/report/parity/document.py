"""A comparison with the pilot as a document."""

from __future__ import annotations

from typing import Any

import msgspec

from tailcut.report.document import Document, DocumentSection, Table, shortened
from tailcut.report.parity.file import InputsParity, ParityRecord, VariantParity

_LONGEST = 60


def parity_document(record: ParityRecord) -> Document:
    """Lay a comparison out: what was compared, each variant, and the verdict at the end."""
    return Document(
        title=f"Parity of {record.deployment}",
        lead=f"{record.created}, {record.command}",
        sections=(
            DocumentSection(title="What was compared", lines=tuple(_facts(record))),
            *map(_variant, record.variants),
            DocumentSection(title="Verdict", lines=(verdict(record),)),
        ),
    )


def verdict(record: ParityRecord) -> str:
    """Say in a line whether the deployment gives the pilot's answers."""
    if record.equal:
        given = any(field.matched == "given" for one in record.variants for field in one.fields)
        why = "left out by --map" if given else "not compared, as the pilot has no other field"
        rest = f"; {why}: {', '.join(record.unmatched_outputs)}" if record.unmatched_outputs else ""
        return f"equal: every judged variant gives the pilot's answers{rest}"
    return f"differs: {', '.join(one.variant for one in record.variants if not one.equal)}"


def reasons(variant: VariantParity) -> list[str]:
    """Say which inputs differ and how, and which could not be compared."""
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
    return [*found, *variant.notes]


def _inputs(inputs: InputsParity, differing_requests: int) -> list[str]:
    """Say which inputs are equal, and which could not be compared."""
    if not inputs.rows:
        return [f"inputs were not compared: {inputs.problem}"] if inputs.problem else []
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


def _facts(record: ParityRecord) -> list[str]:
    """List what was compared with what, and how."""
    first = next((one for one in record.variants if one.fields), None)
    matched = [f"{one.pilot} = {one.output} ({one.matched})" for one in first.fields] if first is not None else []
    found = {
        "pilot": record.pilot,
        "payloads": record.payloads,
        "deployment's request": record.form,
        "caches": record.caches,
        "matched": "; ".join(matched),
        "outputs not compared": ", ".join(record.unmatched_outputs),
        "only the pilot has": ", ".join(record.unmatched_pilot),
    }
    return [f"{name}: {text}" for name, text in found.items() if text]


def _variant(variant: VariantParity) -> DocumentSection:
    tables = (_fields(variant), _columns(variant), _differences(variant), _statuses(variant))
    version = f" of version {variant.version}" if variant.version else ""
    return DocumentSection(
        title=f"{variant.variant}{version}", text=_headline(variant), tables=tables, lines=tuple(reasons(variant))
    )


def _headline(variant: VariantParity) -> str:
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


def _fields(variant: VariantParity) -> Table:
    """One row per output."""
    return Table(
        head=("output", "rows", "differ", "requests", "max", "mean", "tolerance", "pilot's value (x: deployment's)"),
        rows=tuple(
            (
                one.output,
                str(one.rows),
                str(one.differing_rows),
                f"{one.differing_requests} ({one.differing_requests / (variant.both_answered or 1):.1%})",
                _number(one.max_difference),
                _number(one.mean_difference),
                one.tolerance,
                one.relation,
            )
            for one in variant.fields
        ),
        left=(0, 7),
    )


def _columns(variant: VariantParity) -> Table:
    """One row per column of the model's inputs that differs."""
    return Table(
        title="Inputs of the model that differ",
        head=(
            "input",
            "filled by",
            "rows",
            "differ",
            "max",
            "pilot's value (x: deployment's)",
            "first: pilot, deployment",
        ),
        rows=tuple(
            (
                one.column,
                ", ".join(one.features) or "-",
                str(one.rows),
                str(one.differing_rows),
                _number(one.max_difference),
                one.change or "-",
                "; ".join(f"{_shown(theirs)}, {_shown(ours)}" for _, theirs, ours in one.first),
            )
            for one in (variant.inputs.differing if variant.inputs is not None else ())
        ),
        left=(0, 1, 5, 6),
    )


def _differences(variant: VariantParity) -> Table:
    return Table(
        title="First values that differ",
        head=("request", "row", "output", "pilot", "deployment", "difference", "body"),
        rows=tuple(
            (
                str(one.request),
                str(one.row),
                one.output,
                _shown(one.pilot),
                _shown(one.deployment),
                _number(one.difference),
                _shown(one.body),
            )
            for one in variant.differences
        ),
        left=(2, 3, 4, 6),
    )


def _statuses(variant: VariantParity) -> Table:
    return Table(
        title="First requests that one side only answered",
        head=("request", "pilot", "deployment", "body"),
        rows=tuple(
            (
                str(one.request),
                f"{one.pilot_status or 'no reply'} {shortened(one.pilot_text, _LONGEST)}",
                f"{one.deployment_status or 'no reply'} {shortened(one.deployment_text, _LONGEST)}",
                _shown(one.body),
            )
            for one in variant.statuses
        ),
        left=(1, 2, 3),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _shown(value: Any) -> str:
    """Format a value of a reply or a request, cut where it is long."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return shortened(value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode(), _LONGEST)
