"""Admission during sustained overload: a request is accepted if its batch is predicted to end within the SLO.

An overloaded server must keep its batches large, or its throughput falls further. But a request that has waited for
long can be answered in time in a small batch only, and a request that arrives while a small batch runs waits for long
in its turn: small batches stay small. So no request is accepted before the next batch can be a full one that ends in
time for the first request in it. Refusing the requests before that costs nothing, because more arrive than fit.

(In queueing theory a server behind such a gate is a gated one: H. Takagi, "Analysis of Polling Systems", 1986.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.scheduler.batch_builder import rows_within
from tailcut.scheduler.latency_model import DRIFT, Cost
from tailcut.scheduler.overload_detector import OverloadDetector, Target
from tailcut.scheduler.request_queue import E, RequestQueue

_BATCH = 0.8
"""Part of the limit that a batch may take. The rest is what those have to board in who make it a full one."""


class Missed(NamedTuple):
    """Why there is no place.

    Attributes:
        end_ns: when the batch is expected to end that has one, from now.
        limit_ns: when it must end.
        opens_ns: until when there will be none either, from now, unless less waits; where that alone makes places, the
            SLO's limit.
    """

    end_ns: float
    limit_ns: float
    opens_ns: float


class OverloadAdmission(NamedTuple):
    """What it is decided by.

    Attributes:
        cost: of batches of the request's kind.
        starts_ns: when each executor can start the next batch, from now, ascending; one at least.
        full: rows of a full batch.
        gap_ns: between two rows that come; 0 where that is not known, and enough are taken to come.
        pause_ns: between two batches: of the models that share the cores.
    """

    cost: Cost
    starts_ns: Sequence[float]
    full: float
    gap_ns: float
    pause_ns: float = 0.0

    def check(self, ahead: int, rows: int, limit_ns: float, tightest_ns: float, behind: int = 0) -> Missed | None:
        """Return why a request has no place; None where it has one.

        Args:
            ahead: rows that wait before it.
            rows: of the request.
            limit_ns: until when its answer must come, from now.
            tightest_ns: until when the most urgent answer must come among those that wait, from now.
            behind: rows that wait, and run after the request: they fill its batch up.
        """
        cost, full = self.cost, self.full
        total = ahead + rows
        before = int((total - 1) // full)
        start_ns = self._start_ns(before)
        own = total - before * full
        mates = min(full, own + behind + start_ns / self.gap_ns) if self.gap_ns else full
        end_ns = start_ns + DRIFT * cost.batch_ns(mates)
        if end_ns > limit_ns:
            return Missed(end_ns, limit_ns, self._opens_ns(own, start_ns, limit_ns))
        if not before and start_ns + cost.late_ns(total) > tightest_ns:
            # As the scheduler judges: it would cut the batch, and a small one follows from that.
            return Missed(start_ns + cost.late_ns(total), tightest_ns, limit_ns)
        return None

    def _start_ns(self, before: int) -> float:
        """Return when a batch starts that so many others go before."""
        rounds, place = divmod(before, len(self.starts_ns))
        return self.starts_ns[place] + rounds * DRIFT * (self.cost.batch_ns(self.full) + self.pause_ns)

    def _opens_ns(self, own: float, start_ns: float, limit_ns: float) -> float:
        """Return how long it is until the batch would end in time; fewer will come after a request that comes later."""
        full_ns = DRIFT * self.cost.batch_ns(self.full)
        latest_ns = max(limit_ns - full_ns, 0.0)
        if self.gap_ns:
            row_ns = full_ns / self.full
            rest_ns = limit_ns - full_ns + row_ns * (self.full - own)
            latest_ns = max(latest_ns, rest_ns / (1.0 + row_ns / self.gap_ns))
        return max(start_ns - latest_ns, 0.0)


def most_rows(cost: Cost, max_rows: int, target: Target) -> int:
    """Return how many rows a full batch may have so that it leaves those who come for it a fifth of the limit."""
    return rows_within(cost, max_rows, _BATCH / DRIFT * target.limit_ns)


def applies(overload: OverloadDetector | None, waiting: RequestQueue[E], level: int) -> bool:
    """Whether the batch can be foreseen that a request will be in: a backlog stands, and all that waits is alike."""
    if overload is None or not overload.stands:
        return False
    waiting.prune()  # who has left decides nothing any more
    return len(waiting.lanes) <= 1 and len(waiting.late) <= 1 and len(waiting.kinds) <= 1 and waiting.is_all_of(level)


def tightest_ns(waiting: RequestQueue[E], now_ns: int) -> float:
    """Return until when the most urgent answer must come of what waits on time in one lane, from now."""
    for heap in waiting.lanes.values():
        return heap[0][1] - now_ns
    return float("inf")
