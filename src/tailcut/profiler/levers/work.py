"""What requests take by stage, what a lever leaves of that, and how many requests a second there are cores for.

A lever removes time from the stages that it is aimed at, request by request, so that percentiles stay those of whole
requests. Waits for a core, a lock, a thread or the event loop shrink as in a queue with one server (M/M/1). How much of
them a lever really removes cannot be told from a recording; therefore every result is a range. The capacity is that of
the utilisation law: no resource is busy for more than all of the time (Denning and Buzen, "The Operational Analysis of
Queueing Network Models", 1978).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.awaiting import awaited_ns, ran_ns
from tailcut.profiler.attribution.calls import heads_of, is_around, is_fetch, is_write
from tailcut.profiler.attribution.functions import holders_of
from tailcut.profiler.attribution.model_steps import outermost_steps
from tailcut.profiler.attribution.span_table import STAGE_AT, STAGES, Flat, Floats, Ints
from tailcut.profiler.attribution.stages import Attribution, less_children, self_of
from tailcut.profiler.levers import priors
from tailcut.profiler.levers.known import LeverAssumptions
from tailcut.profiler.levers.priors import Prior, measured
from tailcut.profiler.records import FETCHING, TORCH_ON_GPU, Recording, Stage

LeverName = Literal[
    "serving path", "feature cache", "concurrent I/O", "preprocessing", "runtime", "INT8", "batching",
    "prediction cache", "more executors",
]  # fmt: skip
End = Literal["bound", "best", "worst"]
"""Which end of the range: what the lever is aimed at takes no time at all; as the best figures have it; the worst."""

PROCESSES = 4
"""How many "more executors" stands for, where the machine has the cores."""
_QUEUES = [STAGE_AT[one] for one in (Stage.WAIT, Stage.LOCK, Stage.LOOP, Stage.ACCEPT)]
_FETCHES = [STAGE_AT[one] for one in FETCHING]
_PATH = [STAGE_AT[one] for one in (Stage.RECEIVE, Stage.DECODE, Stage.FRAMEWORK, Stage.ENCODE)]
_ANSWERING = [*_FETCHES, *(STAGE_AT[one] for one in (Stage.PREPROCESS, Stage.MODEL, Stage.CODE, Stage.GC))]
"""What a request leaves out that a cache answers."""
_PYTHON = [STAGE_AT[one] for one in (Stage.DECODE, Stage.FRAMEWORK, Stage.CODE, Stage.ENCODE)]
"""Stages that are taken to hold the interpreter's lock while they compute: of one process, one thread at a time."""
_COMPUTES = frozenset({Stage.DECODE, Stage.PREPROCESS, Stage.MODEL, Stage.CODE, Stage.FRAMEWORK, Stage.ENCODE})
_MODEL, _CODE, _NETWORK, _FRAMEWORK, _REST = (
    STAGE_AT[one] for one in (Stage.MODEL, Stage.CODE, Stage.NETWORK, Stage.FRAMEWORK, Stage.UNATTRIBUTED)
)
_BUSIEST = 0.95
"""Beyond this utilisation a queue's length says how long it was measured, and nothing else."""
_TOUCHED = 0.01
_UNKNOWN = 0.05
"""Of the models' time: where more of it is that of models of which nothing is known, neither is of all."""
_FEW_PRODUCTS = 0.2
"""Of a model's operators: where INT8 addresses less of their time, it wins nothing."""


class Steps(NamedTuple):
    """A step of preprocessing by name, over all requests.

    Attributes:
        label, place: of its calls.
        mean_ms, share: of a request; of its time. With all that it calls.
        left_ms: of a request, once the parts that were timed in a graph are there.
        known: of its time, the share that was.
    """

    label: str
    place: str
    mean_ms: float
    share: float
    left_ms: float
    known: float

    @property
    def named(self) -> str:
        """Label and place."""
        return f"{self.label} at {self.place}" if self.place and self.place not in self.label else self.label


