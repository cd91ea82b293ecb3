"""Which levers to pull, in which order, how much each can win at most, and which to leave alone.

Every figure is a range or a bound; what a lever really wins, `tailcut ladder` measures.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.cache.cache_advisor import AGAINST
from tailcut.common.slo import LatencyObjective, Objectives, SloFinding
from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.awaiting import awaited_ns
from tailcut.profiler.attribution.background_calls import background_words
from tailcut.profiler.attribution.budget import by_name, judge_wall, near_percentile
from tailcut.profiler.attribution.calls import grouped_calls, is_fetch, is_write, most_fetches, shown_label
from tailcut.profiler.attribution.functions import functions_of
from tailcut.profiler.attribution.span_table import STAGE_AT, Flat, Ints, answered_ms
from tailcut.profiler.attribution.stages import Attribution, attribute
from tailcut.profiler.levers import priors
from tailcut.profiler.levers.known import FEATURE_LIFE_S, PREDICTION_LIFE_S, LeverAssumptions
from tailcut.profiler.levers.priors import Prior
from tailcut.profiler.levers.work import (
    PROCESSES,
    End,
    LeverName,
    RequestWork,
    Steps,
    int8_factor,
    pull,
    read_work,
    runtime_factor,
    shorten_queues,
)
from tailcut.profiler.payloads.diversity import Diversity, Stream
from tailcut.profiler.payloads.fields import tables_of
from tailcut.profiler.records import FETCHING, PROCESS_POOL, TORCH_ON_GPU, Recording, Stage

LEVERS: tuple[LeverName, ...] = (
    "feature cache", "concurrent I/O", "preprocessing", "runtime", "INT8", "batching", "prediction cache",
    "more executors", "serving path",
)  # fmt: skip

WORTH = 0.05
"""Of the percentile: a lever that can lower it by less at most wins next to nothing."""
MANY_ROWS = 32.0
_MORE_CAPACITY = 0.10
_ENOUGH = 5.0
"""Times the rate: a service with that capacity needs no lever for the capacity alone."""
_SLOW_STEP = 0.05
"""Of a request's time: a step of preprocessing that takes less is no lever."""
_NOT_KNOWN = "not known: "
_OTHERS = 0.2
"""Of the machine's cores: where other processes used more, the waits are theirs too."""


class LeverAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What one lever can win.

    Attributes:
        lever: its name.
        order: when to pull it, from 1; 0: leave it.
        reason: why, in a sentence.
        p95_ms: the percentile with this lever alone, best and worst; None: not known.
        bound_p95_ms: at the very best: what the lever is aimed at takes no time, and no request waits for another.
        capacity: requests per second that no resource allows more than, with this lever alone; None: not known.
        after_p95_ms: best and worst with those of smaller order pulled too; None where order is 0.
        basis: what the range rests on; figures from elsewhere begin with "prior:".
    """

    lever: str
    order: int
    reason: str
    p95_ms: tuple[float, float] | None
    bound_p95_ms: float
    capacity: float | None = None
    after_p95_ms: tuple[float, float] | None = None
    basis: tuple[str, ...] = ()

    @property
    def worth(self) -> bool:
        """Whether it is among those to pull."""
        return self.order > 0


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a latency, and what not.

    Attributes:
        rate: requests per second that were recorded.
        percentile: the one that ``p95_ms`` is about: that of the SLO where it has one.
        limit_ms: the SLO's; None: there is none.
        p95_ms: the percentile as it was measured.
        capacity, limited_by: requests per second that no resource allows more than, and which that is.
        levers: those to pull, in order, then the others.
        summary: what to do and what not, in sentences.
        notes: what makes the figures weaker than they look.
        doubts: why they are not to be believed as they stand, to be read before them.
    """

    rate: float
    percentile: str
    limit_ms: float | None
    p95_ms: float
    capacity: float | None
    limited_by: str
    levers: tuple[LeverAdvice, ...]
    summary: tuple[str, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def advise(
    recording: Recording,
    *,
    known: LeverAssumptions,
    slo: Objectives | None = None,
    diversity: Diversity | None = None,
    found: Attribution | None = None,
) -> Advice | None:
    """Say what each lever can win at the recorded rate, and which to pull.

    Args:
        known: see ``known.know``.
        slo: what counts is its latency objective that is missed by most, or has least to spare; None: the p95 as low
            as it gets.
        diversity: of the payloads.
        found: the recording's attribution where that is at hand.

    Returns:
        None where no request was answered.
    """
    found = attribute(recording) if found is None else found
    if not len(found.flat.requests):
        return None
    work = read_work(recording, found, known)
    inputs = read_inputs(work, found, recording, diversity, slo)
    refused = {lever: _refusal(lever, work, known, inputs) for lever in LEVERS}
    ordered = _order(work, [lever for lever in LEVERS if not refused[lever]], known, inputs, recording.rate)
    pulled = _pull_in_order(work, ordered, known, inputs.share, recording.rate)
    together = _pull_together(work, ordered, known, inputs.share, recording.rate)
    levers = [_advise_one(work, lever, known, inputs, refused[lever], pulled, recording.rate) for lever in LEVERS]
    levers.sort(key=lambda one: (one.order == 0, one.order))
    notes, doubts = _caveats(recording, diversity)
    return Advice(
        rate=recording.rate,
        percentile=inputs.percentile,
        limit_ms=inputs.limit_ms,
        p95_ms=work.percentile_ms(inputs.share),
        capacity=_finite(work.capacity),
        limited_by=work.limit,
        levers=tuple(levers),
        summary=_summary(levers, inputs, work, together),
        notes=notes,
        doubts=doubts,
    )


# -- Which levers ------------------------------------------------------------------------------------------------------


def _refusal(lever: LeverName, work: RequestWork, known: LeverAssumptions, inputs: AdviceInputs) -> str:
    """Say why a lever is not to be pulled; empty where its bound decides."""
    if lever == "prediction cache" and inputs.writes:
        return f"not safe: requests write ({inputs.writes}), but a request answered by a cache would not"
    if unknown := _unknown(lever, work, known, inputs):
        return f"{_NOT_KNOWN}{unknown}"
    if nothing := _no_target(lever, work, known, inputs):
        return f"not worth it: {nothing}"
    if inputs.met:
        return f"not needed: the SLO is met ({figure(inputs.seen_ms)} of {figure(inputs.limit_ms or 0.0)} ms)"
    return ""


def _unknown(lever: LeverName, work: RequestWork, known: LeverAssumptions, inputs: AdviceInputs) -> str:
    """Say why the effect of a lever is not known: it then has a bound, and no place in the order."""
    stages: Mapping[str, tuple[Stage, ...]] = {
        "preprocessing": () if work.steps else (Stage.PREPROCESS,),
        **dict.fromkeys(("runtime", "INT8", "batching"), () if work.models_ns else (Stage.MODEL,)),
        **dict.fromkeys(("feature cache", "concurrent I/O"), () if inputs.fetches else tuple(FETCHING)),
    }
    if unseen := next((inputs.unseen[stage] for stage in stages.get(lever, ()) if stage in inputs.unseen), ""):
        return unseen
    if lever == "prediction cache" and not known.prediction_hits:
        return "what repeats: give payloads"
    if lever == "feature cache" and inputs.fetches:
        return known.feature_doubt if known.feature_hits else "what repeats: give payloads"
    factors = {"runtime": runtime_factor, "INT8": int8_factor}
    if lever in factors and work.models_ns and factors[lever](work, known) is None:
        what = f"what leaving {known.family} wins" if known.family else "the runtime that the model runs on"
        return f"{'what INT8 wins for it' if lever == 'INT8' else what}; `tailcut build` measures it"
    slow = _slow_steps(work)
    if lever == "preprocessing" and slow and not slow[0].known:
        return _slow_words(work, known)
    return ""


def _no_target(lever: LeverName, work: RequestWork, known: LeverAssumptions, inputs: AdviceInputs) -> str:
    """Say that there is nothing for the lever to win."""
    if lever in ("feature cache", "concurrent I/O") and not inputs.fetches:
        nothing = "no request fetches from a database, a cache or an address"
        code = near_share(work, inputs, Stage.CODE)
        return f"{nothing}; {_own_code(code)}" if lever == "feature cache" and code >= LARGE_CODE else nothing
    if lever in ("runtime", "INT8", "batching"):
        return _no_model(lever, work, known, inputs) if work.models_ns else "no model was seen"
    said = ""
    if lever == "concurrent I/O" and inputs.fetches < 2:
        said = "no request fetches more than once"
    elif lever == "concurrent I/O" and not work.at_once_share.any():
        said = "each request's fetches already run concurrently, or write"
    elif lever in ("feature cache", "prediction cache") and _hits(lever, known) < AGAINST:
        said = f"{_hits(lever, known):.1%} of the requests repeat, fewer than {AGAINST:.0%}"
    elif lever == "preprocessing" and not _slow_steps(work):
        said = "no transformer and no tokenizer was seen"
        if work.steps:
            said = f"{work.steps[0].named} is {work.steps[0].share:.1%} of the time"
    elif lever == "more executors" and known.cores < 2:
        said = "there is one core"
    return said


def _no_model(lever: LeverName, work: RequestWork, known: LeverAssumptions, inputs: AdviceInputs) -> str:
    on_gpu, few = known.family == TORCH_ON_GPU, [known.products[one] for one in work.models_ns if one in known.products]
    said = ""
    if lever == "batching":
        said = f"requests are already batches: {inputs.rows:.0f} rows each" if inputs.rows >= MANY_ROWS else ""
    elif lever == "runtime":
        factor = runtime_factor(work, known)
        if factor is not None and factor.mid <= 1.0:
            graph = "a CUDA graph would take as long as a run does; `tailcut build` tells what half precision wins"
            said = graph if on_gpu else "the model already runs on its own runtime"
    elif (int8 := int8_factor(work, known)) is None or int8.high > 1.0:
        said = ""
    elif on_gpu:
        said = "INT8 variants are for the processor; half precision comes with the runtimes for a GPU"
    elif all(known.libraries.get(label, known.family) in priors.NO_PRODUCTS for label in work.models_ns):
        said = "INT8 speeds up products with large matrices, and trees and linear models have none"
    elif few:
        said = f"INT8 speeds up products with weights, {few[0]:.0%} of the operators' time"
    else:
        said = "a model this small gains nothing from INT8"
    return said


def _hits(lever: LeverName, known: LeverAssumptions) -> float:
    """Share of the look-ups that a cache answers."""
    hits = known.feature_hits if lever == "feature cache" else known.prediction_hits
    return float(np.mean([float(one) for one in hits.values()])) if hits else 0.0


def _slow_steps(work: RequestWork) -> list[Steps]:
    return [one for one in work.steps if one.share >= _SLOW_STEP]


class _Pulled(NamedTuple):
    """A lever that is pulled after those of smaller order.

    Attributes:
        for_capacity: it is among them for the capacity alone.
        best_ms, worst_ms, bound_ms: the percentile by then.
    """

    order: int
    for_capacity: bool
    best_ms: float
    worst_ms: float
    bound_ms: float


def _order(
    work: RequestWork, allowed: Sequence[LeverName], known: LeverAssumptions, inputs: AdviceInputs, rate: float
) -> dict[LeverName, bool]:
    """Order levers by how much they can win at most, given those before them; then those that add capacity: True.

    Of levers that are aimed at the same time, that with the better figures comes first. The second is pulled where the
    first one's figures at best leave something to win.
    """
    left, ordered = list(allowed), dict[LeverName, bool]()

    def gains(lever: LeverName) -> tuple[float, float]:
        best = shorten_queues(work, pull(work, lever, known, "best"), rate, "best")
        bound_ms, best_ms = (one.percentile_ms(inputs.share) for one in (pull(work, lever, known, "bound"), best))
        return round(now_ms - bound_ms, 6), now_ms - best_ms

    while left:
        now_ms = work.percentile_ms(inputs.share)
        tried = {lever: gains(lever) for lever in left}
        worth = [lever for lever in left if tried[lever][1] > WORTH * now_ms]
        if worth:
            first = max(worth, key=lambda lever: tried[lever])
        else:
            more = {lever: pull(work, lever, known, "best").capacity for lever in left}
            first = max(left, key=lambda lever: more[lever])
            if work.capacity >= _ENOUGH * rate or more[first] <= (1 + _MORE_CAPACITY) * work.capacity:
                break
        ordered[first] = not worth
        left.remove(first)
        work = shorten_queues(work, pull(work, first, known, "best"), rate, "best")
    return ordered


def _pull_in_order(
    work: RequestWork, ordered: Mapping[LeverName, bool], known: LeverAssumptions, share: float, rate: float
) -> dict[LeverName, _Pulled]:
    ends: tuple[End, End, End] = ("best", "worst", "bound")
    left = dict.fromkeys(ends, work)
    found = {}
    for order, (lever, for_capacity) in enumerate(ordered.items(), 1):
        left = {end: pull(left[end], lever, known, end) for end in ends}
        best, worst, bound = (shorten_queues(work, left[end], rate, end).percentile_ms(share) for end in ends)
        found[lever] = _Pulled(order, for_capacity, best, max(best, worst), min(best, bound))
    return found


def _pull_together(
    work: RequestWork, ordered: Mapping[LeverName, bool], known: LeverAssumptions, share: float, rate: float
) -> _Pulled:
    """Pull all of them and the serving path, which every deployment has.

    The bound leaves out the pilot's own code as well: a deployment may need none of it.
    """
    served: dict[LeverName, bool] = {**ordered}
    served.setdefault("serving path", False)
    bare_ns = work.stage_ns.copy()
    bare_ns[:, STAGE_AT[Stage.CODE]] = 0.0
    whole, bare = (
        list(_pull_in_order(one, served, known, share, rate).values())[-1]
        for one in (work, replace(work, stage_ns=bare_ns))
    )
    return whole._replace(bound_ms=min(whole.bound_ms, bare.bound_ms))


def _advise_one(
    work: RequestWork,
    lever: LeverName,
    known: LeverAssumptions,
    inputs: AdviceInputs,
    refused: str,
    pulled: Mapping[LeverName, _Pulled],
    rate: float,
) -> LeverAdvice:
    now_ms = work.percentile_ms(inputs.share)
    ends: tuple[End, End, End] = ("bound", "best", "worst")
    left = {end: pull(work, lever, known, end) for end in ends}
    bound, best, worst = (shorten_queues(work, left[end], rate, end).percentile_ms(inputs.share) for end in ends)
    capacity = max(left["bound"].capacity, work.capacity)
    mine = pulled.get(lever)
    reason = refused
    if not reason:
        slow = f"{_slow_words(work, known)}; " if lever == "preprocessing" else ""
        reason = f"{slow}{inputs.percentile} {figure(now_ms)} -> {span(best, worst)} ms"
        if lever == "concurrent I/O":
            reason += ", where no fetch needs another's answer"
        if mine is not None and mine.for_capacity:
            reason = f"for the capacity, at most {figure(work.capacity)} -> {figure(capacity)}/s; {reason}"
        if mine is None:
            little = _weakness(lever, work, inputs)
            alone = now_ms - best <= WORTH * now_ms
            reason = f"not worth it: {little}{reason}" if alone else f"those above win the same time; alone {reason}"
    return LeverAdvice(
        lever=lever,
        order=mine.order if mine is not None else 0,
        reason=reason,
        p95_ms=None if refused.startswith(_NOT_KNOWN) else (best, max(best, worst)),
        bound_p95_ms=min(bound, best, now_ms),
        capacity=_finite(capacity),
        after_p95_ms=(mine.best_ms, mine.worst_ms) if mine is not None else None,
        basis=_basis(lever, work, known),
    )


def _weakness(lever: LeverName, work: RequestWork, inputs: AdviceInputs) -> str:
    """Say why a lever gains little; empty where nothing in particular is known."""
    model, code = near_share(work, inputs, Stage.MODEL), near_share(work, inputs, Stage.CODE)
    if lever in ("runtime", "INT8", "batching") and model < WORTH:
        return f"the model is {model:.1%} of the time; "
    if lever == "feature cache" and code >= LARGE_CODE and code > near_share(work, inputs, *FETCHING):
        return f"fetches are a small part; {_own_code(code)}; "
    return ""


def _own_code(share: float) -> str:
    return (
        f"your own code is {share:.0%} of the time: features that it computes of repeating entities are cached too"
        " (see bound)"
    )


# -- Words -------------------------------------------------------------------------------------------------------------


def figure(value: float) -> str:
    """Three digits, and no power of ten."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def span(low: float, high: float) -> str:
    """A range; one figure where both ends read the same."""
    ends = figure(low), figure(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _slow_words(work: RequestWork, known: LeverAssumptions) -> str:
    """Say which steps are slow, what each takes, and what to do about the slowest."""
    first, *others = _slow_steps(work)
    more = f" (then {', '.join(f'{one.named}, {one.mean_ms:.3g} ms' for one in others[:2])})" if others else ""
    if first.known >= 0.5:
        way = f"move it into the graph (`tailcut build`), where {first.left_ms:.2g} ms are left of it, measured here"
    elif first.label.endswith(("__call__", "encode", "encode_plus")):
        way = "make it faster (a fast tokenizer, shorter texts), and measure what that wins"
    elif known.refused:
        way = "vectorise it, or move out what has no exact form in a graph; what that wins is not known"
    else:
        way = "vectorise it, or move it into the graph if `tailcut build` converts it; what that wins is not known"
    return f"{first.named} takes {first.mean_ms:.3g} ms of a request, {first.share:.0%}: {way}{more}"


def _basis(lever: LeverName, work: RequestWork, known: LeverAssumptions) -> tuple[str, ...]:
    """Say what a range rests on."""
    found: tuple[str, ...] = ("as recorded, and no fetch needs another's answer",)
    if lever in ("feature cache", "prediction cache"):
        life_s = FEATURE_LIFE_S if lever == "feature cache" else PREDICTION_LIFE_S
        found = (f"{_hits(lever, known):.0%} hits, as the payloads repeat within {life_s:g} s",)
    elif lever == "preprocessing":
        left = "{:.3g} once what was converted is in the graph"
        steps = [
            f"{one.label}: {one.mean_ms:.3g} ms measured,"
            f" {left.format(one.left_ms) if one.known else 'what is left is not known'}"
            for one in _slow_steps(work)
        ]
        found = (*steps, *(f"no exact form in a graph: {why}" for why in known.refused))
    elif lever in ("runtime", "INT8"):
        factor = runtime_factor(work, known) if lever == "runtime" else int8_factor(work, known)
        found = (_said(factor, "{:.3g} times quicker ({:.3g} to {:.3g})"),) if factor is not None else ()
    elif lever == "batching":
        share_of_row = known.batch_share or priors.batch_prior(known.family)
        found = (_said(share_of_row, "{:.0%} of a row's time is shared by a batch ({:.0%} to {:.0%})"),)
    elif lever == "serving path":
        found = (_said(priors.PATH, "{:.2f} ms of a core a request in tailcut's path ({:.2f} to {:.2f})"),)
    elif lever == "more executors":
        found = (f"{min(PROCESSES, known.cores)} processes on {known.cores} cores",)
    return found


def _said(prior: Prior, text: str) -> str:
    if prior.measured:
        return f"{text.partition(' (')[0].format(prior.mid)}, {prior.source}"
    return f"prior: {text.format(prior.mid, prior.low, prior.high)}; {prior.source}"


def _summary(
    levers: Sequence[LeverAdvice], inputs: AdviceInputs, work: RequestWork, together: _Pulled
) -> tuple[str, ...]:
    """Say what to do and what not.

    Args:
        together: see ``_pull_together``.
    """
    lines = []
    if inputs.failed:
        lines.append(
            f"{inputs.failed} requests failed; that alone misses the SLO, and no lever changes it: begin there"
        )
    if inputs.met and inputs.limit_ms is not None:
        lines.append(f"the SLO is met: {figure(inputs.seen_ms)} of {figure(inputs.limit_ms)} ms: nothing needs doing")
        return tuple(lines)
    if inputs.limit_ms is not None and not inputs.missed and not inputs.failed:
        said = f"the SLO is met as it was measured, {figure(inputs.seen_ms)} of {figure(inputs.limit_ms)} ms"
        lines.append(f"{said}; at most {figure(work.capacity)} requests/s are possible, limited by {work.limit}")
    lines += inputs.hints
    ordered = [one for one in levers if one.order]
    if ordered:
        lines.append("in this order: " + ", ".join(one.lever for one in ordered))
        lines += [f"preprocessing: {one.reason}" for one in ordered if one.lever == "preprocessing"]
    else:
        lines.append("none of these levers wins much: look at what takes the time")
    if inputs.missed and ordered and inputs.limit_ms is not None:
        path = "" if any(one.lever == "serving path" for one in ordered) else " and tailcut's serving path"
        if together.bound_ms > inputs.limit_ms:
            lines.append(
                f"{inputs.aim} is not met by all of them{path} together: no less than {figure(together.bound_ms)} ms"
            )
        else:
            reached = span(together.best_ms, together.worst_ms)
            lines.append(f"with all of them{path} {reached} ms; `tailcut ladder` measures what each really wins")
    left = sorted((one for one in levers if not one.order), key=lambda one: not one.reason.startswith(_NOT_KNOWN))
    lines += [f"{one.lever}: {one.reason}" for one in left]
    return tuple(lines)


def _caveats(recording: Recording, diversity: Diversity | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Say what makes the figures weaker than they look, and why they are not to be believed as they stand."""
    notes = []
    if diversity is not None and diversity.span_s < FEATURE_LIFE_S:
        notes.append(
            f"the payloads span {diversity.span_s:.0f} s, a cached value {FEATURE_LIFE_S:g} s: of a longer log more"
            " repeats"
        )
    core_s = max(int(recording.machine.get("cores", "1")), 1) * recording.pilot.window_s
    others = recording.pilot.others_s / core_s if core_s else 0.0
    used = f"other processes used {others:.0%} of this machine's cores meanwhile"
    if others:
        notes.append(used)
    doubt = f"{used}, more than {_OTHERS:.0%}: part of the waits is theirs; repeat it on a quiet machine"
    return tuple(notes), (doubt,) if others > _OTHERS else ()


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


# -- What decides beside the work --------------------------------------------------------------------------------------


# Whether the SLO is met, and what requests ask for and change.

_HEADROOM = 1.2
"""Capacity over the rate from which on nothing needs doing."""
_SOME = 0.01
"""Of the requests, or of their time: less is no reason for a sentence or a refusal."""
_LONGEST = 60
_FEW_KEYS = 10
"""Requests' worth of keys: an object that has no more in all of a log holds columns, not rows."""
_REPEATED = 0.5


@dataclass(frozen=True, kw_only=True)
class AdviceInputs:
    """What decides beside the work.

    Attributes:
        aim: what is to be met, in words; empty: there is no SLO.
        percentile, share: its name, and the share of the requests that it is about.
        limit_ms: of the percentile; None: there is no SLO.
        seen_ms: the percentile of all requests, as measured; infinite where it failed.
        met: all of the SLO is met as it was measured, with capacity to spare; ``missed``: its percentile is not.
        failed: requests that failed where that alone misses the SLO.
        near: the requests near the percentile.
        fetches, writes: most fetches of one request; a statement that changes a database, empty: hardly any does.
        rows: that a request asks about, on average.
        unseen: by stage, why what of it ran is not known.
        hints: what comes before any lever, in sentences.
    """

    aim: str
    percentile: str
    share: float
    limit_ms: float | None
    seen_ms: float
    met: bool
    missed: bool
    failed: int
    near: Ints
    fetches: int
    writes: str
    rows: float
    unseen: Mapping[Stage, str]
    hints: tuple[str, ...]


def near_share(work: RequestWork, inputs: AdviceInputs, *stages: Stage) -> float:
    """Share of the time of the requests near the percentile."""
    near_ns = work.stage_ns[inputs.near]
    return float(near_ns[:, [STAGE_AT[stage] for stage in stages]].sum() / (near_ns.sum() or 1.0))


def read_inputs(
    work: RequestWork,
    found: Attribution,
    recording: Recording,
    diversity: Diversity | None,
    slo: Objectives | None,
) -> AdviceInputs:
    """Judge the SLO by what was measured, and gather what else decides.

    Args:
        slo: its objective that counts is the percentile that is missed by most, or has least to spare; None: the p95.
    """
    all_ms = answered_ms(recording)
    failed = len(recording.requests) - len(all_ms)
    findings = judge_wall(slo, all_ms, failed) if slo is not None else ()
    objective = _strictest(slo.latency, findings) if slo is not None and slo.latency else None
    unmended = any(not one.met and (one.unit == "%" or one.seen is None) for one in findings)
    share = objective.share if objective else 0.95
    near = near_percentile(found.flat.wall_ns / 1e6, share)
    limit_ms = objective.limit_s * 1e3 if objective else None
    missed = any(one.objective == objective.name and not one.met for one in findings) if objective else False
    whole = objective is None or (len(findings) == 1 and not unmended)
    aim = "the SLO" if whole or objective is None else f"the SLO's {objective.name} of {objective.limit_s * 1e3:g} ms"
    blocking = blocking_code(recording, found.flat)
    return AdviceInputs(
        aim=aim if objective else "",
        percentile=objective.name if objective else "p95",
        share=share,
        limit_ms=limit_ms,
        seen_ms=percentile(np.concatenate([all_ms, np.full(failed, np.inf)]), share),
        met=bool(findings) and all(one.met for one in findings) and work.capacity >= _HEADROOM * recording.rate,
        missed=missed,
        failed=failed if unmended else 0,
        near=near,
        fetches=most_fetches(found),
        writes=_writes(found),
        rows=_rows(diversity),
        unseen=_unseen(recording, found),
        hints=(*blocking, *repeated_fetches(found), *own_code(recording, found, near, blocking)),
    )


def _strictest(objectives: Sequence[LatencyObjective], findings: Sequence[SloFinding]) -> LatencyObjective:
    """Return the objective that is missed by most, or has least to spare; ``findings`` begin with theirs."""
    strictness = [float("inf") if one.seen is None else one.seen / one.limit for one in findings]
    return objectives[int(np.argmax(strictness[: len(objectives)]))]


def _unseen(recording: Recording, found: Attribution) -> dict[Stage, str]:
    """Say of each stage why what of it ran is not known."""
    words = background_words(recording.background_calls, recording.duration_s)
    unseen = {
        stage: f"{ran} for no request in particular, so the wait of a request for it is unknown"
        for stage, ran in words.items()
    }
    if any(name.stage == Stage.WAIT and name.label.startswith(PROCESS_POOL) for name in found.flat.names):
        for stage in (Stage.PREPROCESS, Stage.MODEL, *FETCHING):
            unseen.setdefault(stage, "requests wait for a process pool, and what its workers do is not seen")
    return unseen


def _writes(found: Attribution) -> str:
    """Name a statement that requests change a database with; empty where hardly any request does."""
    flat = found.flat
    spans = np.flatnonzero(flat.which(is_write))
    if len(np.unique(flat.request[spans])) < max(_SOME * len(flat.requests), 1):
        return ""
    names = [flat.names[number] for number in flat.name[spans].tolist()]
    text = Counter(shown_label(name.stage, name.label) for name in names).most_common(1)[0][0]
    return _cut(text, _LONGEST)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _rows(diversity: Diversity | None) -> float:
    """Things that a request asks about, on average."""
    if diversity is None or not diversity.requests:
        return 1.0
    streams = {stream.name: stream for stream in diversity.streams[1:]}
    telling = [one for one in streams.values() if not one.constant]
    telling = [one for one in telling if not _in_columns(one, streams, diversity.requests)]
    return max((one.lookups for one in telling), default=diversity.requests) / diversity.requests


def _in_columns(stream: Stream, streams: Mapping[str, Stream], requests: int) -> bool:
    """Tell whether what looks like a table on a look-up's way has the same few names in all requests."""
    for path in tables_of(stream.name):
        keys = streams.get(f"{path}{{}}")
        if keys and keys.repeats >= _REPEATED and keys.distinct * requests <= _FEW_KEYS * keys.lookups:
            return True
    return False


# -- Blocking calls ----------------------------------------------------------------------------------------------------


# Code that holds the event loop: whatever it does meanwhile, no other request is taken in or goes on.

_MUCH = 0.05
"""Of all time: less is not worth a sentence."""
_LONG_NS = 2e6
"""On average: what is shorter is a handler's usual work."""
_MOST = 3


def blocking_code(recording: Recording, flat: Flat) -> tuple[str, ...]:
    """Name the user's code that holds the event loop for long, and much of the time.

    What the framework does for an endpoint that runs in a thread, such as encoding its reply, has the endpoint's name
    there and is not its code.

    Returns:
        Sentences, those first that hold it most.
    """
    on_loop = np.bincount(flat.name, weights=flat.thread == 0, minlength=len(flat.names)) > 0
    threaded = {
        (name.label, name.place)
        for name, there in zip(flat.names, on_loop.tolist(), strict=True)
        if name.stage == Stage.CODE and not there
    }
    held: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for one in recording.moments:
        if one.stage == Stage.LOOP and one.place and (one.label, one.place) not in threaded:
            held[one.label, one.place].append(one.end_ns - one.start_ns)
    lines = []
    for (label, place), took_ns in held.items():
        whole_ns, mean_ns = sum(took_ns), sum(took_ns) / len(took_ns)
        share = whole_ns / (recording.duration_s * 1e9)
        if share >= _MUCH and mean_ns >= _LONG_NS:
            line = (
                f"{label} ({place}) holds the event loop for {mean_ns / 1e6:.3g} ms at a time, {share:.0%} of all "
                "time, while all other requests wait: use await for its waits, run it in a thread (a handler without "
                "async "
                "runs in "
                "one), or move Python computation to another process; no lever does this"
            )
            lines.append((share, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])


# -- Repeated queries --------------------------------------------------------------------------------------------------


# Statements that one request runs again and again: N+1 queries, and answers that are not kept.

_OFTEN = 3.0
"""Times a request, of those requests that run it."""
_AROUND = 0.2
"""Of all requests' time, from the first to the last of them, where they themselves take little."""
_OVERLAP = 0.1
_LONGEST_QUERY = 90


def repeated_fetches(found: Attribution) -> tuple[str, ...]:
    """Name statements that requests run at least three times, one after the other, and that take their time so.

    Returns:
        Sentences, those first that take most time.
    """
    flat = found.flat
    took_ns, groups = grouped_calls(flat, is_fetch)
    wall_ns = float(flat.wall_ns.sum())
    lines = []
    for name, calls in groups.items():
        spans = calls[np.lexsort((flat.start_ns[calls], flat.request[calls]))]
        times = len(spans) / max(len(np.unique(flat.request[spans])), 1)
        share = float(took_ns[spans].sum()) / wall_ns if wall_ns else 0.0
        same = flat.request[spans][1:] == flat.request[spans][:-1]
        overlap_ns = np.maximum(flat.end_ns[spans][:-1] - flat.start_ns[spans][1:], 0)[same].sum()
        around = _from_first_to_last_ns(flat, spans) / wall_ns if wall_ns else 0.0
        much = share >= _MUCH or (share >= _SOME and around >= _AROUND)
        if times < _OFTEN or not much or overlap_ns > _OVERLAP * took_ns[spans].sum():
            continue
        text = _cut(name.label, _LONGEST_QUERY)
        where = f" ({name.place})" if name.place else ""
        line = (
            f"{text}{where} runs {times:.3g} times a request, one after the other, {share:.0%} of the time and"
            f" {around:.0%} with the code in between: keep the answer where it is the same, else ask for all in one"
            " call, to save both; no lever does this"
        )
        lines.append((around, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])


def _from_first_to_last_ns(flat: Flat, spans: Ints) -> float:
    """How long it takes from the start of a request's first one to the end of its last, all requests together."""
    count = len(flat.requests)
    first_ns, last_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first_ns, flat.request[spans], flat.start_ns[spans])
    np.maximum.at(last_ns, flat.request[spans], flat.end_ns[spans])
    asking = np.unique(flat.request[spans])
    return float((last_ns[asking] - first_ns[asking]).sum())


