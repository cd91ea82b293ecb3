"""What a feature cache leaves of requests: what of their fetches it answers is not asked for again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tailcut.profiler.attribution.calls import is_fetch, is_write
from tailcut.profiler.attribution.cpu_split import FETCHING, QUEUEING
from tailcut.profiler.forecast.cached_requests import HANDED_OVER, INGRESS, OWN_PATH
from tailcut.profiler.forecast.fetches import left_alone
from tailcut.profiler.forecast.phases import HANDLING, Job, Part
from tailcut.profiler.forecast.state import State
from tailcut.profiler.records import Stage


def with_features(state: State, bound: bool) -> State:
    """Leave out the fetches that a feature cache answers.

    Args:
        bound: all that read, at best.
    """
    known, work = state.known, state.work
    # At best all that the user's own functions compute are features, which are kept as well.
    goes = FETCHING | {Stage.CODE} if bound else FETCHING
    generator = np.random.default_rng(0)
    jobs = []
    for number, job in zip(work.numbers.tolist(), work.jobs, strict=True):
        fetches = [part for part in job if part.stage in FETCHING and part.name != HANDLING]
        shares = [_answered(state, number, part, bound) for part in fetches]
        draws = generator.random(len(fetches)) if fetches else ()
        missed = {id(part) for part, draw, share in zip(fetches, draws, shares, strict=True) if draw >= share}
        if missed:
            missed.update(id(part) for part in fetches if _goes_with(state, part))
        kept = tuple(
            part
            for part in _handled(job, len(missed) / len(fetches) if fetches else 1.0)
            if part.stage not in goes or part.name in (OWN_PATH, HANDLING) or id(part) in missed
        )
        kept = left_alone(job, kept) if missed else kept
        if not bound and fetches:
            kept = _before(kept, Part(Stage.CACHE, -1, known.lookup_ns, 0.0, False))
        if fetches and not missed:  # nobody waits for a connection, a thread or its way back
            kept = tuple(part for part in kept if part.stage not in QUEUEING or part.name == HANDED_OVER)
        jobs.append(kept)
    return replace(state, work=replace(work, jobs=tuple(jobs)))


def _handled(job: Job, left: float) -> Job:
    """A request with what is done for its fetches, for the share of them that is left."""
    of_calls = (part._replace(cpu_ns=part.cpu_ns * left) if part.name == HANDLING else part for part in job)
    return tuple(part for part in of_calls if part.name != HANDLING or left)


def _answered(state: State, number: int, part: Part, bound: bool) -> float:
    """Say which share of such fetches of a request the cache answers, or does at best: none that writes."""
    known = state.known
    if part.name >= 0 and is_write(state.work.names[part.name]):
        return 0.0
    if bound or _goes_with(state, part):
        return 1.0
    if not known.asked.requests or part.name < 0:
        return known.feature_hits.get(number, 0.0)
    name = state.work.names[part.name]
    return known.asked.share(name.stage, name.label, number)


def _goes_with(state: State, part: Part) -> bool:
    """Whether it fetches nothing itself and stays as long as any other call of its request does: COMMIT, a ping."""
    name = state.work.names[part.name] if part.name >= 0 else None
    return name is not None and not is_fetch(name) and not is_write(name)


def _before(job: Job, part: Part) -> Job:
    """Put a phase where the request's own work begins."""
    place = next((number for number, one in enumerate(job) if one.stage not in INGRESS), len(job))
    return (*job[:place], part, *job[place:])