@dataclass(frozen=True, kw_only=True)
class RequestWork:
    """What requests take; a row for each that was traced and answered, n of them.

    Attributes:
        numbers: of the requests, shape [n].
        stage_ns: by stage, in the order of ``STAGES``; a row's sum is the request's latency, shape [n, stages].
        cached_share: of a request's fetches, the time of those that a feature cache answers, shape [n].
        at_once_share: of a request's fetches, the time that goes if all of them run at the same time, shape [n].
        steps_ns, steps_left_ns: in steps of preprocessing by stage, and what a graph leaves of that where it is known,
            all where it is not, shape [n, stages].
        steps: of preprocessing, the longest first.
        models_ns: of all requests together, by the label of the model's calls.
        cpu_ns, loop_ns: mean of a request by stage, on any core and on the event loop's thread, shape [stages]. What no
            span covers (the HTTP server, drivers, other threads of models) is ``UNATTRIBUTED``.
        cores, processes: that compute.
    """

    numbers: Ints
    stage_ns: Floats
    cached_share: Floats
    at_once_share: Floats
    steps_ns: Floats
    steps_left_ns: Floats
    steps: tuple[Steps, ...]
    models_ns: Mapping[str, float]
    cpu_ns: Floats
    loop_ns: Floats
    cores: int
    processes: int = 1

    def percentile_ms(self, share: float) -> float:
        """A percentile of the latency."""
        return percentile(self.stage_ns.sum(axis=1), share) / 1e6

    @property
    def model_ms(self) -> float:
        """A request's model time, the median of those that have any."""
        took_ns = self.stage_ns[:, _MODEL]
        return float(np.median(took_ns[took_ns > 0])) / 1e6 if took_ns.any() else 0.0

    @property
    def capacity(self) -> float:
        """Requests per second that no resource allows more than; infinite where nothing is known to compute."""
        return min(self._capacities.values())

    @property
    def limit(self) -> str:
        """The resource that the capacity ends at."""
        return min(self._capacities, key=lambda resource: self._capacities[resource])

    @property
    def _capacities(self) -> dict[str, float]:
        demands = {
            "the cores": (self.cpu_ns.sum(), self.cores),
            "the event loop's thread": (self.loop_ns.sum(), self.processes),
            "the interpreter, which runs one thread at a time": (self.cpu_ns[_PYTHON].sum(), self.processes),
        }
        return {name: float(count / ns) * 1e9 if ns > 0 else float("inf") for name, (ns, count) in demands.items()}


def read_work(recording: Recording, found: Attribution, known: LeverAssumptions) -> RequestWork:
    """Read what the answered requests take."""
    flat = found.flat
    fetching = flat.is_of(FETCHING)
    own_ns = found.self_ns.astype(np.float64)
    fetched_ns = _by_request(flat, np.where(fetching, own_ns, 0.0))
    cached_ns = _by_request(flat, np.where(fetching, own_ns, 0.0) * _cached(flat, known))
    steps_ns, steps_left_ns, steps = _read_steps(found, known)
    models_ns: defaultdict[str, float] = defaultdict(float)
    for number in np.flatnonzero([name.stage == Stage.MODEL for name in flat.names]).tolist():
        models_ns[flat.names[number].label] += float(own_ns[flat.name == number].sum())
    cpu_ns, loop_ns = _read_demands(recording, found)
    return RequestWork(
        numbers=np.array([one.number for one in flat.requests], dtype=np.int64),
        stage_ns=found.stage_ns.astype(np.float64),
        cached_share=_share(cached_ns, fetched_ns),
        at_once_share=_share(_at_once_ns(found), fetched_ns),
        steps_ns=steps_ns,
        steps_left_ns=steps_left_ns,
        steps=steps,
        models_ns=models_ns,
        cpu_ns=cpu_ns,
        loop_ns=loop_ns,
        cores=known.cores,
    )


def _at_once_ns(found: Attribution) -> Floats:
    """Return the time of each request that goes if all its fetches run at the same time, shape [n].

    Only the longest stays, whole: of fetches that already run at the same time each owns but a part of it.
    """
    flat = found.flat
    asks, heads = np.flatnonzero(flat.which(is_fetch)), heads_of(flat)
    whole_ns = less_children(flat, flat.end_ns - flat.start_ns) - found.delay_ns
    call_ns = np.bincount(heads[asks], weights=whole_ns[asks], minlength=len(heads))
    asked_ns, longest_ns = np.zeros(len(flat.requests)), np.zeros(len(flat.requests))
    np.add.at(asked_ns, flat.request[asks], found.self_ns[asks])
    np.maximum.at(longest_ns, flat.request[asks], call_ns[heads[asks]])
    asked_ns[flat.request[flat.which(is_write)]] = 0.0  # what is written goes by one connection, in its order
    return np.maximum(asked_ns - longest_ns, 0.0)


