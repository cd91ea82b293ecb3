"""What each lever does to the work of requests: which phases it shortens, shares or leaves out.

A lever is pulled twice: as an estimate (with the hit shares that the payloads allow, and factors measured here or
elsewhere), and as a bound: what it is aimed at takes no time at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tailcut.profiler.attribution.calls import is_write
from tailcut.profiler.attribution.cpu_split import FETCHING, QUEUEING
from tailcut.profiler.attribution.model_steps import STEPS
from tailcut.profiler.forecast.cached_requests import (
    HANDED_OVER,
    INGRESS,
    OWN_PATH,
    answered_at_once,
    handed_over,
    seldom,
    tensors_looked_up,
)
from tailcut.profiler.forecast.cpu_scaling import cpu_factor
from tailcut.profiler.forecast.feature_caching import with_features
from tailcut.profiler.forecast.fetches import at_once, at_once_free
from tailcut.profiler.forecast.lock_model import Hold
from tailcut.profiler.forecast.network_latency import ways_ns
from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.service_model import ServiceModel
from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.forecast.work import Work
from tailcut.profiler.levers import priors
from tailcut.profiler.levers.preprocessing import without_slow_steps
from tailcut.profiler.levers.speed_factors import call_ms, factor_of
from tailcut.profiler.levers.workers import LONG_NS, without_background, without_pool
from tailcut.profiler.records import TORCH_ON_GPU, Stage

LEVERS: tuple[LeverName, ...] = (
    "feature cache", "concurrent I/O", "preprocessing", "runtime", "INT8", "batching", "prediction cache",
    "more executors", "serving path",
)  # fmt: skip
"""That are asked about in every profile; ``workers.own_levers`` says which of the others."""

PARALLEL = 4
"""How many processes "more executors" stands for, where the machine has the cores."""
INLINE_MS = 1.0
"""Models below that run on tailcut's event loop (docs/design.md, Executors)."""
_MODELS_ALONE = 0.8
_HOLDS_INTERPRETER = frozenset({"sklearn"})
"""Libraries whose models are Python for most of a call on one row: of a forest each tree is called on its own. What
they are compiled to is none."""
_OF_DRIVERS = frozenset({"aiosqlite's thread"})
"""Waits that come with each call of a driver, whoever serves."""


def begin(work: Work, known: Known) -> State:
    """Start from what was recorded: a model has an executor per core where there are several and it runs in threads."""
    if known.family == TORCH_ON_GPU:
        work = _waits_at_the_gpu(work)
    executors = 0 if known.family in _HOLDS_INTERPRETER else _executors_of(work, known)
    service = ServiceModel(
        executors=executors, cores=max(known.cores, 1), threads=work.threads,
        held=tuple(hold.at_once for hold in work.holds.found),
        database=known.database_cores, beside=known.database_beside, database_share=known.database_share,
        loops=any(part.blocks or (part.loop and part.cpu_ns >= LONG_NS) for job in work.jobs for part in job),
    )  # fmt: skip
    return State(work, service, known, queues=_for_models(work))


def _waits_at_the_gpu(work: Work) -> Work:
    """Let what a model's caller waits for be the model's own: whether torch spins for a GPU or sleeps, others wait."""

    def change(part: Part) -> Part:
        if part.stage is not Stage.MODEL:
            return part
        return part._replace(cpu_ns=part.cpu_ns + part.wait_ns, wait_ns=0.0)

    return replace(work, jobs=tuple(tuple(change(part) for part in job) for job in work.jobs))


def _executors_of(work: Work, known: Known) -> int:
    theirs = {number for number, hold in enumerate(work.holds.found) if hold.threads}
    in_threads = any(
        part.stage == Stage.MODEL and (part.thread or not theirs.isdisjoint(part.held))
        for job in work.jobs
        for part in job
    )
    many = 1 if known.family == TORCH_ON_GPU else known.cores  # one GPU, which computes for one at a time
    return many if in_threads and known.cores > 1 else 0


