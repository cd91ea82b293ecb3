"""How a version of a model looks on a terminal: one table, for ``build`` and ``registry show``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tailcut.cli.console import stdout
from tailcut.registry import Change, Diff, Promotion, VariantRecord, Version, state_of

if TYPE_CHECKING:
    from rich.table import Table


def table(version: Version, promotion: Promotion | None) -> Table:
    """Make the table: a row per variant with size, metrics, drop, latency and verdict."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    metrics = list(
        dict.fromkeys(name for each in version.variants.values() for name in each.evidence.get("metrics", {}))
    )
    batches = sorted({rows for each in version.variants.values() for rows in _latency_ms(each)})
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    found.add_column("variant")
    for name in ("size", *metrics, "drop", *(f"batch {rows}" for rows in batches)):
        found.add_column(name, justify="left" if name == "drop" else "right", no_wrap=True)
    found.add_column("verdict", no_wrap=True)
    for name, each in version.variants.items():
        values = each.evidence.get("metrics", {})
        latency_ms = _latency_ms(each)
        found.add_row(
            name,
            size(each.size_bytes),
            *(f"{values[metric]:.4f}" if metric in values else "-" for metric in metrics),
            _drop(each.evidence) if name != version.source else "-",
            *(f"{latency_ms[rows]:.3f} ms" if rows in latency_ms else "-" for rows in batches),
            _verdict(version, promotion, name, each),
        )
    return found


def print_table(found: Table) -> None:
    """Print on stdout, as wide as the table is: a narrow terminal wraps lines, but no figure is cut."""
    console = stdout()
    wide = console.options.update(max_width=10_000)
    console.width = max(console.width, console.measure(found, options=wide).maximum)
    console.print(found)


def refusals(version: Version) -> Iterable[str]:
    """One text per refused variant, with the reason."""
    return [f"{name} refused: {each.refused}" for name, each in version.variants.items() if each.refused]


def summary(version: Version) -> Iterable[str]:
    """What the figures rest on."""
    evidence = version.evidence
    cpu, holdout, race = (evidence.get(name, {}) for name in ("cpu", "holdout", "race"))
    constant = version.variants[version.source].evidence.get("constant", {})
    if constant:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in constant.items())
        yield f"a constant answer: {figures}"
    for name, each in version.variants.items():
        if not each.evidence.get("merge", True):
            found = each.evidence["neighbour"]
            yield (
                f"{name}: requests never share its batches, because a neighbour in the batch changes a row's score by "
                f"up to {max(found['max_abs'].values()):.2g} (limit {found['limit']:.2g})"
            )
    if cpu and holdout:
        yield (
            f"on {cpu['model']}, {cpu['cores']} cores ({', '.join(cpu['flags'])}); holdout of {holdout['rows']} rows; "
            f"bare runtime latency, threads {_threads(race.get('threads', '?'))}, medians of {race.get('rounds', '?')} "
            "interleaved rounds"
        )


def differences(diff: Diff) -> Iterable[str]:
    """One line per difference, grouped by what it is about."""
    if diff.same:
        yield f"{diff.old} and {diff.new} have the same artifacts, settings, metrics and manifest"
        return
    yield f"{diff.old} -> {diff.new}"
    yield from (f"  + {name}" for name in diff.added)
    yield from (f"  - {name}" for name in diff.removed)
    groups = {**diff.changed, "version": diff.version, "manifest": diff.manifest}
    for name, changes in groups.items():
        if changes:
            yield f"  {name}"
            yield from (f"    {_change(each)}" for each in changes)


def _change(change: Change) -> str:
    old, new = (_value(change.what, value) for value in (change.old, change.new))
    return f"{change.what}: {old} -> {new}"


def _value(what: str, value: Any) -> str:
    if value is None:
        return "none"
    if what == "sha256" or what.startswith("origins."):
        return str(value)[:12]
    if what == "size_bytes":
        return f"{value} ({size(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value) or "empty"


def _latency_ms(variant: VariantRecord) -> dict[int, float]:
    batches = variant.evidence.get("speed", {}).get("batches", [])
    return {batch["rows"]: statistics.median(batch["ms"]) for batch in batches}


def _drop(evidence: Mapping[str, Any]) -> str:
    """The drop of every metric that has a budget, beside it; of all metrics where none has."""
    drops, budget = evidence.get("drops", {}), evidence.get("budget", {})
    if not drops:
        return "-"
    shown = budget or drops
    return ", ".join(
        f"{name} {round(drops[name], 4) + 0.0:.4f}" + (f" of {budget[name]:g}" if name in budget else "")
        for name in shown
    )


def size(size_bytes: int) -> str:
    """A size for people; "-" for none."""
    if not size_bytes:
        return "-"
    return f"{size_bytes / 1024:.1f} KiB" if size_bytes < 1024 * 1024 else f"{size_bytes / 1024 / 1024:.1f} MiB"


def _verdict(version: Version, promotion: Promotion | None, name: str, variant: VariantRecord) -> str:
    if promotion is not None and (promotion.version, promotion.variant) == (version.id, name):
        return "promoted" if not variant.refused else "promoted by force"
    if not variant.sha256:
        return "not built"
    if variant.refused:
        return "refused"
    state = state_of(version, name, promotion)
    return f"source, {state}" if name == version.source else state


def _threads(threads: Any) -> str:
    """Say how many threads the bare runtimes had: one number, or each variant's own."""
    if not isinstance(threads, Mapping):
        return str(threads)
    return (
        ", ".join(f"{count} ({name})" for name, count in threads.items())
        if len(set(threads.values())) > 1
        else str(next(iter(threads.values()), "?"))
    )
