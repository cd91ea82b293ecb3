"""Which levers to pull, in which order, what that would bring, and which to leave alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailcut.common.slo import LatencyObjective, Objectives
from tailcut.profiler.attribution.stages import Attribution, attribute
from tailcut.profiler.forecast.calibration import Calibration, calibrate
from tailcut.profiler.forecast.forecast import Forecast, forecast
from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers import preprocessing
from tailcut.profiler.levers.advice_inputs import aim_at, facts_of
from tailcut.profiler.levers.assumptions import database_ns, share_cores
from tailcut.profiler.levers.inapplicable import Facts, basis_of, figure, refusal_of, weakness_of
from tailcut.profiler.levers.levers import LEVERS, begin, pull
from tailcut.profiler.levers.ordering import WORTH, Step, order_levers
from tailcut.profiler.levers.workers import own_levers
from tailcut.profiler.payloads.diversity import Diversity
from tailcut.profiler.records import Recording, Stage

_QUEUE_GROWS = 4.0
_ALONE_RATE = 1.0
"""Requests per second at which hardly one meets another."""
_DRIVERS = {"psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "aiomysql"}
"""Hooks whose queries are answered by another process."""


class LeverAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What one lever would bring.

    Attributes:
        lever: its name.
        order: when to pull it, from 1; 0: leave it.
        reason: why, in a sentence.
        p95_ms, capacity: estimate, this lever alone.
        bound_p95_ms, bound_capacity: at best, this lever alone: what it is aimed at takes no time. Never worse than
            the estimate, nor than without it.
        after_p95_ms, after_capacity: estimate with those of smaller order pulled too; None where order is 0.
        basis: what the estimate rests on; figures from elsewhere begin with "prior:".
    """

    lever: str
    order: int
    reason: str
    p95_ms: float
    capacity: float
    bound_p95_ms: float
    bound_capacity: float
    after_p95_ms: float | None = None
    after_capacity: float | None = None
    basis: tuple[str, ...] = ()

    @property
    def worth(self) -> bool:
        """Whether it is among those to pull."""
        return self.order > 0


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a latency, and what not.

    Attributes:
        rate: requests per second that everything is foretold for.
        percentile: the one that is told as p95: that of the SLO where it has one.
        limit_ms: the SLO's; else four times the percentile on an idle service, for the capacity.
        has_slo: whether the limit is the SLO's.
        now: as things are, simulated.
        calibration: how well the simulation repeats what was measured.
        levers: those to pull, in order, then the others.
        summary: what to do and what not, in sentences.
        notes: what makes the figures weaker than they look.
        doubts: why they are not to be believed as they stand, to be read before them.
    """

    rate: float
    percentile: str
    limit_ms: float
    has_slo: bool
    now: Forecast
    calibration: Calibration
    levers: tuple[LeverAdvice, ...]
    summary: tuple[str, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def advise(
    recording: Recording,
    *,
    known: Known,
    slo: Objectives | None = None,
    diversity: Diversity | None = None,
    rate: float | None = None,
    found: Attribution | None = None,
) -> Advice | None:
    """Say what each lever would bring, and which to pull.

    Args:
        known: see ``knowing.know``.
        slo: what counts is its latency objective that is missed by most, or has least to spare; None: the p95 as low
            as it gets.
        diversity: of the payloads, for the sentences.
        rate: requests per second; None: the recording's.
        found: the recording's attribution where that is at hand.

    Returns:
        None where no request was answered.
    """
    found = attribute(recording) if found is None else found
    work = read_work(recording, found)
    if not work.jobs:
        return None
    rate = rate or recording.rate
    known = share_cores(known, recording, work)
    state, calibration = calibrate(begin(work, known))
    aim = aim_at(slo, recording, found)
    objective, share = aim.objective, aim.share
    limit_ms = objective.limit_s * 1e3 if objective else _QUEUE_GROWS * forecast(state, _ALONE_RATE, share=share).p95_ms
    now = forecast(state, rate, limit_ms=limit_ms, share=share)
    facts = facts_of(state, found, recording, diversity, now, aim, limit_ms, calibration)
    asked = (*LEVERS, *own_levers(state, recording))
    allowed = [lever for lever in asked if not refusal_of(lever, state, facts)]
    alone = {lever: forecast(pull(state, lever), rate, limit_ms=limit_ms, share=share) for lever in allowed}
    pulled = order_levers(state, alone, facts, share, within_ms=limit_ms if objective else 0.0)
    levers = [_advise_one(state, lever, facts, share, alone.get(lever, now), pulled) for lever in asked]
    levers.sort(key=lambda one: (one.order == 0, one.order))
    return Advice(
        rate=rate,
        percentile=_percentile_name(objective),
        limit_ms=limit_ms,
        has_slo=objective is not None,
        now=now,
        calibration=calibration,
        levers=tuple(levers),
        summary=_summary(levers, facts),
        notes=_notes(rate, recording, known, diversity, facts),
        doubts=facts.doubts,
    )


def _advise_one(
    state: State, lever: LeverName, facts: Facts, share: float, alone: Forecast, pulled: list[Step]
) -> LeverAdvice:
    rate, limit_ms = facts.now.rate, facts.limit_ms
    reason = refusal_of(lever, state, facts)
    at_best = pull(state, lever, bound=True)
    same = (at_best.work.jobs, at_best.service) == (state.work.jobs, state.service)
    bound = facts.now if same else forecast(at_best, rate, limit_ms=limit_ms, share=share, rounds=1)
    order = next((place for place, step in enumerate(pulled, 1) if step.lever == lever), 0)
    after = pulled[order - 1].after if order else None
    if not reason:
        gain = 1 - alone.p95_ms / facts.now.p95_ms
        named = f"{preprocessing.words(state)}; " if lever == "preprocessing" else ""
        reason = f"{named}p95 {figure(facts.now.p95_ms)} -> {figure(alone.p95_ms)} ms alone ({-gain:+.0%})"
        if order and pulled[order - 1].for_capacity:
            more = f"{figure(facts.now.capacity or 0.0)} -> {figure(alone.capacity or 0.0)}/s alone"
            reason = f"for the capacity, {more}; {reason}"
        if order and lever == "concurrent I/O":
            reason += ", where no fetch needs another's answer"
        if not order:
            weakness = weakness_of(lever, facts)
            little = f"{reason}, and little after the others"
            if weakness or gain < WORTH or not pulled:
                reason = f"not worth it: {f'{weakness}; ' if weakness else ''}{little}"
            else:
                reason = f"what it would win is won by then: {reason}"
    return LeverAdvice(
        lever=lever,
        order=order,
        reason=reason,
        p95_ms=alone.p95_ms,
        capacity=alone.capacity or 0.0,
        bound_p95_ms=min(one.p95_ms for one in (bound, alone, facts.now)),
        bound_capacity=max(one.capacity or 0.0 for one in (bound, alone, facts.now)),
        after_p95_ms=after.p95_ms if after else None,
        after_capacity=after.capacity if after else None,
        basis=basis_of(lever, state),
    )


def _summary(levers: Sequence[LeverAdvice], facts: Facts) -> tuple[str, ...]:
    lines = []
    if facts.unmended:
        lines.append(f"{facts.unmended} requests failed, which alone misses the SLO and no lever mends: begin there")
    lines += filter(None, [_verdict(facts)])
    if not facts.met:
        lines += [f"as it is, {one}" for one in facts.limits]
        lines += facts.hints
    ordered = [one for one in levers if one.order]
    if ordered:
        lines.append("in this order: " + ", ".join(one.lever for one in ordered))
        lines += [f"preprocessing: {one.reason}" for one in ordered if one.lever == "preprocessing"]
    if facts.missed and facts.seen_ms > facts.limit_ms:
        lines.append(_reached(ordered, facts))
    elif not ordered and not facts.met:
        lines.append("none of these levers wins much: look at what takes the time")
    lines += [f"{one.lever}: {one.reason}" for one in levers if not one.order and not facts.met]
    return tuple(lines)


def _verdict(facts: Facts) -> str:
    """Say where the service stands as it is; empty where the SLO was missed, or there is none."""
    now, limit_ms = facts.now, facts.limit_ms
    if facts.met:
        seen = f"{figure(facts.told_ms)} of {figure(limit_ms)} ms at {now.rate:g} requests/s"
        return f"the SLO is met: {seen}, and up to {figure(now.capacity or 0.0)}/s: nothing needs doing"
    if not facts.within:
        return ""
    said = f"the SLO is met as it was measured, {figure(facts.measured_ms)} of {figure(limit_ms)} ms"
    if facts.doubts:
        return f"{said}; how much more is borne cannot be told"
    if now.p95_ms > limit_ms:
        return f"{said}, with nothing to spare: {figure(now.p95_ms)} ms are simulated"
    return f"{said}, with little to spare: up to {figure(now.capacity or 0.0)} requests/s are borne"


def _reached(ordered: Sequence[LeverAdvice], facts: Facts) -> str:
    """Say which lever is enough; where more was measured than is foretold as it is, so it is taken to be after it."""
    if not ordered:
        return f"none of these levers is worth it, and {facts.aim} is missed: look at what takes the time"
    enough = [one.lever for one in ordered if (one.after_p95_ms or 0.0) * facts.off <= facts.limit_ms]
    if not enough:
        return f"{facts.aim} is not met by all of them together"
    more = "; what follows makes it quicker, or lets it bear more" if enough[0] != ordered[-1].lever else ""
    return f"{facts.aim} should be met after {enough[0]!r}{more}"


def _notes(
    rate: float, recording: Recording, known: Known, diversity: Diversity | None, facts: Facts
) -> tuple[str, ...]:
    notes = list(facts.held)
    if rate > 1.5 * recording.rate:
        notes.append(f"recorded at {recording.rate:g}/s: that the database is as quick at {rate:g}/s is assumed")
    notes += _of_database(recording, known)
    life_s = max(known.feature_life_s, known.prediction_life_s)
    if diversity is not None and diversity.span_s < life_s:
        notes.append(
            f"the payloads span {diversity.span_s:.0f} s, a cached value {life_s:g} s: of a longer log more repeats"
        )
    return tuple(notes)


def _of_database(recording: Recording, known: Known) -> list[str]:
    """Say where the database is taken to compute."""
    computed_ms = database_ns(recording) / 1e6
    if known.database_beside and computed_ms:
        return [
            f"databases on this machine computed {computed_ms:.2f} ms a request, on cores that the application has too:"
            " with theirs elsewhere it sustains more"
        ]
    queries = any(span.stage == Stage.SQL for one in recording.requests for span in one.spans)
    if known.database_cores or known.database_beside or not queries or not _DRIVERS & set(recording.pilot.hooks):
        return []
    return ["no database is seen to compute on this machine: it is taken to have cores enough elsewhere"]


def _percentile_name(objective: LatencyObjective | None) -> str:
    return objective.name if objective else "p95"
