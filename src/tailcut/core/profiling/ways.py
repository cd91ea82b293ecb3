"""How long requests are on their way between client and tailcut's server, as far as that can be told before it is used.

The pilot's own way has its HTTP server in it, which reads a request before the application is called. tailcut's was
asked on this machine, by the same client, for nothing: what an answer took longer than the event loop computed is the
way (and who was late to wake).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailcut.core.profiling.records import Stage
from tailcut.core.profiling.work import Job


def ways_ns(jobs: Sequence[Job], seen_ns: Sequence[float]) -> list[float]:
    """Return how long each request is on its way, shape [n].

    Args:
        jobs: as they were recorded; n.
        seen_ns: ways to tailcut's server: quantiles, evenly spaced, ascending; empty: it is taken to be the recorded.
    """
    if not len(seen_ns):
        return [sum(part.wait_ns for part in job if part.stage == Stage.NETWORK) for job in jobs]
    # Each as often as it was seen; which request has which is chance, and the same each time.
    drawn = np.quantile(np.asarray(seen_ns), (np.arange(len(jobs)) + 0.5) / max(len(jobs), 1))
    found: list[float] = np.random.default_rng(0).permutation(drawn).tolist()
    return found
