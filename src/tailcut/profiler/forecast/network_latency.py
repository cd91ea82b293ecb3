"""How long requests are on their way between client and tailcut's server, as far as that can be told before it is used.

The pilot's own way has its HTTP server in it, which reads a request before the application is called. tailcut's was
asked on this machine, by the same client, for nothing: what an answer took longer than the event loop computed is the
way (and who was late to wake).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailcut.profiler.forecast.phases import Job
from tailcut.profiler.records import Stage

_TRANSFER_NS = 2e6
"""A recorded way that is longer by so much is that of much to send, which the other was not asked for."""
_STALLS = 0.95
"""Beyond this share of them something stalled the machine, which the recorded ways are not played with either."""


def ways_ns(jobs: Sequence[Job], seen_ns: Sequence[float]) -> list[float]:
    """Return how long each request is on its way, shape [n].

    Args:
        jobs: as they were recorded; n.
        seen_ns: ways to tailcut's server: quantiles, evenly spaced, ascending; empty: it is taken to be the recorded.
    """
    recorded_ns = [sum(part.wait_ns for part in job if part.stage == Stage.NETWORK) for job in jobs]
    if not len(seen_ns) or not jobs or np.median(recorded_ns) > np.median(seen_ns) + _TRANSFER_NS:
        return recorded_ns
    # Each as often as it was seen; which request has which is chance, and the same each time.
    drawn = np.quantile(np.asarray(seen_ns), np.minimum((np.arange(len(jobs)) + 0.5) / len(jobs), _STALLS))
    found: list[float] = np.random.default_rng(0).permutation(drawn).tolist()
    return found


def queued_ns(due_ns: Sequence[float], took_ns: float) -> npt.NDArray[np.float64]:
    """Return how long each waits for those before it, one at a time and each as long, shape [n].

    That is played again wherever the way is used. Source: D. V. Lindley, "The theory of queues with a single server",
    1952.

    Args:
        due_ns: when each came, ascending, shape [n].
    """
    waits_ns = np.zeros(len(due_ns))
    for place in range(1, len(due_ns)):
        gap_ns = due_ns[place] - due_ns[place - 1]
        waits_ns[place] = max(waits_ns[place - 1] + took_ns - gap_ns, 0.0)
    return waits_ns
