"""Foretold beside measured, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from tailcut.profiler.attribution.budget import Budget
from tailcut.profiler.forecast.calibration import Calibration
from tailcut.profiler.forecast.forecast import Forecast
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.records import Recording
from tailcut.report.ladder.file import Capacity, LadderRecord, Measurement

WITHIN = 0.25
STEEP = 0.1
"""Of all CPU time: what one day is quicker or slower than another. Where a core is nearly full, a p95 doubles by it."""

_CAVEATS = """## Caveats

- That the network's usual time is its upper quartile was set with a ladder's figures in view, and is no forecast.
- "levers off" asks other statements than the pilot. From the profile alone they are taken for the pilot's own, which is
  why that row is far off; with the small runs it rests on the manifest's queries.
- The ladder ran at another hour. Its own rounds differ by as much as the ranges say."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One rung at one rate."""

    rung: str
    rate_name: str
    rate: float
    measured_ms: float
    low_ms: float
    high_ms: float
    measured_capacity: float | None
    foretold: Forecast
    calibration: Calibration
    steep_ms: tuple[float, float]

    @property
    def error(self) -> float:
        """Foretold over measured p95, less one."""
        return self.foretold.p95_ms / self.measured_ms - 1.0

    @property
    def holds(self) -> bool:
        """Within a quarter of the median round."""
        return abs(self.error) <= WITHIN

    @property
    def meets(self) -> bool:
        """The rounds and what is foretold with less and with more CPU have a p95 in common."""
        return self.steep_ms[0] <= self.high_ms and self.low_ms <= self.steep_ms[1]


def compare(
    rung: str,
    rate_name: str,
    measured: Sequence[Measurement],
    capacity: Capacity | None,
    foretold: Forecast,
    calibration: Calibration,
    steep_ms: tuple[float, float],
) -> Compared:
    """Put a forecast beside the rounds of a rung at a rate.

    Args:
        steep_ms: the p95 foretold with so much less and so much more CPU as STEEP says.
    """
    p95s = [one.latency_ms.p95 for one in measured if one.latency_ms is not None]
    return Compared(
        rung=rung,
        rate_name=rate_name,
        rate=measured[0].rate,
        measured_ms=median(p95s),
        low_ms=min(p95s),
        high_ms=max(p95s),
        measured_capacity=capacity.rate if capacity else None,
        foretold=foretold,
        calibration=calibration,
        steep_ms=steep_ms,
    )


def render(
    ladder: LadderRecord,
    recording: Recording,
    budget: Budget,
    known: Known,
    with_runs: Sequence[Compared],
    without_runs: Sequence[Compared],
    *,
    commit: str,
) -> str:
    """Write the report."""
    parts = [
        "# What a profile foretells, and what the ladder measures",
        f"`python -m benchmarks.profile_ladder` at commit {commit} on {recording.machine.get('cpu', '?')}: the"
        f" flight_risk pilot profiled at {recording.rate:g} requests/s for {recording.duration_s:g} s"
        f" ({budget.answered} requests), the rungs foretold, beside the ladder of"
        f" {ladder.created[:10]} at commit {ladder.commit}. Nothing of the rungs was run.",
        "## With five small runs beside the profile\n\n" + _runs(known),
        _table(with_runs),
        _verdict(with_runs),
        "## From the profile alone\n\nThe pilot's own queries, and factors from elsewhere.",
        _table(without_runs),
        _verdict(without_runs),
        "## The profile\n\n" + _budget(budget),
        _calibration(with_runs[0].calibration, recording),
        _CAVEATS,
    ]
    return "\n\n".join(parts) + "\n"


