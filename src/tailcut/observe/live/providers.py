"""What traces, drift and alerts know, as the page shows it.

Each function turns what a part holds into the records of ``figures``; a host sets ``Live.kept``, ``Live.request``,
``Live.drift`` and ``Live.alerts`` to what calls them, where it has such a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from tailcut.observe.alerts.alarms import Alarm
from tailcut.observe.alerts.rules import RULE
from tailcut.observe.drift.state import ColumnState, State
from tailcut.observe.live.figures import (
    AlertFigures,
    DriftColumn,
    DriftFigures,
    KeptRequest,
    LiveSpan,
    RequestDetail,
)
from tailcut.observe.traces.found import FoundTrace
from tailcut.observe.traces.kept import Kept
from tailcut.observe.traces.spans import Span as TraceSpan

KEPT_S = 600.0
"""That kept requests are shown for."""

_MOST_KEPT = 10
"""Slow ones, and as many failed ones, of each model."""
_MOST_COLUMNS = 24
_MOST_FACTS = 8
_OWN = "tailcut."
_LEFT_OUT = frozenset({"model", "variant", "version", "route", "code", "kept", "stage", "request_id", "batch.id"})
"""Attributes that the page shows elsewhere."""


def kept_requests(held: Iterable[Kept], now_s: float) -> dict[str, list[KeptRequest]]:
    """Return the slowest and the latest failed of the kept requests of the last minutes, by model.

    Args:
        now_s: seconds since the epoch.
    """
    by_model: dict[tuple[str, bool], list[Kept]] = {}
    since_ns = (now_s - KEPT_S) * 1e9
    for each in held:
        if each.start_ns + each.wall_ns >= since_ns and each.code:
            by_model.setdefault((each.model, each.code == "ok"), []).append(each)
    found: dict[str, list[KeptRequest]] = {}
    for (model, is_answered), kept in by_model.items():
        kept.sort(key=lambda each: -each.total_ns if is_answered else -(each.start_ns + each.wall_ns))
        found.setdefault(model, []).extend(map(_kept, kept[:_MOST_KEPT]))
    return found


def _kept(kept: Kept) -> KeptRequest:
    return KeptRequest(
        trace=f"{kept.trace.trace_id:032x}",
        model=kept.model,
        route=kept.route,
        code=kept.code,
        variant=kept.variant,
        why=kept.reason,
        total_s=kept.total_ns / 1e9,
        ended_s=(kept.start_ns + kept.total_ns + kept.wall_ns) / 1e9,
    )


def request_detail(found: FoundTrace) -> RequestDetail:
    """Return a kept request with its steps in the order of their begin, each below what it is a part of."""
    total_s = found.duration_ms / 1e3
    request = KeptRequest(
        trace=found.trace_id,
        model=found.model,
        route=found.route,
        code=found.code,
        variant=found.variant,
        why=found.reason,
        total_s=total_s,
        ended_s=found.started_s + total_s,
    )
    spans = [_span(each, depth, found.spans[0].start_ns) for each, depth in _in_order(found.spans)]
    batch = [
        KeptRequest(
            trace=each.trace_id,
            model=found.model,
            route="",
            code="",
            variant=found.variant,
            why=each.reason,
            total_s=each.duration_ms / 1e3,
            ended_s=0.0,
        )
        for each in found.batch
    ]
    return RequestDetail(request=request, spans=spans, batch=batch)


def _in_order(spans: Sequence[TraceSpan]) -> list[tuple[TraceSpan, int]]:
    """Return spans with their depths, parts behind their whole."""
    known = {each.span_id for each in spans}
    parts: dict[str, list[TraceSpan]] = {}
    for each in spans:
        parts.setdefault(each.parent_id if each.parent_id in known else "", []).append(each)
    found: list[tuple[TraceSpan, int]] = []
    waiting = [(each, 0) for each in reversed(parts.pop("", []))]
    while waiting:
        span, depth = waiting.pop()
        found.append((span, depth))
        below = sorted(parts.pop(span.span_id, []), key=lambda each: each.start_ns)
        waiting += [(each, depth + 1) for each in reversed(below)]
    return found


def _span(span: TraceSpan, depth: int, begin_ns: int) -> LiveSpan:
    own = {
        name.rpartition(".")[2].replace("_", " "): str(value)
        for name, value in span.attributes.items()
        if name.startswith(_OWN) and name.removeprefix(_OWN) not in _LEFT_OUT
    }
    return LiveSpan(
        name=span.name,
        depth=depth,
        start_s=max(span.start_ns - begin_ns, 0) / 1e9,
        duration_s=span.duration_ns / 1e9,
        failed=bool(span.error),
        facts=dict(list(own.items())[:_MOST_FACTS]),
    )


def drift_figures(state: State | None) -> DriftFigures | None:
    """Return a ``drift.state.State``, the columns that moved most first; None of a model that is not watched."""
    if state is None:
        return None
    columns = sorted(state.columns, key=lambda each: (not each.drifting, -each.psi))
    return DriftFigures(
        rows=state.rows, alarms=state.alarms, columns=[_column(each) for each in columns[:_MOST_COLUMNS]]
    )


def _column(column: ColumnState) -> DriftColumn:
    return DriftColumn(
        role=column.role,
        name=column.name,
        psi=column.psi,
        evidence=column.evidence if isfinite(column.evidence) else None,
        drifting=column.drifting,
        since_s=column.since_s,
        missing=column.missing,
        unseen=column.unseen,
        labels=column.reference.labels,
        reference=column.reference.shares,
        current=column.current.shares,
    )


def alert_figures(active: Iterable[Alarm]) -> list[AlertFigures]:
    """Return ``alerts.alarms.Alarm``s, those that page first."""
    found = [
        AlertFigures(
            name=each.finding.alert,
            severity=each.finding.severity,
            model=each.finding.model,
            subject=each.finding.subject,
            text=each.finding.text,
            hint=RULE[each.finding.alert].hint,
            since_s=each.since_s,
            stage=each.finding.place,
        )
        for each in active
    ]
    return sorted(found, key=lambda each: (each.severity != "page", each.since_s))
