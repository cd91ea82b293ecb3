"""A load and the server that meets it, for ``scheduler.simulation.simulator``, and what becomes of the requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tailcut.scheduler.batching_delay import Window
from tailcut.scheduler.simulation.request_steps import Steps, plain_steps

LOOP_NS = 60_000.0
"""What a request takes of the event loop where nothing else was measured: the path of one small JSON request."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load and what meets it.

    Args:
        arrivals_ns: when each request comes, ascending, shape [n].
        service: draws what a batch of so many rows takes, in nanoseconds.
        known: rows -> nanoseconds, what is believed before the first batch.
        executors: how many run batches.
        timeout_ns: deadline of every request.
        limit_ns: of the SLO; 0 where only deadlines count.
        loop_ns: event loop's time per request, at this rate: where it sleeps or others use its core, caches are cold.
        requests: draws the steps of each request by its number; then ``loop_ns`` and ``rows`` do not count.
        inline: batches run on the event loop.
        cores: that executors and interpreter share; 0: each executor has one of its own.
        hook_wait: share of a hook's time in threads in which it waits instead of computing in the interpreter.
        rows, priorities, tenants: of each request, in turn; repeated as often as needed.
        window: makes what decides about waiting; None for none.
    """

    arrivals_ns: Sequence[int] | npt.NDArray[np.int64]
    service: Callable[[int], float]
    known: Mapping[int, float] = field(default_factory=dict)
    executors: int = 1
    timeout_ns: int = 1_000_000_000
    limit_ns: int = 0
    max_rows: int = 32
    max_queue_rows: int = 1024
    merge: bool = True
    window: Callable[[], Window | None] | None = None
    loop_ns: float = LOOP_NS
    requests: Callable[[int], Steps] | None = None
    inline: bool = False
    cores: float = 0.0
    hook_wait: float = 0.0
    rows: Sequence[int] = (1,)
    priorities: Sequence[int] = (0,)
    tenants: Sequence[str] = ("",)

    def steps(self, number: int) -> Steps:
        """Return the steps of a request."""
        if self.requests is not None:
            return self.requests(number)
        return plain_steps(self.loop_ns, self.rows[number % len(self.rows)])


@dataclass(frozen=True)
class Outcome:
    """What became of the requests, each at its place, shape [n].

    Attributes:
        latency_ns: from arrival to answer; NaN where there was none.
        shed: refused at arrival.
        timeout_ns: their deadline.
        batches: rows of a batch -> how often.
        end_ns: when the last event was.
        busy_ns: executors' time in batches, summed; for an inline one part of the loop's.
        loop_ns: event loop's time at work, batches that it runs included.
        hook_ns: time that hooks in threads computed.
        executors: how many there were.
    """

    latency_ns: npt.NDArray[np.float64]
    shed: npt.NDArray[np.bool_]
    timeout_ns: int
    batches: Counter[int]
    end_ns: float
    busy_ns: float
    loop_ns: float
    hook_ns: float
    executors: int

    @property
    def in_time(self) -> npt.NDArray[np.bool_]:
        """Answered before the deadline."""
        return np.nan_to_num(self.latency_ns, nan=np.inf) <= self.timeout_ns

    @property
    def broken(self) -> float:
        """Share of the accepted requests that were not answered before their deadline."""
        accepted = ~self.shed
        return float((accepted & ~self.in_time).sum() / max(accepted.sum(), 1))

    @property
    def mean_rows(self) -> float:
        """Rows of a batch on average; 0 where there was none."""
        count = sum(self.batches.values())
        return sum(rows * times for rows, times in self.batches.items()) / count if count else 0.0

    def percentile_ms(self, share: float) -> float:
        """Return a latency percentile of those that were answered; NaN where none was."""
        found = self.latency_ns[~np.isnan(self.latency_ns)]
        return float(np.quantile(found, share, method="inverted_cdf") / 1e6) if found.size else float("nan")
