"""Which requests of a recording are traced: all of a short one, some of a long one, so that it costs less.

What tracing takes of each request, all requests wait for: near the p95 more than for their own. So of a recording that
has enough of them most are left as they are, and the traced ones stand for all, as in Dapper (Sigelman et al. 2010,
"Dapper, a Large-Scale Distributed Systems Tracing Infrastructure"). Which these are is a matter of a hash of their
numbers: what repeats in the load with some period would else always be among them, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

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


def one_in(requests: int, least_traced: int = LEAST_TRACED) -> int:
    """Choose of how many requests one is traced.

    Args:
        requests: that the recording will have.
        least_traced: how many are traced, if the recording has as many.
    """
    return min(max(requests // max(least_traced, 1), ALL), FEWEST)


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
