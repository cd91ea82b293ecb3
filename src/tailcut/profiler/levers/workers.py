"""Levers on what a service hands over itself: calls in worker processes, and work after the reply."""

from __future__ import annotations

from dataclasses import replace

from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.state import LeverName, State
from tailcut.profiler.forecast.thread_pools import is_process_hop
from tailcut.profiler.records import Recording, Stage

LONG_NS = 1e6
"""On the event loop's thread: what is shorter is over before another thread would have its turn."""
_MUCH = 0.05
"""Of the CPU time: child processes that take less are no pool that matters."""
_SEEN = 0.5
"""Of what child processes computed: of fewer the calls are not known."""


def own_levers(state: State, recording: Recording) -> tuple[LeverName, ...]:
    """Choose the levers on what this service hands over: those that it has something for."""
    found: list[LeverName] = []
    if state.work.process_of() or unseen_workers(state, recording):
        found.append("no process pool")
    if any(part.late for job in state.work.jobs for part in job):
        found.append("no background work")
    return tuple(found)


def unseen_workers(state: State, recording: Recording) -> str:
    """Say what child processes computed, where their calls were not seen; empty where they were, or it is little."""
    pilot, seen_ns = recording.pilot, state.work.process_of()
    count = len(recording.requests) + len(recording.untraced)
    each_ns = pilot.workers_s * 1e9 / max(count, 1)
    if pilot.workers_s < _MUCH * pilot.cpu_s or not pilot.workers_s or seen_ns >= _SEEN * each_ns:
        return ""
    return (
        f"child processes of the service computed {each_ns / 1e6:.3g} ms a request, of which the calls that were seen"
        f" took {seen_ns / 1e6:.3g}"
    )


def without_pool(state: State, *, bound: bool) -> State:
    """Call in the service itself what is handed to worker processes.

    Args:
        bound: that takes no time at all.
    """
    work, holds = state.work, state.work.holds.found

    def change(job: Job) -> Job:
        kept = []
        for part in job:
            called = part.process and not part.late
            if (part.name >= 0 and is_process_hop(work.names[part.name])) or (called and bound):
                continue
            kept.append(_called_here(part, {one for one in part.held if holds[one].processes}) if called else part)
        return tuple(kept)

    jobs = tuple(change(job) for job in work.jobs)
    models = [part for job in work.jobs for part in job if part.stage is Stage.MODEL]
    service = state.service
    if models and all(part.process for part in models):
        service = replace(service, executors=0)
    loops = service.loops or any(part.loop and part.cpu_ns >= LONG_NS for job in jobs for part in job)
    return replace(state, work=replace(work, jobs=jobs), service=replace(service, loops=loops))


def _called_here(part: Part, processes: set[int]) -> Part:
    return part._replace(process=False, held=tuple(one for one in part.held if one not in processes))


def without_background(state: State) -> State:
    """Leave out the work after the reply, as if another service did it, or it were dropped."""
    jobs = tuple(tuple(part for part in job if not part.late) for job in state.work.jobs)
    return replace(state, work=replace(state.work, jobs=jobs))
