"""A recording as a latency budget: which stage takes what, of requests as slow as the percentile that matters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from tailcut.common.slo import Objectives, SloFinding, judge
from tailcut.common.statistics import Percentiles, percentile, rank, summarise
from tailcut.profiler.attribution.awaiting import awaited_ns, poorly_seen
from tailcut.profiler.attribution.calls import CallTotals, calls_of, shown_label
from tailcut.profiler.attribution.functions import FunctionShare, SpanName, functions_of, holders_of
from tailcut.profiler.attribution.gaps import lateness_ns
from tailcut.profiler.attribution.model_steps import ModelStep, steps_of
from tailcut.profiler.attribution.span_table import STAGES, Floats, Ints, Name, answered_ms
from tailcut.profiler.attribution.stages import Attribution, attribute
from tailcut.profiler.records import Recording, Stage
from tailcut.report.ladder.perception import perception

LEAST_NEAR = 20
_NEAR = (0.93, 0.97)
_MOST_FUNCTIONS = 5
_LEAST_AWAITED = 0.1
"""Of a function's time: below, it is not worth a line of its own."""
_MUCH, _LEAST_USERS = 0.2, 0.1
"""Where a framework takes so much, functions of the user's in so many of its samples may be why."""
_FRAMEWORKS = (Stage.FRAMEWORK, Stage.UNATTRIBUTED)
"""What a framework does itself; of one without a hook its handlers on the event loop, too."""
_UNNAMED = {
    Stage.NETWORK: "between client and server",
    Stage.ACCEPT: "sent, but the server had not begun: its event loop was busy, or had no core",
    Stage.WAIT: "a free core",
    Stage.LOOP: "others' work on the event loop",
    Stage.GC: "collection of garbage",
    Stage.UNATTRIBUTED: "unknown",
}
"""Labels of what belongs to no span."""


class StageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stage over all requests, and its part of those near the p95.

    Attributes:
        mean_ms, p50_ms, p95_ms, p99_ms: of the stage's own time per request; percentiles do not add up.
        near_ms: mean over the requests near the p95: these add up to ``Budget.near_ms``.
        near_share: of the time of the requests near the p95.
    """

    stage: Stage
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    near_ms: float
    near_share: float


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """Something by name that takes time of the requests near the p95.

    Attributes:
        label, place: query, URL, model or function, and where it is called from.
        near_ms: per request near the p95; what runs inside it is not counted.
        near_share: of the time of the requests near the p95.
        functions: of user code those that samples saw, of waits for the event loop what held it; most time first.
        awaits: the function awaited something that is not hooked: this is time in which nothing of it ran.
    """

    stage: Stage
    label: str
    place: str
    near_ms: float
    near_share: float
    functions: tuple[FunctionShare, ...] = ()
    awaits: bool = False


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a recording's requests goes.

    Attributes:
        answered, failed: requests; the failed ones are not in any other figure but the SLO's.
        wall: of the answered, from the intended send time.
        lines: per stage that took any time, in the order of ``Stage``.
        near: how many requests near the p95 the shares rest on.
        near_from_ms, near_to_ms: the fastest and the slowest of them.
        near_ms: their mean.
        culprits: what takes their time, by name, most first.
        calls, steps: queries and the like, by total time; steps of models, each above those that it calls.
        perception: share of the answered requests per name in ``PERCEPTION_MS``.
        findings: the SLO's objectives, one by one; empty without an SLO.
        notes: what makes the figures weaker than they look.
    """

    answered: int
    failed: int
    wall: Percentiles | None
    lines: tuple[StageLine, ...]
    near: int
    near_from_ms: float
    near_to_ms: float
    near_ms: float
    culprits: tuple[Culprit, ...]
    calls: tuple[CallTotals, ...]
    perception: dict[str, float]
    findings: tuple[SloFinding, ...]
    notes: tuple[str, ...] = ()
    steps: tuple[ModelStep, ...] = ()

    @property
    def bottleneck(self) -> StageLine | None:
        """The stage that takes most of the requests near the p95; None where there are none."""
        return max(self.lines, key=lambda line: line.near_ms, default=None)

    def culprits_of(self, stage: Stage) -> tuple[Culprit, ...]:
        """What takes the time of one stage, most first."""
        return tuple(one for one in self.culprits if one.stage == stage)