def pull(state: State, lever: LeverName, *, bound: bool = False) -> State:
    """Pull a lever."""
    if lever == "feature cache":
        state = with_features(state, bound)
    elif lever == "concurrent I/O":
        held = state.service.held
        change = at_once_free if bound else lambda job: at_once(job, held)
        # What is written goes by one connection, in its order.
        state = _jobs(state, lambda job: job if _writes(state.work, job) else change(job))
    elif lever == "preprocessing":
        state = without_slow_steps(state, bound=bound)
    elif lever in ("runtime", "INT8"):
        each = factor_of(state, lever)
        state = _compiled(_faster(state, _in_no_time if bound else lambda label: each(label).mid))
    elif lever == "batching":
        state = _batching(state, bound)
    elif lever == "prediction cache":
        state = _prediction_cache(state, bound)
    elif lever == "more executors":
        state = _executors(state, bound)
    elif lever == "no process pool":
        state = without_pool(state, bound=bound)
    elif lever == "no background work":
        state = without_background(state)
    else:
        state = _serving_path(state, bound)
    return replace(state, pulled=(*state.pulled, lever))


def _jobs(state: State, change: Callable[[Job], Job]) -> State:
    return replace(state, work=replace(state.work, jobs=tuple(change(job) for job in state.work.jobs)))


def _writes(work: Work, job: Job) -> bool:
    return any(part.name >= 0 and is_write(work.names[part.name]) for part in job)


def _faster(state: State, times: Callable[[str], float]) -> State:
    work = state.work

    def change(part: Part) -> Part:
        if part.stage != Stage.MODEL:
            return part
        less = 1.0 / times(work.label(part.name))
        return part._replace(cpu_ns=part.cpu_ns * less, wait_ns=part.wait_ns * less, beside_ns=part.beside_ns * less)

    return _jobs(state, lambda job: tuple(change(part) for part in job))


def _in_no_time(_: str) -> float:
    return float("inf")


def _compiled(state: State) -> State:
    """Let models run beside the interpreter that held it before; a batcher's has one executor."""
    service, known = state.service, state.known
    if known.family not in _HOLDS_INTERPRETER or known.cores < 2:
        return state
    many = known.cores if "serving path" in state.pulled else _executors_of(state.work, known)
    many = min(many, 1) if service.batch_share else many
    return replace(state, service=replace(service, executors=max(service.executors, many)))


def _batching(state: State, bound: bool) -> State:
    # The batcher takes the place of a lock around the model.
    holds, queues = state.work.holds.found, state.queues
    state = _jobs(state, lambda job: tuple(_served(part, _left(part, holds, queues)) for part in job))
    if bound:
        return _faster(state, _in_no_time)
    known = state.known
    share = (known.batch_share or priors.batch_prior(known.family)).mid
    state = replace(state, service=replace(state.service, batch_share=share, executors=min(state.service.executors, 1)))
    if call_ms(state.work) >= INLINE_MS:
        return state
    # Then batches run on the event loop, and nothing is handed over.
    return _jobs(state, lambda job: tuple(part for part in job if part.name != HANDED_OVER))


def _prediction_cache(state: State, bound: bool) -> State:
    known, work = state.known, state.work
    lookup_ns = (known.path or priors.PATH).mid * priors.TENSORS_SHARE
    numbers = work.numbers.tolist()
    missed = sum(not known.prediction_hits.get(number, False) for number in numbers) / max(len(numbers), 1)
    # What hits leave out comes as much more seldom, and finds less of itself in the core's caches.
    colder = cpu_factor(known.path_slope, 1.0, missed) if missed else 1.0

    def change(number: int, job: Job) -> Job:
        if bound or known.prediction_hits.get(number, False):
            return answered_at_once(job)
        job = seldom(job, colder)
        if known.tensor_hits:
            return tensors_looked_up(job, lookup_ns, hit=known.tensor_hits.get(number, False))
        return job

    jobs = tuple(change(number, job) for number, job in zip(numbers, work.jobs, strict=True))
    return replace(state, work=replace(work, jobs=jobs))