# -- The user's own code -----------------------------------------------------------------------------------------------


# Code that takes much of the slowest requests: no lever makes it quicker.

LARGE_CODE = 0.2
"""Of the time of the requests near the percentile: from there on it is worth a word."""
_NAMED = 0.5
"""Of the samples in it: such a function is named."""


def own_code(recording: Recording, found: Attribution, near: Ints, hints: Sequence[str] = ()) -> tuple[str, ...]:
    """Name the function of the user's that takes most of the requests near the percentile, where that is much.

    What it awaited is no part of it.

    Args:
        near: places of these requests.
        hints: what is said already: of code that holds the event loop nothing more is.

    Returns:
        One sentence, or none.
    """
    ran_ns = np.maximum(found.self_ns - awaited_ns(found, recording), 0.0)
    code = {name: took_ns for name, took_ns in by_name(found, near, ran_ns).items() if name.stage == Stage.CODE}
    if not len(near) or not code:
        return ()
    name = max(code, key=lambda one: code[one])
    share = code[name] / float(found.flat.wall_ns[near].sum())
    if share < LARGE_CODE or not name.place or any(f"({name.place})" in hint for hint in hints):
        return ()
    seen = functions_of(recording).get((name.label, name.place), ())
    inside = f", mostly in {seen[0].function}" if seen and seen[0].share >= _NAMED else ""
    return (
        f"{name.label} ({name.place}) is your own code and takes {code[name] / len(near) / 1e6:.3g} ms of a request"
        f" near the percentile, {share:.0%} of it{inside}: make it faster; no lever does this, except that a feature "
        "cache keeps features of repeating entities",
    )