def make_budget(recording: Recording, slo: Objectives | None = None, found: Attribution | None = None) -> Budget:
    """Draw up the budget of a recording.

    Args:
        slo: what it is judged by; None: by nothing.
        found: its attribution where that is at hand.
    """
    found = attribute(recording) if found is None else found
    wall_ms = found.flat.wall_ns / 1e6
    near = near_percentile(wall_ms)
    all_ms = answered_ms(recording)
    failed = len(recording.requests) - len(all_ms)
    lines = _lines(found, near)
    near_ms = float(wall_ms[near].mean()) if len(near) else 0.0
    culprits = _culprits(found, near, recording)
    return Budget(
        answered=len(all_ms),
        failed=failed,
        wall=summarise(all_ms),
        lines=lines,
        near=len(near),
        near_from_ms=float(wall_ms[near].min()) if len(near) else 0.0,
        near_to_ms=float(wall_ms[near].max()) if len(near) else 0.0,
        near_ms=near_ms,
        culprits=culprits,
        calls=calls_of(found),
        steps=steps_of(found, near),
        perception=perception(all_ms),
        findings=judge_wall(slo, all_ms, failed) if slo else (),
        notes=(*_notes(len(all_ms), len(near), failed), *(_unseen(culprits) if recording.samples else ())),
    )


def near_percentile(wall_ms: Floats, share: float = 0.95) -> Ints:
    """Choose the requests near a percentile: two points to each side, or with quicker ones as many as ``LEAST_NEAR``.

    Not with slower ones, as far as there are enough: of few requests those are whatever stalled the machine.
    """
    count = len(wall_ms)
    order = np.argsort(wall_ms, kind="stable")
    if not count:
        return order
    low, high = (rank(count, min(max(share + edge - 0.95, 0.0), 1.0)) for edge in _NEAR)
    if high - low + 1 < LEAST_NEAR:
        low = max(high - LEAST_NEAR + 1, 0)
        high = min(low + LEAST_NEAR, count) - 1
    return order[low : high + 1]


def judge_wall(slo: Objectives, wall_ms: Floats, failed: int) -> tuple[SloFinding, ...]:
    """Judge by an SLO; a request that failed is later than any limit."""
    count = len(wall_ms) + failed
    later = np.concatenate([wall_ms, np.full(failed, np.inf)])
    seen = {one.name: percentile(later, one.share) if count else None for one in slo.latency}
    return judge(slo, {name: None if ms == np.inf else ms for name, ms in seen.items()}, failed, count)


def _lines(found: Attribution, near: Ints) -> tuple[StageLine, ...]:
    whole_ns = float(found.flat.wall_ns[near].sum()) or 1.0
    lines = []
    for place, stage in enumerate(STAGES):
        took_ns = found.stage_ns[:, place]
        if not took_ns.any():
            continue
        near_ns = took_ns[near]
        lines.append(StageLine(
            stage=stage,
            mean_ms=float(took_ns.mean()) / 1e6,
            p50_ms=percentile(took_ns, 0.5) / 1e6,
            p95_ms=percentile(took_ns, 0.95) / 1e6,
            p99_ms=percentile(took_ns, 0.99) / 1e6,
            near_ms=float(near_ns.mean()) / 1e6,
            near_share=float(near_ns.sum()) / whole_ns,
        ))  # fmt: skip
    return tuple(lines)