def _runs(known: Known) -> str:
    runtime, int8, share = known.runtime, known.int8, known.batch_share
    fetch_ms = np.array([np.sum(one, axis=0) for one in known.fetches.values()]).reshape(-1, 2) / 1e6
    lines = [
        f"- ONNX for torch: {runtime.mid:.2f} times quicker ({runtime.source})." if runtime else "",
        f"- INT8 for ONNX: {int8.mid:.2f} times quicker ({int8.source})." if int8 else "",
        f"- Batching: {share.mid:.0%} of a row's time is shared ({share.source})." if share else "",
        f"- The manifest's queries: {fetch_ms[:, 0].mean():.2f} ms of CPU a request as it is among others at the"
        f" profile's rate, {fetch_ms[:, 1].mean():.2f} ms of waiting one by one, of which the database computes"
        f" {known.fetches_share:.0%}."
        if len(fetch_ms)
        else "",
        f"- The database has {_database(known)}, and computes for {known.database_share:.0%} of the time that the pilot"
        " waits for it.",
        f"- tailcut's path: {known.path.mid / 1e6:.2f} ms of a core a request ({known.path.source})."
        if known.path
        else "",
        f"- Keys: {np.mean(list(known.feature_hits.values())):.1%} of the groups' look-ups and"
        f" {np.mean(list(known.prediction_hits.values())):.1%} of the answers repeat; of"
        f" {np.mean(list(known.tensor_hits.values())):.1%} more the tensors do.",
    ]
    return "\n".join(line for line in lines if line)


def _database(known: Known) -> str:
    if not known.database_cores and not known.database_beside:
        return "as many cores as it asks for"
    own = f"{known.database_cores} core(s) to itself"
    return f"{own}, and the server's where that is free first" if known.database_beside else own


def _table(compared: Sequence[Compared]) -> str:
    lines = [
        "| rung | at | foretold p95 ms (CPU 10 % less, more) | measured (rounds) | error | within 25 %"
        " | foretold capacity | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        foretold_capacity = one.foretold.capacity or 0.0
        measured_capacity = f"{one.measured_capacity:.0f}/s" if one.measured_capacity else "-"
        lines.append(
            f"| {one.rung} | {one.rate:g}/s | {one.foretold.p95_ms:.3g} ({one.steep_ms[0]:.3g}-{one.steep_ms[1]:.3g})"
            f" | {one.measured_ms:.3g}"
            f" ({one.low_ms:.3g}-{one.high_ms:.3g}) | {one.error:+.0%} | {'yes' if one.holds else 'no'}"
            f" | {foretold_capacity:.0f}/s | {measured_capacity} |"
        )
    return "\n".join(lines)


def _verdict(compared: Sequence[Compared]) -> str:
    holds, meets = sum(one.holds for one in compared), sum(one.meets for one in compared)
    lines = [
        f"Within 25 %: {holds} of {len(compared)}. With a tenth of CPU less or more it meets the rounds in {meets}."
    ]
    for name in dict.fromkeys(one.rate_name for one in compared):
        mine = [one for one in compared if one.rate_name == name]
        foretold = _steps([one.foretold.p95_ms for one in mine])
        measured = _steps([one.measured_ms for one in mine])
        names = [one.rung for one in mine[1:]]
        lines.append(
            f"At {mine[0].rate:g}/s the rungs in the order of what they win: foretold {_ranked(names, foretold)};"
            f" measured {_ranked(names, measured)}."
        )
    return "\n".join(lines)


def _steps(p95s: Sequence[float]) -> list[float]:
    return [before - after for before, after in pairwise(p95s)]


def _ranked(names: Sequence[str], wins: Sequence[float]) -> str:
    order = sorted(range(len(names)), key=lambda place: -wins[place])
    return ", ".join(f"{names[place]} ({wins[place]:+.2g} ms)" for place in order)


def _budget(budget: Budget) -> str:
    lines = ["| stage | mean ms | p50 | p95 | of requests near the p95 |", "|---|---|---|---|---|"]
    lines += [
        f"| {line.stage} | {line.mean_ms:.2f} | {line.p50_ms:.2f} | {line.p95_ms:.2f} | {line.near_share:.0%} |"
        for line in budget.lines
    ]
    return "\n".join(lines)


def _calibration(calibration: Calibration, recording: Recording) -> str:
    overhead = recording.overhead
    cost = f"; profiling itself costs {overhead.p50_share:+.0%} of the p50" if overhead else ""
    kept = (
        f"; {calibration.spread_kept:.0%} of what is waited for fetches beyond the median request kept after that"
        if calibration.spread_kept < 1.0
        else ""
    )
    return (
        "The simulation of the recording:"
        f" p50 {calibration.simulated_p50_ms:.2f} of {calibration.measured_p50_ms:.2f} ms,"
        f" p95 {calibration.simulated_p95_ms:.2f} of {calibration.measured_p95_ms:.2f} ms, with waits scaled by"
        f" {calibration.wait_scale:.2f}{kept}{cost}."
    )