def _cached(flat: Flat, known: LeverAssumptions) -> Floats:
    """Return the share of each span that a feature cache answers, shape [spans]: nothing of what is no fetch.

    All of a fetch where nobody knows what repeats: only the bound uses it then.
    What stands around fetches, such as COMMIT, goes as far as all of its request's fetches do, and stays with writes.
    """
    share, least = np.zeros(len(flat.name)), np.ones(len(flat.requests))
    fetches, around, writes = (np.flatnonzero(flat.which(tell)) for tell in (is_fetch, is_around, is_write))
    hits = _feature_hits(np.array([one.number for one in flat.requests]), known)
    share[fetches] = hits[flat.request[fetches]]
    np.minimum.at(least, flat.request[fetches], share[fetches])
    least[np.setdiff1d(np.arange(len(least)), flat.request[fetches])] = 0.0
    least[flat.request[writes]] = 0.0
    share[around] = least[flat.request[around]]
    return share


def _feature_hits(numbers: Ints, known: LeverAssumptions) -> Floats:
    """Share of each request's fetches that a feature cache answers; all where that is not known, shape [n]."""
    if not known.feature_hits or known.feature_doubt:
        return np.ones(len(numbers))
    return np.array([known.feature_hits.get(number, 0.0) for number in numbers.tolist()])


def _read_steps(found: Attribution, known: LeverAssumptions) -> tuple[Floats, Floats, tuple[Steps, ...]]:
    flat = found.flat
    all_ns, left_ns = np.zeros(found.stage_ns.shape), np.zeros(found.stage_ns.shape)
    outer = outermost_steps(found, frozenset({Stage.PREPROCESS}))
    inside = (outer >= 0) & ~flat.is_of({Stage.MODEL})
    labels = [known.as_onnx.get(name.label) for name in flat.names]
    left = np.array([1.0 if one is None else 1.0 / one.mid for one in labels])[flat.name]
    told = np.array([one is not None for one in labels])[flat.name]
    own_ns = np.where(inside, found.self_ns, 0).astype(np.float64)
    np.add.at(all_ns, (flat.request, flat.stage), own_ns)
    np.add.at(left_ns, (flat.request, flat.stage), own_ns * left)
    count, total_ns = max(len(flat.requests), 1), float(flat.wall_ns.sum()) or 1.0
    steps = []
    of_name = np.where(inside, flat.name[np.maximum(outer, 0)], -1) if len(outer) else outer
    for number in np.unique(of_name[of_name >= 0]).tolist():
        mine = of_name == number
        took_ns, name = float(own_ns[mine].sum()), flat.names[number]
        if took_ns > 0:
            steps.append(Steps(
                name.label, name.place, took_ns / count / 1e6, took_ns / total_ns,
                float((own_ns * left)[mine].sum()) / count / 1e6, float(own_ns[mine & told].sum()) / took_ns,
            ))  # fmt: skip
    return all_ns, left_ns, tuple(sorted(steps, key=lambda one: -one.mean_ms))


def _read_demands(recording: Recording, found: Attribution) -> tuple[Floats, Floats]:
    """Return what a request computes by stage: on any core, and on the event loop's thread."""
    flat, count = found.flat, max(len(found.flat.requests), 1)
    told_ns = self_of(flat, flat.cpu_ns)
    awaited = awaited_ns(found, recording)
    busy_ns = np.where(flat.is_of(_COMPUTES), found.self_ns - awaited, 0.0)
    # Drivers that block hold the loop, those that await do not.
    held_ns = np.where(flat.is_of(FETCHING), np.minimum(ran_ns(found), found.self_ns), busy_ns)
    cpu_ns = np.where(told_ns >= 0, np.minimum(told_ns, found.self_ns), busy_ns)
    cpu, loop = np.zeros(len(STAGES)), np.zeros(len(STAGES))
    np.add.at(cpu, flat.stage, cpu_ns / count)
    if recording.pilot.loop:
        np.add.at(loop, flat.stage, np.where(flat.thread == 0, held_ns, 0.0) / count)
    every = len(recording.requests)
    whole = recording.pilot.cpu_s * 1e9 / every if every else 0.0
    if whole and cpu.sum() > whole:
        cpu *= whole / cpu.sum()  # some of it waited, and no span says so
    cpu[_REST] += max(whole - cpu.sum(), 0.0)
    if every and not recording.pilot.other_cores:  # a database on this machine computes on the application's cores
        cpu[STAGE_AT[Stage.SQL]] += recording.pilot.database_s * 1e9 / every
    return cpu, loop


