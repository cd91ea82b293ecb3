"""Which levers to pull, in which order, what that would bring, and which to leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from tailcut.core.profiling.attribution import Attribution, attribute
from tailcut.core.profiling.diversity import Diversity
from tailcut.core.profiling.forecast import Calibration, Forecast, calibrate, capacity, forecast
from tailcut.core.profiling.hits import answered_shares, entity_field, keys_of
from tailcut.core.profiling.levers import LEVERS, Known, LeverName, State, begin, pull
from tailcut.core.profiling.records import Recording, Stage
from tailcut.core.profiling.refusals import Facts, basis_of, refusal_of, weakness_of
from tailcut.core.profiling.weighing import aim_at, facts_of
from tailcut.core.profiling.work import read_work
from tailcut.core.slo import LatencyObjective, Objectives

FEATURE_LIFE_S, PREDICTION_LIFE_S = 60.0, 30.0
"""How long cached features and answers are taken to live where nobody says it."""
CACHE_ENTRIES = 100_000

_WORTH = 0.05
_MORE_CAPACITY = 0.10
_QUEUE_GROWS = 4.0


class LeverAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What one lever would bring.

    Attributes:
        lever: its name.
        order: when to pull it, from 1; 0: leave it.
        reason: why, in a sentence.
        p95_ms, capacity: estimate, this lever alone.
        bound_p95_ms, bound_capacity: at best, this lever alone: what it is aimed at takes no time.
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


def know(
    recording: Recording,
    bodies: Sequence[bytes],
    diversity: Diversity | None,
    rate: float,
    known: Known | None = None,
    *,
    at_s: Sequence[float] | None = None,
) -> Known:
    """Fill in what the recording and the payloads say: family, cores, and which requests caches would have answered.

    Args:
        bodies: payloads in the order of the requests' numbers, which begin again where these end: caches are played
            over them once, and what repeats only because a load began again is no hit. Empty: nothing is known.
        rate: requests per second that they are laid out at.
        known: what the caller knows better; its fields that are set stay.
        at_s: when they came, ascending, where that is known.
    """
    known = known or Known()
    if not known.family:
        known = replace(known, family=_family(recording))
    if known.cores == 1:
        known = replace(known, cores=max(int(recording.machine.get("cores", "1")), 1))
    if not bodies or diversity is None:
        return known
    keys = keys_of(bodies, entity_field(diversity))
    came_s = np.arange(len(bodies)) / rate if at_s is None else np.asarray(at_s, dtype=np.float64)
    numbers = [one.number for one in recording.requests]
    if not known.feature_hits:
        shares = answered_shares(keys, came_s, life_s=FEATURE_LIFE_S, size=CACHE_ENTRIES)
        hits = {number: float(shares[number % len(bodies)]) for number in numbers}
        known = replace(known, feature_hits=hits, feature_life_s=FEATURE_LIFE_S)
    if not known.prediction_hits:
        shares = answered_shares(keys, came_s, life_s=PREDICTION_LIFE_S, size=CACHE_ENTRIES)
        whole = {number: bool(shares[number % len(bodies)] >= 1.0) for number in numbers}
        known = replace(known, prediction_hits=whole, prediction_life_s=PREDICTION_LIFE_S)
    return known


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
        known: see ``know``.
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
    state, calibration = calibrate(begin(work, known))
    aim = aim_at(slo, recording, found)
    objective, share = aim.objective, aim.share
    limit_ms = objective.limit_s * 1e3 if objective else _QUEUE_GROWS * forecast(state, 1.0, share=share).p95_ms
    now = forecast(state, rate, limit_ms=limit_ms, share=share)
    facts = facts_of(state, found, recording, diversity, now, aim, limit_ms)
    allowed = [lever for lever in LEVERS if not refusal_of(lever, state, facts)]
    pulled = _order(state, allowed, rate, share, now, limit_ms)
    levers = [_advise_one(state, lever, facts, share, pulled) for lever in LEVERS]
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
        notes=_notes(calibration, rate, recording, known, diversity),
    )


_Step = tuple[LeverName, Forecast]


def _order(
    state: State, allowed: Sequence[LeverName], rate: float, share: float, now: Forecast, limit_ms: float
) -> list[_Step]:
    """Pull, one after the other, what lowers the percentile most given those pulled; then what adds capacity."""
    left, steps, before = list(allowed), list[_Step](), now
    while left:
        tried = {lever: forecast(pull(state, lever), rate, share=share, rounds=1) for lever in left}
        best = min(left, key=lambda lever: tried[lever].p95_ms)
        state_after = pull(state, best)
        after = forecast(state_after, rate, limit_ms=limit_ms, share=share)
        quicker = after.p95_ms < (1 - _WORTH) * before.p95_ms
        if not quicker:
            room = {lever: capacity(pull(state, lever), limit_ms, share=share) for lever in left}
            best = max(left, key=lambda lever: room[lever])
            if room[best] <= (1 + _MORE_CAPACITY) * (before.capacity or 0.0):
                break
            state_after = pull(state, best)
            after = forecast(state_after, rate, limit_ms=limit_ms, share=share)
        steps.append((best, after))
        left.remove(best)
        state, before = state_after, after
    return steps


def _advise_one(state: State, lever: LeverName, facts: Facts, share: float, pulled: list[_Step]) -> LeverAdvice:
    rate, limit_ms = facts.now.rate, facts.limit_ms
    reason = refusal_of(lever, state, facts)
    alone = facts.now if reason else forecast(pull(state, lever), rate, limit_ms=limit_ms, share=share)
    bound = forecast(pull(state, lever, bound=True), rate, limit_ms=limit_ms, share=share, rounds=1)
    order = next((place for place, (name, _) in enumerate(pulled, 1) if name == lever), 0)
    after = pulled[order - 1][1] if order else None
    if not reason:
        gain = 1 - alone.p95_ms / facts.now.p95_ms
        reason = f"p95 {facts.now.p95_ms:.3g} -> {alone.p95_ms:.3g} ms alone ({-gain:+.0%})"
        if not order:
            weakness = weakness_of(lever, facts)
            reason = f"not worth it: {f'{weakness}; ' if weakness else ''}{reason}, and little after the others"
    return LeverAdvice(
        lever=lever,
        order=order,
        reason=reason,
        p95_ms=alone.p95_ms,
        capacity=alone.capacity or 0.0,
        bound_p95_ms=bound.p95_ms,
        bound_capacity=bound.capacity or 0.0,
        after_p95_ms=after.p95_ms if after else None,
        after_capacity=after.capacity if after else None,
        basis=basis_of(lever, state),
    )


def _summary(levers: Sequence[LeverAdvice], facts: Facts) -> tuple[str, ...]:
    lines = []
    if facts.unmended:
        lines.append(f"{facts.unmended} requests failed, which alone misses the SLO and no lever mends: begin there")
    if facts.met:
        lines.append(
            f"the SLO is met: {facts.seen_ms:.3g} of {facts.limit_ms:.3g} ms at {facts.now.rate:g} requests/s,"
            f" and up to {facts.now.capacity or 0.0:.3g}/s: nothing needs doing"
        )
    ordered = [one for one in levers if one.order]
    if ordered:
        lines.append("in this order: " + ", ".join(one.lever for one in ordered))
    if facts.missed and facts.seen_ms > facts.limit_ms:
        lines.append(_reached(ordered, facts))
    lines += [f"{one.lever}: {one.reason}" for one in levers if not one.order and not facts.met]
    return tuple(lines)


def _reached(ordered: Sequence[LeverAdvice], facts: Facts) -> str:
    """Say which lever is enough; where more was measured than is foretold as it is, so it is taken to be after it."""
    if not ordered:
        return f"none of these levers is worth it, and {facts.aim} is missed: look at what takes the time"
    enough = [one.lever for one in ordered if (one.after_p95_ms or 0.0) * facts.off <= facts.limit_ms]
    if not enough:
        return f"{facts.aim} is not met by all of them together"
    return f"{facts.aim} should be met after {enough[0]!r}; what follows makes it quicker and cheaper"


def _notes(
    calibration: Calibration, rate: float, recording: Recording, known: Known, diversity: Diversity | None
) -> tuple[str, ...]:
    notes = []
    if abs(calibration.p95_error) > 0.25:
        notes.append(
            f"the simulation's p95 of what was measured is {calibration.p95_error:+.0%} off: forecasts are as rough"
        )
    if rate > 1.5 * recording.rate:
        notes.append(f"recorded at {recording.rate:g}/s: that the database is as quick at {rate:g}/s is assumed")
    life_s = max(known.feature_life_s, known.prediction_life_s)
    if diversity is not None and diversity.span_s < life_s:
        notes.append(
            f"the payloads span {diversity.span_s:.0f} s, a cached value {life_s:g} s: of a longer log more repeats"
        )
    return tuple(notes)


def _family(recording: Recording) -> str:
    labels = [span.label for one in recording.requests for span in one.spans if span.stage == Stage.MODEL]
    if not labels:
        return ""
    usual = max(set(labels), key=labels.count)
    if usual.endswith(".onnx") or usual == "InferenceSession":
        return "onnxruntime"
    if usual.partition(".")[2] in ("predict", "predict_proba", "decision_function", "transform"):
        return "" if usual.startswith("Booster") else "sklearn"
    return "torch" if "torch" in recording.pilot.versions else ""


def _percentile_name(objective: LatencyObjective | None) -> str:
    return objective.name if objective else "p95"