def _executors(state: State, bound: bool) -> State:
    """Processes of which each has an interpreter, a pool of threads, locks and connections of its own."""
    service, cores = state.service, max(state.known.cores, 1)
    many = cores if bound else min(PARALLEL, cores)
    free = len(state.work.jobs)
    executors = max(service.executors, many) if service.executors else 0
    if state.known.family == TORCH_ON_GPU:
        executors = 1  # all processes have the one GPU
    service = replace(
        service,
        processes=max(service.processes, many),
        executors=executors,
        threads=0 if bound else service.threads * many,
        held=tuple(free if bound else each * many for each in service.held),
    )
    return replace(state, service=service)


def _serving_path(state: State, bound: bool) -> State:
    """Leave the pilot's web stack: its server, framework, validation, encoding and thread pool."""
    known, work, path_ns = state.known, state.work, (state.known.path or priors.PATH).mid
    ingress = INGRESS - {Stage.UNATTRIBUTED}
    holds, queues = state.work.holds.found, state.queues

    def change(number: int, job: Job, way_ns: float) -> Job:
        kept = [part for part in job if part.stage not in ingress | QUEUEING or _is_drivers(work, part)]
        if number in known.fetches and any(part.stage in FETCHING for part in kept):
            others = [
                Part(Stage.SQL, -1, cpu_ns, wait_ns, False, full_ns=wait_ns)
                for cpu_ns, wait_ns in known.fetches[number]
            ]
            kept = [*others, *(part for part in kept if part.stage not in FETCHING)]
        kept = [_served(part, _still_held(part, holds, queues))._replace(thread=False) for part in kept]
        if bound:
            return (Part(Stage.NETWORK, -1, 0.0, way_ns, False), *kept)
        models = [number for number, part in enumerate(kept) if part.stage == Stage.MODEL]
        if models and "batching" not in state.pulled:
            kept.insert(models[0], handed_over(path_ns))
        return (Part(Stage.NETWORK, OWN_PATH, path_ns, way_ns, False, loop=True), *kept)

    ways = zip(work.numbers.tolist(), work.jobs, ways_ns(work.jobs, known.path_waits_ns), strict=True)
    jobs = tuple(change(number, job, way_ns) for number, job, way_ns in ways)
    share = known.fetches_share if known.fetches else state.service.database_share
    service = replace(state.service, threads=0, database_share=share)
    return replace(state, work=replace(work, jobs=jobs), service=service)


def _is_drivers(work: Work, part: Part) -> bool:
    return part.name >= 0 and work.names[part.name].label in _OF_DRIVERS


def _for_models(work: Work) -> frozenset[int]:
    """Locks around little else than models: an executor runs one batch at a time anyway."""
    held_ns = np.zeros((len(work.holds.found), 2))
    for job in work.jobs:
        for part in job:
            for hold in part.held:
                held_ns[hold, int(part.stage in STEPS)] += part.cpu_ns + part.wait_ns
    alone = held_ns[:, 1] > _MODELS_ALONE * held_ns.sum(axis=1)
    return frozenset(np.flatnonzero(alone).tolist())


def _left(part: Part, holds: tuple[Hold, ...], queues: frozenset[int]) -> tuple[int, ...]:
    """Which locks and connections a part still holds where tailcut runs the models: in no executor of the user's."""
    model = part.stage in STEPS
    return tuple(one for one in part.held if one not in queues and not (model and holds[one].threads))


def _served(part: Part, held: tuple[int, ...]) -> Part:
    """A part where tailcut runs the models: those leave the user's worker processes."""
    return part._replace(held=held, process=part.process and part.stage is not Stage.MODEL)


def _still_held(part: Part, holds: tuple[Hold, ...], queues: frozenset[int]) -> tuple[int, ...]:
    """Which locks a part of the user's own code still holds in tailcut, and which connections: those of fetches."""
    return tuple(one for one in _left(part, holds, queues) if part.stage in FETCHING or not holds[one].pool)
