"""What decides beside the forecasts: whether the SLO is met, what the model's part is, what a request asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tailcut.common.slo import Finding, LatencyObjective, Objectives
from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.background_calls import background_words
from tailcut.profiler.attribution.blocking import blocking_code
from tailcut.profiler.attribution.budget import judge_wall, near_percentile
from tailcut.profiler.attribution.calls import is_write, most_fetches, shown_label
from tailcut.profiler.attribution.cpu_split import FETCHING
from tailcut.profiler.attribution.own_code import own_code
from tailcut.profiler.attribution.span_table import STAGE_AT, Ints, answered_ms
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.forecast.calibration import Calibration
from tailcut.profiler.forecast.forecast import Forecast, forecast
from tailcut.profiler.forecast.lock_model import never_played, waited_share
from tailcut.profiler.forecast.state import State
from tailcut.profiler.levers.inapplicable import Facts, figure
from tailcut.profiler.levers.workers import unseen_workers
from tailcut.profiler.payloads.diversity import Diversity, Stream
from tailcut.profiler.payloads.fields import tables_of
from tailcut.profiler.payloads.repeated_queries import repeated_fetches
from tailcut.profiler.recording.trace_sampling import LEAST_TRACED
from tailcut.profiler.records import Recording, Stage

DOUBTFUL = 0.25
"""Of what was measured: a simulation that is further off is not to be believed as it stands."""
HEADROOM = 1.2
"""Capacity over the rate from which on nothing needs doing."""
_MUCH_WAITING = 0.05
_AT_ITS_END = 1.25
_FEW_KEYS = 10
"""Requests' worth of keys: an object that has no more in all of a log holds columns, not rows."""
_SOME = 0.01
"""Of the requests: fewer that write are another kind than those that are to be answered from a cache."""
_LONGEST = 60
_REPEATED = 0.5
"""Of a log's keys: where fewer were there before, it is too short to tell."""


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


class _Repeat(NamedTuple):
    """A percentile as it was measured, and as the simulation has it at the same rate."""

    name: str
    simulated_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        return self.simulated_ms / self.measured_ms - 1.0 if self.measured_ms else 0.0


def aim_at(slo: Objectives | None, recording: Recording, found: Attribution) -> Aim:
    """Judge what was measured, and choose the objective that counts."""
    if slo is None:
        return Aim(None)
    all_ms = answered_ms(recording)
    failed = len(recording.requests) + len(recording.untraced) - len(all_ms)
    findings = judge_wall(slo, all_ms, failed)

    def strictness(one: tuple[LatencyObjective, Finding]) -> float:
        return float("inf") if one[1].seen is None else one[1].seen / one[1].limit

    judged = zip(slo.latency, findings, strict=False)  # that of the errors is the last
    objective, _ = max(judged, key=strictness, default=(None, None))
    return Aim(slo, findings, failed, objective)


def facts_of(
    state: State, found: Attribution, recording: Recording, diversity: Diversity | None, now: Forecast, aim: Aim,
    limit_ms: float, calibration: Calibration,
) -> Facts:  # fmt: skip
    """Gather what decides beside the forecasts."""
    measured_ms = _measured_ms(state, recording, now, aim)
    seen_ms = max(now.p95_ms, measured_ms)
    near = near_percentile(found.flat.wall_ns / 1e6, aim.share)
    unknown = _unknown_waits(state, found, near, whole=recording.traced >= 1.0)
    kept = aim.objective is not None and not aim.missed
    within, foretold = kept and 0 < measured_ms <= limit_ms, kept and seen_ms <= limit_ms
    repeats = _repeats(state, now, aim, calibration)
    borne = (now.capacity or 0.0) >= HEADROOM * now.rate and not unknown
    return Facts(
        met=foretold and borne and min(one.error for one in repeats) >= -DOUBTFUL,
        within=within,
        missed=aim.objective is not None and not foretold and not within,
        unmended=aim.failed if aim.unmended else 0,
        model_share=_near_share(found, near, Stage.MODEL),
        code_share=_near_share(found, near, Stage.CODE),
        fetch_share=_near_share(found, near, *FETCHING),
        fetches=most_fetches(found),
        rows=_rows(diversity),
        aim=aim.words,
        limit_ms=limit_ms,
        now=now,
        measured_ms=measured_ms,
        seen_ms=seen_ms,
        held=_held(state),
        limits=_limits(state, now),
        doubts=(*filter(None, map(_off, repeats)), *unknown),
        background_calls=background_words(recording.background_calls, recording.duration_s),
        hints=_hints(recording, found, near),
        unseen_workers=unseen_workers(state, recording),
        writes=_writes(found),
    )


def _hints(recording: Recording, found: Attribution, near: Ints) -> tuple[str, ...]:
    blocking = blocking_code(recording, found.flat)
    return (*blocking, *repeated_fetches(found), *own_code(recording, found, near, blocking))


