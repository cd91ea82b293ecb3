"""What becomes of a request's fetches when they go out at once, or when a cache answers some of them.

Fetches that ran side by side when they were recorded share that time: what each waits for is less than its length, from
its start to its end. What waits beside nothing else any more waits for its length. Beside the request's own code or a
model, a fetch waits for less as well: that time it shares with no other fetch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailcut.profiler.attribution.cpu_split import FETCHING
from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.work import Work

_MOSTLY = 0.5
"""Of what a request's fetches can win side by side: where more is won already, what is left are fetches that wait for
others' answers, or for a connection."""
_LITTLE = 0.05


def at_once(job: Job, held: Sequence[int] = ()) -> Job:
    """Fetches wait together, for as long as the longest; the CPU of all remains. Those that do already are left.

    Args:
        held: how many may hold each lock or connection at once: one request's fetches wait for one another there too.
    """
    if _side_by_side(job):
        return job
    in_turn_ns = (ns / held[hold] for hold, ns in _held_ns(job).items() if hold < len(held))
    # What else ran beside them took that time too, and takes all of it where they go.
    return _one_wait(job, max([*_lengths(job), *in_turn_ns, _beside_ns(job)[1]], default=0.0))


def at_once_free(job: Job) -> Job:
    """At best there is one wait, as short as the shortest."""
    return _one_wait(job, min(_lengths(job), default=0.0))


def at_once_already(work: Work, held: Sequence[int] = ()) -> bool:
    """Tell whether fetches run side by side as it is, and sending the others out at once as well wins next to nothing.

    What it wins is weighed by time: where few requests are slow because theirs wait for one another, it is for those.
    """
    if not any(_side_by_side(job) for job in work.jobs):
        return False
    before_ns, after_ns = (
        sum(_waited_ns(job) for job in jobs) for jobs in (work.jobs, [at_once(job, held) for job in work.jobs])
    )
    return before_ns - after_ns < _LITTLE * before_ns


def left_alone(job: Job, kept: Job) -> Job:
    """Let those fetches that are left wait for as long as they do without the others.

    Args:
        job: as it was.
        kept: without some of its fetches.
    """
    waited_ns = _waited_ns(kept)
    alone_ns = min(_waited_ns(job), max(_lengths(kept), default=0.0), waited_ns + _beside_ns(job)[0])
    if alone_ns <= waited_ns:
        return kept
    longest = _longest(kept)
    part = kept[longest]
    return (*kept[:longest], part._replace(wait_ns=part.wait_ns + alone_ns - waited_ns), *kept[longest + 1 :])


def _length(part: Part) -> float:
    return max(part.full_ns, part.wait_ns) if part.stage in FETCHING else 0.0


def _lengths(job: Job) -> list[float]:
    return [length for length in map(_length, job) if length]


def _longest(job: Job) -> int:
    return max(range(len(job)), key=lambda number: _length(job[number]))


def _waited_ns(job: Job) -> float:
    return sum(part.wait_ns for part in job if part.stage in FETCHING)


def _side_by_side(job: Job) -> bool:
    """Tell whether a request's fetches have most of what they can win side by side."""
    full_ns = [part.full_ns for part in job if part.stage in FETCHING]
    most_ns = sum(full_ns) - max(full_ns, default=0.0)
    return most_ns > 0 and _beside_ns(job)[0] > _MOSTLY * most_ns


def _beside_ns(job: Job) -> tuple[float, float]:
    """How much less a request's fetches wait for because they ran beside one another, and beside anything else."""
    overlap_ns = less_ns = until_ns = 0.0
    for part in sorted((part for part in job if part.stage in FETCHING), key=lambda part: part.from_ns):
        end_ns = part.from_ns + part.full_ns
        overlap_ns += max(min(end_ns, until_ns) - part.from_ns, 0.0)
        until_ns = max(until_ns, end_ns)
        # Of two halves of a fetch, one has all of its length.
        less_ns += part.full_ns - part.wait_ns
    shared_ns = max(min(overlap_ns, less_ns), 0.0)
    return shared_ns, max(less_ns - shared_ns, 0.0)


def _one_wait(job: Job, wait_ns: float) -> Job:
    """Lay the waits of a request's fetches together where the longest is, for so long.

    Two connections for ten milliseconds are as many as one for twenty: what fetches hold they hold for as long in all.
    What of that is more than the one wait comes beside the request, once it is done.
    """
    if _waited_ns(job) <= wait_ns:
        return job
    longest, held_ns = _longest(job), _held_ns(job)
    laid: list[Part] = []
    for number, part in enumerate(job):
        if number == longest:
            laid += [*_together(part._replace(from_ns=0.0), held_ns, wait_ns), part._replace(wait_ns=0.0, full_ns=0.0)]
        else:
            laid.append(part._replace(wait_ns=0.0, from_ns=0.0) if part.stage in FETCHING else part)
    return tuple(laid)


def _held_ns(job: Job) -> dict[int, float]:
    """For how long fetches hold each lock or connection while they wait, all together."""
    held_ns: dict[int, float] = {}
    for part in job:
        if part.stage in FETCHING:
            for hold in part.held:
                held_ns[hold] = held_ns.get(hold, 0.0) + part.wait_ns
    return held_ns


def _together(fetch: Part, held_ns: Mapping[int, float], wait_ns: float) -> list[Part]:
    """One wait for all fetches, with what they hold: each for as long as all of them hold it, or for all of the wait.

    Args:
        held_ns: for how long they hold each lock or connection while they wait, all together.
    """
    empty = fetch._replace(cpu_ns=0.0, wait_ns=0.0, full_ns=0.0)
    more = [empty._replace(held=(hold,), after_ns=ns - wait_ns) for hold, ns in held_ns.items() if ns > wait_ns]
    until_ns = sorted({min(ns, wait_ns) for ns in held_ns.values() if ns})
    last_ns = until_ns[-1] if until_ns else 0.0
    # What nothing is held for comes first, so that what is held can be held on.
    laid = [empty._replace(held=(), wait_ns=wait_ns - last_ns)] if wait_ns > last_ns else []
    from_ns = 0.0
    for end_ns in until_ns:
        held = tuple(sorted(hold for hold, ns in held_ns.items() if min(ns, wait_ns) >= end_ns))
        laid.append(empty._replace(held=held, wait_ns=end_ns - from_ns))
        from_ns = end_ns
    laid[0] = laid[0]._replace(full_ns=fetch.full_ns)
    return [*laid, *more]