def outside_words(recording: Recording, found: Attribution) -> tuple[str, ...]:
    """Say how much CPU time the application spends outside of requests; nothing where that is not known."""
    if not recording.pilot.cpu_s or not recording.requests:
        return ()
    rest_ms = float(_read_demands(recording, found)[0][_REST]) / 1e6
    share = rest_ms * len(recording.requests) / 1e3 / recording.pilot.cpu_s
    held = [one for one in recording.moments if one.request < 0 and one.place]
    function = f"; the event loop was held longest by {holders_of(held)[0].function}" if held else ""
    return (
        f"{rest_ms:.3g} ms of CPU per request ({share:.0%} of all) are in no span: the HTTP server, drivers, worker"
        f" processes and work after the reply{function}",
    )


def pull(work: RequestWork, lever: LeverName, known: LeverAssumptions, end: End) -> RequestWork:
    """Return what is left once a lever is pulled; waits are as they were, see ``shorten_queues``."""
    new, rest_left = _left(work, lever, known, end)
    old_ns, left_ns = work.stage_ns.mean(axis=0), new.mean(axis=0)
    ratio = np.divide(left_ns, old_ns, out=np.ones(len(STAGES)), where=old_ns > 0)
    cpu_ns, loop_ns = work.cpu_ns * ratio, work.loop_ns * ratio
    cpu_ns[_REST] *= rest_left
    if lever == "serving path":
        path_ns = {"bound": 0.0, "best": priors.PATH.low, "worst": priors.PATH.high}[end] * 1e6
        new[:, _FRAMEWORK] += path_ns
        cpu_ns[_FRAMEWORK] += path_ns
        loop_ns[_FRAMEWORK] += path_ns if work.loop_ns.any() else 0.0
    elif lever == "batching":
        shared = known.batch_share or priors.batch_prior(known.family)
        left = 1.0 - (shared.low if end == "worst" else shared.high)
        cpu_ns[_MODEL] *= left
        loop_ns[_MODEL] *= left
    processes = work.processes
    if lever == "more executors":
        processes = work.cores if end == "bound" else min(PROCESSES, work.cores)
    return replace(work, stage_ns=new, cpu_ns=cpu_ns, loop_ns=loop_ns, processes=processes)


def _left(work: RequestWork, lever: LeverName, known: LeverAssumptions, end: End) -> tuple[Floats, float]:
    """Return what is left of each request by stage, and the share of the CPU time that no span covers."""
    new, rest_left = work.stage_ns.copy(), 1.0
    if lever == "feature cache":
        hit = _feature_hits(work.numbers, known)
        new[:, _FETCHES] *= (1.0 - work.cached_share)[:, None]
        if end != "worst":  # features that the user's own functions compute are kept too
            new[:, _CODE] *= 1.0 - hit
        rest_left = 1.0 - float(hit.mean())
    elif lever == "concurrent I/O":
        new[:, _FETCHES] *= (1.0 - work.at_once_share)[:, None]
    elif lever == "preprocessing":
        new = np.maximum(new - work.steps_ns + (0.0 if end == "bound" else work.steps_left_ns), 0.0)
    elif lever in ("runtime", "INT8"):
        factor = runtime_factor(work, known) if lever == "runtime" else int8_factor(work, known)
        left = _left_of_model(lever, factor, end)
        new[:, _MODEL] *= left
        rest_left = left  # other threads of the model, which no span covers
    elif lever == "prediction cache":
        hits = known.prediction_hits
        hit = np.array([float(hits.get(number, False)) if hits else 1.0 for number in work.numbers.tolist()])
        new[:, _ANSWERING] *= (1.0 - hit)[:, None]
        rest_left = 1.0 - float(hit.mean())
    elif lever == "serving path":
        new[:, _PATH], rest_left = 0.0, 0.0
        if end != "worst":
            shortest_ns = np.quantile(new[:, _NETWORK], 0.0 if end == "bound" else 0.1)
            new[:, _NETWORK] = np.minimum(new[:, _NETWORK], shortest_ns)
    # What no span covers may be something else's: only a bound takes it away.
    return new, rest_left if end == "bound" else 1.0


