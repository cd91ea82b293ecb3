"""What decides beside the forecasts: whether the SLO is met, what the model's part is, what a request asks for."""

from __future__ import annotations

from dataclasses import dataclass

from tailcut.core.profiling.attribution import Attribution
from tailcut.core.profiling.budget import judge_wall, near_percentile
from tailcut.core.profiling.diversity import Diversity
from tailcut.core.profiling.dividing import FETCHING
from tailcut.core.profiling.flat import STAGE_AT
from tailcut.core.profiling.forecast import Forecast
from tailcut.core.profiling.levers import State
from tailcut.core.profiling.records import Recording, Stage
from tailcut.core.profiling.refusals import Facts
from tailcut.core.slo import Finding, LatencyObjective, Objectives
from tailcut.core.statistics import percentile

HEADROOM = 1.2
"""Capacity over the rate from which on nothing needs doing."""


@dataclass(frozen=True)
class Aim:
    """What is to be reached.

    Attributes:
        slo: None: the p95 as low as it gets.
        findings: on the requests as they were measured; those of the percentiles first.
        failed: requests that were not answered.
        objective: the percentile's that is missed by most, or where none is, that with least to spare.
    """

    slo: Objectives | None
    findings: tuple[Finding, ...] = ()
    failed: int = 0
    objective: LatencyObjective | None = None

    @property
    def share(self) -> float:
        """Of the requests that the percentile is about."""
        return self.objective.share if self.objective else 0.95

    @property
    def missed(self) -> bool:
        """Whether something of the SLO was missed as it was measured."""
        return not all(one.met for one in self.findings)

    @property
    def unmended(self) -> bool:
        """Whether it is missed because requests failed."""
        return any(not one.met and (one.unit == "%" or one.seen is None) for one in self.findings)

    @property
    def seen_ms(self) -> float:
        """The objective's percentile as it was measured, all requests counted; infinite where that one failed."""
        seen = [one.seen for one in self.findings if self.objective and one.objective == self.objective.name]
        return 0.0 if not seen else float("inf") if seen[0] is None else seen[0]

    @property
    def words(self) -> str:
        """What a lever can reach: the whole SLO, or one of its percentiles."""
        if self.objective is None or (len(self.findings) == 1 and not self.unmended):
            return "the SLO"
        return f"the SLO's {self.objective.name} of {self.objective.limit_s * 1e3:g} ms"


def aim_at(slo: Objectives | None, recording: Recording, found: Attribution) -> Aim:
    """Judge what was measured, and choose the objective that counts."""
    if slo is None:
        return Aim(None)
    failed = len(recording.requests) - len(found.flat.requests)
    findings = judge_wall(slo, found.flat.wall_ns / 1e6, failed)

    def strictness(one: tuple[LatencyObjective, Finding]) -> float:
        return float("inf") if one[1].seen is None else one[1].seen / one[1].limit

    judged = zip(slo.latency, findings, strict=False)  # that of the errors is the last
    objective, _ = max(judged, key=strictness, default=(None, None))
    return Aim(slo, findings, failed, objective)


def facts_of(
    state: State,
    found: Attribution,
    recording: Recording,
    diversity: Diversity | None,
    now: Forecast,
    aim: Aim,
    limit_ms: float,
) -> Facts:
    """Gather what decides beside the forecasts."""
    # What was measured counts too: a simulation that is off must not call an SLO met that was missed.
    measured_ms = 0.0
    if now.rate == recording.rate:
        answered_ms = percentile(state.work.latency_ns, aim.share) / 1e6
        measured_ms = max(answered_ms, aim.seen_ms if aim.seen_ms < float("inf") else 0.0)
    seen_ms = max(now.p95_ms, measured_ms)
    within = aim.objective is not None and not aim.missed and seen_ms <= limit_ms
    return Facts(
        met=within and (now.capacity or 0.0) >= HEADROOM * now.rate,
        missed=aim.objective is not None and not within,
        unmended=aim.failed if aim.unmended else 0,
        model_share=_model_share(found, aim.share),
        fetches=max(sum(part.stage in FETCHING and part.name >= 0 for part in job) for job in state.work.jobs),
        rows=_rows(diversity),
        aim=aim.words,
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
