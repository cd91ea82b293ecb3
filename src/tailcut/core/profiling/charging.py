"""Whether an SLO was missed only because of what profiling cost."""

from __future__ import annotations

import msgspec

from tailcut.core.profiling.overhead import Overhead
from tailcut.core.slo import Finding

_UPPER = 85.0
"""From this percentile on requests are near the p95 rather than near the median."""


def note_cost(findings: tuple[Finding, ...], overhead: Overhead | None) -> tuple[Finding, ...]:
    """Say of each percentile that was missed whether it is so only because of what profiling cost."""
    return tuple(_noted(one, overhead) for one in findings) if overhead is not None else findings


def _noted(finding: Finding, overhead: Overhead) -> Finding:
    if finding.met or finding.seen is None or finding.unit != "ms" or finding.objective == "max":
        return finding
    everyone = overhead.everyone
    near_p95 = float(finding.objective.removeprefix("p")) >= _UPPER
    if everyone is not None:
        share = everyone.p95.share if near_p95 else everyone.p50.share
    else:
        share = overhead.p95_share if near_p95 else overhead.p50_share
    alone = finding.seen / (1.0 + share)
    if alone > finding.limit:
        return finding
    note = f"{alone:.4g} ms, and met, without what profiling cost"
    return msgspec.structs.replace(finding, note=f"{finding.note}; {note}" if finding.note else note)
