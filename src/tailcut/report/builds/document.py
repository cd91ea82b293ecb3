"""A build as a document."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.gate import MetricVerdict, SliceVerdict
from tailcut.registry import Promotion, VariantRecord, Version
from tailcut.report.builds import figures
from tailcut.report.builds.figures import figure
from tailcut.report.document import Chart, Document, DocumentSection, Mark, Row, Table
from tailcut.report.style import BAR, FASTER, UNCLEAR

_COLOURS = {"promoted": FASTER, "made": BAR, "refused": UNCLEAR}


def build_document(version: Version, promotion: Promotion | None) -> Document:
    """Lay a build out: speed beside quality, the variants, their slices, and what it rests on."""
    choice = version.evidence.choice
    notes = (*figures.refusals(version), *figures.rows_alone(version), *figures.logged(version))
    return Document(
        title=f"Build of {version.model}",
        lead=f"Version {version.id}, built {version.created[:19]} UTC.{f' Chosen: {choice.why}.' if choice else ''}",
        sections=(
            _speed(version, promotion),
            DocumentSection(title="Variants", tables=(figures.variants_table(version, promotion),), lines=notes),
            _slices(version),
            DocumentSection(
                title="Measured on", lines=tuple(f"{name}: {value}" for name, value in _facts(version).items())
            ),
        ),
    )


def _speed(version: Version, promotion: Promotion | None) -> DocumentSection:
    """Latency and drop of every variant that was measured under load; empty where none was."""
    metric, budget = _budget(version)
    latencies, drops = [], []
    for name, each in version.variants.items():
        if (speed := each.evidence.speed) is None:
            continue
        promoted = figures.verdict(version, promotion, name).startswith("promoted")
        series = "promoted" if promoted else "refused" if each.refused else "made"
        mid, low, high = speed.latency_ms
        if high >= figures.NO_NUMBER:
            low = high = mid  # the rounds were too few for an interval
        dot = Mark(series=series, low=low, high=high, mid=mid)
        latencies.append(Row(name=name, marks=(dot,), note=f"{mid:.3g} ms ({low:.3g}-{high:.3g})"))
        drops.append(_drop(name, series, next((one for one in _metrics(each) if one.metric == metric), None)))
    limit_ms = figures.limit_ms(version)
    charts = (
        Chart(
            title=f"{figures.percentile(version)} under load",
            unit="ms (log), with its 95 % interval",
            rows=tuple(latencies),
            colours=_COLOURS,
            limit=(f"SLO {limit_ms:g} ms", limit_ms) if limit_ms else None,
            log=True,
        ),
        Chart(
            title=f"Drop of {metric}",
            unit="against the source model, with its lower and upper limit",
            rows=tuple(drops),
            colours=_COLOURS,
            limit=(f"budget {budget:g}", budget),
        ),
    )
    return DocumentSection(title="Speed and quality", charts=charts[: 1 + bool(metric)] if latencies else ())


def _metrics(variant: VariantRecord) -> Sequence[MetricVerdict]:
    return variant.evidence.quality.metrics if variant.evidence.quality is not None else ()


def _drop(name: str, series: str, judged: MetricVerdict | None) -> Row:
    """A drop with its limits; the drop itself stands for a limit that is not known."""
    if judged is None or judged.drop is None:
        return Row(name=name, note="not judged against the source")
    drop = judged.drop
    low, high = (drop if limit is None else limit for limit in (judged.lower, judged.upper))
    note = f"{figure(drop)} ({figure(judged.lower)} to {figure(judged.upper)})"
    return Row(name=name, marks=(Mark(series=series, low=low, high=high, mid=drop),), note=note)


def _budget(version: Version) -> tuple[str, float]:
    """Name the first budgeted metric and its budget; empty and 0 where nothing was judged."""
    for each in version.variants.values():
        for found in _metrics(each):
            return found.metric, found.budget
    return "", 0.0


def _slices(version: Version) -> DocumentSection:
    """Every slice of every variant, the largest drop over its limit first."""
    found = [
        (name, part)
        for name, each in version.variants.items()
        if each.evidence.quality is not None
        for part in each.evidence.quality.slices
    ]
    if not found:
        return DocumentSection(title="Slices", text="No slice was named in the manifest.")
    found.sort(key=lambda pair: _harm(pair[1]), reverse=True)
    rows = tuple(
        (
            name,
            f"{part.slice} = {part.value}",
            part.metric,
            str(part.rows),
            *map(figure, (part.drop, part.upper, part.limit)),
            f"{part.outcome} {part.note}".strip(),
        )
        for name, part in found
    )
    head = ("variant", "slice", "metric", "rows", "drop", "upper limit", "may drop", "outcome")
    return DocumentSection(title="Slices, worst first", tables=(Table(head=head, rows=rows, left=(0, 1, 2, 7)),))


def _harm(part: SliceVerdict) -> float:
    return float("-inf") if part.drop is None or not part.limit else part.drop / part.limit


def _facts(version: Version) -> dict[str, str]:
    machine, holdout = version.evidence.machine, version.evidence.holdout
    facts = {"load": figures.load(version), **version.evidence.versions}
    if machine is None or holdout is None:
        return facts
    parts = {"selection": holdout.selection, "confirmation": holdout.confirmation}
    return {
        "processor": f"{machine.processor}, {machine.cores} cores ({', '.join(machine.flags)})",
        "holdout": f"{holdout.rows} rows",
        **{f"{name} split": f"{part.rows} rows, SHA-256 {part.sha256[:12]}" for name, part in parts.items()},
        **facts,
    }
