"""A profile for the terminal, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.report.profile.json import ProfileReport
from tailcut.report.profile.levers import levers_table, rests_on
from tailcut.report.profile.tables import (
    Table,
    calls_table,
    culprits_table,
    diversity_table,
    layers_table,
    operators_table,
    sizes_table,
    stages_table,
    steps_table,
)
from tailcut.report.profile.words import STEPS_TITLE, bottleneck, felt, layers_words, near_words, tracing_words

_SHORT = 6


def render_profile(report: ProfileReport) -> str:
    """Lay a profile out for a terminal: the bottleneck, where the time goes, what the levers would win, the rest."""
    parts = [
        _head(report),
        *_budget(report),
        *_calls(report),
        *_levers(report),
        *_diversity(report),
    ]
    parts += [render_layers(model) for model in report.layers]
    parts.append("\n".join(_notes(report)))
    return "\n\n".join(parts)


def render_layers(model: ModelLayers) -> str:
    """Lay a model's slow layers out."""
    first, *rest = layers_words(model)
    parts = ["\n".join([f"Slow layers of {first}", *(f"  {line}" for line in rest)])]
    if model.layers:
        parts.append(aligned(layers_table(model)))
    if model.operators:
        parts.append(aligned(operators_table(model, _SHORT)))
    return "\n\n".join(parts)


def aligned(table: Table) -> str:
    """Lay a table out in columns, a rule below its head."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
    shown = [
        "  ".join(
            cell.ljust(widths[column]) if column in table.left else cell.rjust(widths[column])
            for column, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]
    shown.insert(1, "-" * max(map(len, shown)))
    return "\n".join([*shown, *([f"({table.note})"] if table.note else [])])


def _head(report: ProfileReport) -> str:
    budget = report.budget
    failed = f", {budget.failed} failed" if budget.failed else ""
    lines = [
        f"Profile of {report.target}",
        f"{report.rate:.4g} requests/s for {report.duration_s:.3g} s: {budget.answered} answered{failed}",
    ]
    if found := bottleneck(budget):
        lines += ["", found]
    lines += ["", felt(budget)]
    lines += [f"SLO {finding}" for finding in budget.findings]
    if report.advice is not None and report.advice.summary:
        lines += ["", "What to do:", *(f"  {line}" for line in report.advice.summary)]
    return "\n".join(lines)


def _budget(report: ProfileReport) -> Iterator[str]:
    budget = report.budget
    if not budget.lines:
        return
    yield f"Where the time goes\n{aligned(stages_table(budget))}\n({near_words(budget)})"
    yield f"By name, of the requests near the p95\n{aligned(culprits_table(budget))}"
    if (steps := steps_table(budget)).rows:
        yield f"{STEPS_TITLE}\n{aligned(steps)}"


def _calls(report: ProfileReport) -> Iterator[str]:
    if report.budget.calls:
        yield f"Queries and other calls, by total time\n{aligned(calls_table(report.budget))}"


def _levers(report: ProfileReport) -> Iterator[str]:
    advice = report.advice
    if advice is None:
        return
    doubts = "".join(f"doubtful: {line}\n" for line in advice.doubts)
    yield f"What each lever can win\n{doubts}{aligned(levers_table(advice))}"
    if lines := [*rests_on(advice), *advice.notes]:
        yield "These ranges rest on\n" + "\n".join(f"  {line}" for line in lines)


def _diversity(report: ProfileReport) -> Iterator[str]:
    if report.diversity is not None:
        title = "How alike the requests are: share that a cache would have answered"
        yield f"{title}\n{aligned(diversity_table(report.diversity))}"
        sizes = sizes_table(report.diversity)
        if sizes.rows:
            yield f"The same by how many entries the cache holds\n{aligned(sizes)}"


def _notes(report: ProfileReport) -> Iterator[str]:
    yield tracing_words(report.kind)
    if report.pilot.hooks:
        yield f"Hooked: {', '.join(report.pilot.hooks)}."
    for note in report.notes:
        yield f"note: {note}"
