"""Which requests of a recording are traced: all of a short one, some of a long one, so that it costs less.

What tracing takes of each request, all requests wait for: near the p95 more than for their own. So of a recording that
has enough of them most are left as they are, and the traced ones stand for all, as in Dapper (Sigelman et al. 2010,
"Dapper, a Large-Scale Distributed Systems Tracing Infrastructure"). Which these are is a matter of a hash of their
numbers: what repeats in the load with some period would else always be among them, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, overload

from tailcut.profiler.records import Request, Span, Stage

if TYPE_CHECKING:
    # The profiled process imports NumPy only where its application does.
    import numpy as np
    import numpy.typing as npt

LEAST_TRACED = 500
"""Requests of a recording: more than a p95 needs."""
ALL, FEWEST = 1, 8
"""Of how many requests one is traced, at most and at least. Fewer save little more: at one in eight the pilot of
flight_risk has a p95 that is 5 % longer at half of what it sustains, at one in two 11 % (``profiler.overhead``)."""
_ROUNDS, _MASK = ((17, 0x2D51ED1B), (11, 0x4C1B3C2D), (15, 0x31848BAB)), 0xFFFFFFFF
"""Of a hash of 32 bits in which each bit of a number decides about each bit: xor of a shift, times an odd number."""
POOLS = frozenset({"psycopg_pool", "asyncpg's pool", "SQLAlchemy's pool"})
"""Labels of waits for a connection, as ``profiler.hooks.databases`` gives them."""
THREADING = ("threading.Lock of ", "threading.RLock of ")
"""How labels of waits for locks begin that the user's modules made (``profiler.hooks.locks``)."""
_ALONE = 0.025
"""Of the slowest tenth's time: who waits longer for what several hold is understood only beside all who hold it."""
_SLOW = 10


def one_in(requests: int, tried: Iterable[Request], least_traced: int = LEAST_TRACED) -> int:
    """Choose of how many requests one is traced.

    Args:
        requests: that the recording will have.
        tried: of a trial at the same rate, all of them traced.
        least_traced: how many are traced, if the recording has as many.
    """
    # A trial begins with connections that are still to be made, and who waits for those.
    settled = sorted(tried, key=lambda one: one.entered_ns)
    if held_up(settled[len(settled) // 2 :]) > _ALONE:
        return ALL
    return min(max(requests // max(least_traced, 1), ALL), FEWEST)


def held_up(requests: Iterable[Request]) -> float:
    """Say for how much of their time the slowest tenth waited for pools' connections, semaphores and asyncio's locks.

    Not so for locks of ``threading``: who has one in between is kept of the other requests too (``Recording.waits``).
    """
    found = sorted(((_took_ns(one), one) for one in requests), key=lambda pair: -pair[0])
    slow = found[: -(-len(found) // _SLOW)]
    waited_ns = sum(span.end_ns - span.start_ns for _, one in slow for span in one.spans if _is_held(span))
    return waited_ns / max(sum(took_ns for took_ns, _ in slow), 1)


def _took_ns(request: Request) -> int:
    return max(request.left_ns - request.entered_ns, 0)


def _is_held(span: Span) -> bool:
    if span.stage is Stage.LOCK:
        return not span.label.startswith(THREADING)
    return span.stage is Stage.WAIT and span.label in POOLS


@overload
def is_traced(number: int, one_in: int) -> bool: ...
@overload
def is_traced(number: npt.NDArray[np.int64], one_in: int) -> npt.NDArray[np.bool_]: ...
def is_traced(number: int | npt.NDArray[np.int64], one_in: int) -> bool | npt.NDArray[np.bool_]:
    """Tell whether the request of a number is traced where one in so many is; of several, shape [n]."""
    mixed = number
    for shift, times in _ROUNDS:
        mixed = ((mixed ^ (mixed >> shift)) * times) & _MASK
    return (mixed ^ (mixed >> 16)) % one_in == 0