def shorten_queues(before: RequestWork, after: RequestWork, rate: float, end: End) -> RequestWork:
    """Shorten the waits for a core, a lock, a thread and the event loop, as far as a lever may do that.

    Args:
        rate: requests per second.
        end: "worst": they stay. "best": as in a queue with one server, which is as busy as the scarcest resource, or as
            the waits say; what shrinks them more counts, as nobody knows what they wait for. "bound": none are left of
            a lever that removes anything of the time or of what is computed, or that adds processes.
    """
    if end == "worst":
        return after
    removed = 1.0 - float(after.stage_ns.sum()) / (float(before.stage_ns.sum()) or 1.0)
    more = after.capacity / before.capacity - 1.0 if np.isfinite(before.capacity) else 0.0
    if max(removed, more, after.processes - before.processes) < _TOUCHED:
        return after
    stage_ns = after.stage_ns.copy()
    ratio = 0.0
    if end == "best":
        waits_ns = float(before.stage_ns[:, _QUEUES].sum())
        serves_ns, left_ns = (max(float(one.stage_ns.sum()) - waits_ns, 1.0) for one in (before, after))
        implied = waits_ns / (waits_ns + serves_ns)
        shorter = left_ns / serves_ns
        busy, left = rate / before.capacity, rate / after.capacity
        ratio = min(_queue(left) / _queue(busy) if busy else 1.0, 1.0)
        if implied:
            left = implied * shorter * before.processes / after.processes
            ratio = min(shorter * _queue(left) / _queue(implied), ratio)
    stage_ns[:, _QUEUES] *= ratio
    return replace(after, stage_ns=stage_ns)


def _queue(busy: float) -> float:
    """Requests that wait on average, by the utilisation: how long they do, in times of what one takes."""
    busy = min(busy, _BUSIEST)
    return busy / (1.0 - busy)


def runtime_factor(work: RequestWork, known: LeverAssumptions) -> Prior | None:
    """Return how many times quicker the models get on another runtime; None where nothing is known."""
    if known.runtime is not None:
        return known.runtime
    found = {
        label: known.as_onnx.get(label) or priors.runtime_prior(known.libraries.get(label, known.family), work.model_ms)
        for label in work.models_ns
    }
    return _together(work, found)


def int8_factor(work: RequestWork, known: LeverAssumptions) -> Prior | None:
    """Return how many times quicker the models get in INT8; None where nothing is known."""
    found: dict[str, Prior | None] = {}
    for label in work.models_ns:
        library, products = known.libraries.get(label, known.family), known.products.get(label, 1.0)
        no = library == TORCH_ON_GPU or library in priors.NO_PRODUCTS or products < _FEW_PRODUCTS
        found[label] = measured(1.0) if no else priors.int8_prior(library, work.model_ms)
    return _together(work, found)


def _together(work: RequestWork, found: Mapping[str, Prior | None]) -> Prior | None:
    """Weigh the models' factors by the time that they take; None where too much of that is of unknown ones."""
    known = {label: one for label, one in found.items() if one is not None}
    unknown_ns = sum(ns for label, ns in work.models_ns.items() if found[label] is None)
    if not known or unknown_ns > _UNKNOWN * sum(work.models_ns.values()):
        return None
    if len(set(known.values())) == 1 and len(known) == len(found):
        return next(iter(known.values()))
    total, unchanged = sum(work.models_ns.values()) or 1.0, measured(1.0)
    low, mid, high = (
        total / sum(ns / getattr(found[label] or unchanged, end) for label, ns in work.models_ns.items())
        for end in ("low", "mid", "high")
    )
    texts = "; ".join(f"{label} {one.mid:.3g} times ({one.source})" for label, one in sorted(known.items()))
    all_measured = all(one.measured for one in known.values()) and len(known) == len(found)
    return Prior(low=low, mid=mid, high=high, source=f"measured: {texts}" if all_measured else texts)


def _left_of_model(lever: LeverName, factor: Prior | None, end: End) -> float:
    """Return the share of the models' time that is left."""
    if end != "bound":
        return 1.0 / max(factor.high if end == "best" else factor.low, 1.0) if factor is not None else 1.0
    if factor is not None and factor.measured:
        return 1.0 / factor.mid
    return 1.0 / priors.INT8_AT_BEST if lever == "INT8" else 0.0


def _by_request(flat: Flat, values: Floats) -> Floats:
    return np.bincount(flat.request, weights=values, minlength=len(flat.requests)).astype(np.float64)


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