def _writes(found: Attribution) -> str:
    """Name a statement that requests change a database with; empty where hardly any request does."""
    flat = found.flat
    spans = np.flatnonzero(np.array([is_write(name) for name in flat.names], dtype=bool)[flat.name])
    if len(np.unique(flat.request[spans])) < max(_SOME * len(flat.requests), 1):
        return ""
    names = [flat.names[number] for number in flat.name[spans].tolist()]
    text = Counter(shown_label(name.stage, name.label) for name in names).most_common(1)[0][0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _measured_ms(state: State, recording: Recording, now: Forecast, aim: Aim) -> float:
    """The percentile as it was measured: a simulation that is off must not call an SLO met that was missed."""
    if now.rate != recording.rate:
        return 0.0
    if recording.untraced and 0.0 < aim.seen_ms < float("inf"):
        return aim.seen_ms  # of all of them, and not only of those that were traced
    answered_ms = percentile(state.work.latency_ns, aim.share) / 1e6
    return max(answered_ms, aim.seen_ms if aim.seen_ms < float("inf") else 0.0)


def _near_share(found: Attribution, near: Ints, *stages: Stage) -> float:
    return float(found.stage_ns[near][:, [STAGE_AT[stage] for stage in stages]].sum() / found.flat.wall_ns[near].sum())


def _repeats(state: State, now: Forecast, aim: Aim, calibration: Calibration) -> tuple[_Repeat, ...]:
    """Compare what was measured with the simulation: the p95, and that percentile which the SLO is about."""
    p95 = _Repeat("p95", calibration.simulated_p95_ms, calibration.measured_p95_ms)
    if aim.objective is None or aim.objective.name == p95.name:
        return (p95,)
    work = state.work
    again = now if now.rate == work.rate else forecast(state, work.rate, share=aim.share)
    return (p95, _Repeat(aim.objective.name, again.p95_ms, percentile(work.latency_ns, aim.share) / 1e6))


def _off(one: _Repeat) -> str:
    """Say that the simulation does not repeat what was measured."""
    if abs(one.error) <= DOUBTFUL:
        return ""
    return (
        f"as it is, the simulation has a {one.name} of {figure(one.simulated_ms)} ms where"
        f" {figure(one.measured_ms)} ms were measured ({one.error:+.0%}): its figures for levers and capacities have "
        "the same error"
    )


def _unknown_waits(state: State, found: Attribution, near: Ints, *, whole: bool) -> tuple[str, ...]:
    """Name the locks and pools that were waited for, but are not simulated."""
    flat = found.flat
    mine = np.zeros(len(flat.requests), dtype=bool)
    mine[near] = True
    lines = []
    for label, spans in state.work.holds.unknown.items():
        share = float(found.self_ns[spans[mine[flat.request[spans]]]].sum() / flat.wall_ns[near].sum())
        where = "near the percentile"
        if share < _MUCH_WAITING:
            share, where = waited_share(flat, spans, found.self_ns), "of an endpoint's slowest requests"
        if share >= _MUCH_WAITING:
            why = "of which too little was seen to simulate it"
            if never_played(label):
                why = "which is not simulated"
            elif not whole:
                why = f"which the traced requests do not explain (fewer than {2 * LEAST_TRACED:,} are all traced)"
            lines.append(
                f"{share:.0%} of the time {where} is a wait for {label}, {why}: capacities are at most what is told"
            )
    return tuple(lines)


def _held(state: State) -> tuple[str, ...]:
    """Say of the locks and pools that are simulated how many hold them, and for how long."""
    return tuple(
        f"{hold.label}: held by {hold.at_once} at once, for {figure(state.work.held_ns(place) / 1e6)} ms a request"
        " where nothing else is in the way"
        for place, hold in enumerate(state.work.holds.found)
    )


def _limits(state: State, now: Forecast) -> tuple[str, ...]:
    """Name the locks and pools at which the capacity ends."""
    lines = []
    for place, hold in enumerate(state.work.holds.found):
        most = hold.at_once / max(state.work.held_ns(place), 1.0) * 1e9
        if most <= _AT_ITS_END * (now.capacity or 0.0):
            lines.append(f"{hold.label} lets {figure(most)} requests/s through")
    return tuple(lines)


def _rows(diversity: Diversity | None) -> float:
    """Things that a request asks about, on average."""
    if diversity is None or not diversity.requests:
        return 1.0
    streams = {stream.name: stream for stream in diversity.streams[1:]}
    telling = [one for one in streams.values() if not one.constant]
    telling = [one for one in telling if not _in_columns(one, streams, diversity.requests)]
    most = max((one.lookups for one in telling), default=diversity.requests)
    return most / diversity.requests


def _in_columns(stream: Stream, streams: Mapping[str, Stream], requests: int) -> bool:
    """Tell whether what looks like a table on a look-up's way has the same few names in all requests."""
    for path in tables_of(stream.name):
        keys = streams.get(f"{path}{{}}")
        if keys and keys.repeats >= _REPEATED and keys.distinct * requests <= _FEW_KEYS * keys.lookups:
            return True
    return False
