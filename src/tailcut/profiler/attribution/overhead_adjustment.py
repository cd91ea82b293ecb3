"""Whether an SLO was missed only because of what profiling cost."""

from __future__ import annotations

import msgspec

from tailcut.common.slo import Finding
from tailcut.profiler.overhead_records import Added
from tailcut.profiler.records import Recording

_UPPER, _LAST = 85.0, 97.0
"""From this percentile to that one requests are near the p95; what it costs later ones was not measured."""


def note_cost(findings: tuple[Finding, ...], recording: Recording) -> tuple[Finding, ...]:
    """Say of each percentile that was missed whether it surely is so only because of what profiling cost."""
    costs = _costs(recording)
    return tuple(_noted(one, *costs) for one in findings) if costs is not None else findings


def _costs(recording: Recording) -> tuple[Added, Added] | None:
    """What it cost the requests that were judged, near the median and near the p95; None: not known."""
    overhead = recording.overhead
    if overhead is None:
        return None
    if overhead.everyone is not None:
        return overhead.everyone.p50, overhead.everyone.p95
    if recording.traced < 1.0 or overhead.p50_range is None or overhead.p95_range is None:
        return None
    return Added(overhead.p50_share, overhead.p50_range), Added(overhead.p95_share, overhead.p95_range)


def _noted(finding: Finding, p50: Added, p95: Added) -> Finding:
    if finding.met or finding.seen is None or finding.unit != "ms" or finding.objective == "max":
        return finding
    percentile = float(finding.objective.removeprefix("p"))
    cost = p95 if percentile >= _UPPER else p50
    if percentile > _LAST or finding.seen / (1.0 + cost.between[0]) > finding.limit:
        return finding
    note = f"{finding.seen / (1.0 + cost.share):.4g} ms, and met, without the overhead of profiling"
    return msgspec.structs.replace(finding, note=f"{finding.note}; {note}" if finding.note else note)
