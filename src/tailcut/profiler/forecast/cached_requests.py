"""What caches of answers leave of a request, and what asking them takes."""

from __future__ import annotations

from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.levers.priors import THREAD_SHARE
from tailcut.profiler.records import Stage

HANDED_OVER = -2
"""``Part.name`` of handing a batch to a thread and back."""
OWN_PATH = -4
"""``Part.name`` of what tailcut's own path takes of a core."""
INGRESS = frozenset({Stage.NETWORK, Stage.RECEIVE, Stage.DECODE, Stage.FRAMEWORK, Stage.ENCODE, Stage.UNATTRIBUTED})
"""What every request goes through, whatever answers it."""


def handed_over(path_ns: float) -> Part:
    """Handing a batch to a thread and back, half of it computed.

    Args:
        path_ns: that tailcut's own path takes of a core here.
    """
    half_ns = path_ns * THREAD_SHARE / 2
    return Part(Stage.WAIT, HANDED_OVER, half_ns, half_ns, False)


def answered_at_once(job: Job) -> Job:
    """A request whose answer is known before its features are fetched."""
    return tuple(part for part in job if part.stage in INGRESS)


def seldom(job: Job, colder: float) -> Job:
    """A request of those that caches of answers leave: what is done for them only takes more of a core.

    Args:
        colder: how many times as much.
    """
    return tuple(part if part.stage in INGRESS else part._replace(cpu_ns=part.cpu_ns * colder) for part in job)


def tensors_looked_up(job: Job, lookup_ns: float, *, hit: bool) -> Job:
    """A request whose tensors are looked up where its model would run, which a hit leaves out.

    Args:
        lookup_ns: what that takes of a core.
    """
    place = next((number for number, part in enumerate(job) if part.stage is Stage.MODEL), None)
    if place is None:
        return job
    # No stage of a fetch: a feature cache has nothing to do with it.
    lookup = Part(Stage.CODE, OWN_PATH, lookup_ns, 0.0, False)
    rest = job[place:]
    if hit:
        rest = tuple(part for part in rest if part.stage is not Stage.MODEL)
    before = tuple(part for part in job[:place] if not (hit and part.name == HANDED_OVER))
    return (*before, lookup, *rest)
