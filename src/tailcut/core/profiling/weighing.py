"""What decides beside the forecasts: whether the SLO is met, what the model's part is, what a request asks for."""

from __future__ import annotations

from tailcut.core.profiling.attribution import Attribution
from tailcut.core.profiling.budget import near_percentile
from tailcut.core.profiling.diversity import Diversity
from tailcut.core.profiling.dividing import FETCHING
from tailcut.core.profiling.flat import STAGE_AT
from tailcut.core.profiling.forecast import Forecast
from tailcut.core.profiling.levers import State
from tailcut.core.profiling.records import Recording, Stage
from tailcut.core.profiling.refusals import Facts
from tailcut.core.slo import LatencyObjective
from tailcut.core.statistics import percentile

HEADROOM = 1.2
"""Capacity over the rate from which on nothing needs doing."""


def facts_of(
    state: State,
    found: Attribution,
    recording: Recording,
    diversity: Diversity | None,
    now: Forecast,
    aim: tuple[LatencyObjective | None, float, float],
) -> Facts:
    """Gather what decides beside the forecasts; ``aim``: the SLO's objective, its percentile, and the limit in ms."""
    objective, share, limit_ms = aim
    # What was measured counts too: a simulation that is off must not call an SLO met that was missed.
    measured_ms = percentile(state.work.latency_ns, share) / 1e6 if now.rate == recording.rate else 0.0
    seen_ms = max(now.p95_ms, measured_ms)
    return Facts(
        met=objective is not None and seen_ms <= limit_ms and (now.capacity or 0.0) >= HEADROOM * now.rate,
        model_share=_model_share(found, share),
        fetches=max(sum(part.stage in FETCHING and part.name >= 0 for part in job) for job in state.work.jobs),
        rows=_rows(diversity),
        limit_ms=limit_ms,
        now=now,
        seen_ms=seen_ms,
    )


def _model_share(found: Attribution, share: float) -> float:
    near = near_percentile(found.flat.wall_ns / 1e6, share)
    return float(found.stage_ns[near][:, STAGE_AT[Stage.MODEL]].sum() / found.flat.wall_ns[near].sum())


def _rows(diversity: Diversity | None) -> float:
    """Things that a request asks about, on average."""
    if diversity is None or not diversity.requests:
        return 1.0
    most = max((stream.lookups for stream in diversity.streams[1:] if not stream.constant), default=diversity.requests)
    return most / diversity.requests