def _culprits(found: Attribution, near: Ints, recording: Recording) -> tuple[Culprit, ...]:
    flat = found.flat
    if not len(near):
        return ()
    took_ns = by_name(found, near, found.self_ns)
    in_spans: defaultdict[Stage, float] = defaultdict(float)
    for name, spent_ns in took_ns.items():
        in_spans[name.stage] += spent_ns
    for place, stage in enumerate(STAGES):
        rest_ns = float(found.stage_ns[near, place].sum()) - in_spans[stage]
        if stage == Stage.NETWORK:
            for name, late_ns in _generators(found, near, recording, rest_ns):
                took_ns[name] += late_ns
                rest_ns -= late_ns
        if rest_ns > 0.5:
            took_ns[Name(stage, _UNNAMED.get(stage, ""), "")] += rest_ns
    awaited = awaited_ns(found, recording)
    waited_ns = {
        name: spent_ns
        for name, spent_ns in by_name(found, near, awaited).items()
        if spent_ns > _LEAST_AWAITED * took_ns[name]
    }
    functions = _functions(recording, poorly_seen(found, recording, awaited))
    whole_ns = float(flat.wall_ns[near].sum()) or 1.0
    parts = [(spent_ns - waited_ns.get(name, 0.0), name, False) for name, spent_ns in took_ns.items()]
    parts += [(spent_ns, name, True) for name, spent_ns in waited_ns.items()]
    ranked = sorted((one for one in parts if one[0] > 0), reverse=True)
    return tuple(
        Culprit(
            stage=name.stage,
            label=name.label,
            place=name.place,
            near_ms=spent_ns / len(near) / 1e6,
            near_share=spent_ns / whole_ns,
            functions=() if awaits else _shown(functions.get(name, ()), name.stage, spent_ns / whole_ns),
            awaits=awaits,
        )
        for spent_ns, name, awaits in ranked
    )


def _generators(found: Attribution, near: Ints, recording: Recording, most_ns: float) -> Iterator[tuple[Name, float]]:
    """Name what of the network's time the load generator itself was late."""
    for label, late_ns in lateness_ns(found.flat, beside=bool(recording.pilot.loop)).items():
        # What a background task did meanwhile is that task's.
        part_ns = min(float(late_ns[near].sum()), most_ns)
        most_ns -= part_ns
        if part_ns > 0.5:
            yield Name(Stage.NETWORK, label, ""), part_ns


def by_name(found: Attribution, near: Ints, spent_ns: Floats | Ints) -> defaultdict[Name, float]:
    """Sum what the chosen requests' spans took, by names without what differs from call to call."""
    flat = found.flat
    chosen = np.isin(flat.request, near)
    sums = np.bincount(flat.name[chosen], weights=spent_ns[chosen], minlength=len(flat.names))
    took_ns: defaultdict[Name, float] = defaultdict(float)
    for name, took in zip(flat.names, sums.tolist(), strict=True):
        took_ns[Name(name.stage, shown_label(name.stage, name.label), name.place)] += took
    return took_ns


def _functions(recording: Recording, doubted: frozenset[SpanName]) -> dict[Name, tuple[FunctionShare, ...]]:
    named = {
        Name(stage, *name): shares
        for name, shares in functions_of(recording).items()
        if name not in doubted
        for stage in ((Stage.CODE,) if name[1] else _FRAMEWORKS)
    }
    holders = holders_of(recording.moments)
    return named | {Name(stage, _UNNAMED[stage], ""): holders for stage in (Stage.LOOP, Stage.ACCEPT)}


def _shown(functions: tuple[FunctionShare, ...], stage: Stage, near_share: float) -> tuple[FunctionShare, ...]:
    if stage in _FRAMEWORKS:
        functions = tuple(one for one in functions if one.share >= _LEAST_USERS and near_share >= _MUCH)
    return functions[:_MOST_FUNCTIONS]


def _notes(answered: int, near: int, failed: int) -> tuple[str, ...]:
    notes = []
    if failed:
        notes.append(f"{failed} of {answered + failed} requests failed; the stages are those of the others")
    if near < LEAST_NEAR:
        notes.append(
            f"the shares near the p95 rest on only {near} requests, at least {LEAST_NEAR} are needed: measure longer"
        )
    return tuple(notes)


def _unseen(culprits: Iterable[Culprit]) -> Iterator[str]:
    """Name code of a tenth of the time and more of which stacks do not say which functions take it."""
    for one in culprits:
        if one.stage == Stage.CODE and one.near_share >= _LEAST_USERS and not one.functions and not one.awaits:
            yield f"{one.label} ({one.place}): too few stack samples to tell which functions take its time"
