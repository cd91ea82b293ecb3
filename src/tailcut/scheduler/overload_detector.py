"""By when the SLO wants an answer, and whether a backlog stands: whether it outlasts any burst.

A backlog that a burst leaves behind is worked off, late but within the deadlines. One that stands is not: whatever is
let in then makes everybody late for as long as the load lasts. So long as it stands, what would be late for the SLO is
refused, and all that is accepted is answered within it; until so little comes that all of it can be. (A good queue and
a bad one are told apart by how long they last, not by how long they are: K. Nichols and V. Jacobson, "Controlling Queue
Delay", ACM Queue 10(5), 2012.)
"""

from __future__ import annotations

from typing import NamedTuple

_WITHIN = 0.06
_WITHIN_NS = 4_000_000
_LEAST_LIMIT_NS = 30_000_000
"""So long before the SLO's limit batches are to have ended: that part of it, but no more than four milliseconds, and
nothing of limits so short that it would cost more than it saves. The request was on its way before it was seen, and its
answer still has to leave: where more waits than can be in time, answers come exactly as late as they are let come, and
of bursts into a model on the server's only core a third was late by up to four milliseconds of sixty."""

_AIM = 0.75
"""Part of the SLO's limit that admission fills while a backlog stands of requests that do not share batches. Then
answers come as late as they are let come, so that every error of the prediction, and what the client meets outside the
server, makes one late. The executors need no long queue to be busy."""

_EDGE = 0.9
"""The same for requests whose batch is foreseen (``scheduler.admission.OverloadAdmission``).

Less would leave batches no time to fill up."""

_PATIENCE = 20
"""A backlog stands once some were late for so many times the SLO's limit without a break. The same ratio as CoDel's
interval and target; bursts of a quarter of a second do not count for a limit of 25 ms. Who is refused for the deadline
would have been late as well."""

_BURST_NS = 500_000_000
"""And no backlog stands before so long, where the time-out is shorter: that may be two bursts."""

_FEWER = 0.95
"""Once what came in a while takes less than this part of it, the backlog does not stand any more."""

_ENOUGH = 100
"""A while is as long as a backlog takes to stand, and until so many requests came; but no longer than _PATIENCE. The
number of fewer varies by more than the overloads do that matter: of 16 a second by a quarter."""

_USUAL = 0.9
"""Of the usual deadline so much is left of who has only been received."""

_GAPS = 50
"""About so many gaps between rows count."""


class LatencyTarget(NamedTuple):
    """What the SLO wants of one request.

    Attributes:
        limit_ns: from its arrival to its answer.
        timeout_ns: the deadline of a request that brings none.
    """

    limit_ns: int
    timeout_ns: int

    def of(self, since_ns: int, deadline_ns: int) -> int:
        """Return by when it wants the answer to a request that came at ``since_ns``; never after its deadline.

        A client that sends a longer deadline than usual can wait for so much longer.
        """
        usual_ns, patient_ns = since_ns + self.limit_ns, deadline_ns - self.timeout_ns + self.limit_ns
        return min(deadline_ns, max(usual_ns, patient_ns))

    def is_usual(self, left_ns: int) -> bool:
        """Whether a request has no more and no clearly less than the usual time left."""
        return left_ns <= self.timeout_ns and not self.is_short(left_ns)

    def is_short(self, left_ns: int) -> bool:
        """Whether it has clearly less."""
        return left_ns < _USUAL * self.timeout_ns


class OverloadDetector:
    """Whether a backlog stands.

    Args:
        target: of the SLO.

    Attributes:
        aim, edge: the targets that admission fills while the backlog stands; ``edge`` where a batch is foreseen.
        stands: from when this is known until less comes than can be answered.
        gap_ns: between two rows that come while it stands; 0 before the second.
        retry_ns: what the last request was told to wait that was refused for the SLO.
    """

    def __init__(self, target: LatencyTarget) -> None:
        self.target = target
        self._early_ns = min(int(_WITHIN * target.limit_ns), _WITHIN_NS) if target.limit_ns >= _LEAST_LIMIT_NS else 0
        self.aim = target._replace(limit_ns=int(_AIM * target.limit_ns))
        self.edge = target._replace(limit_ns=int(_EDGE * target.limit_ns))
        self.stands = False
        self.gap_ns = 0.0
        self._gaps = 0
        self._requests = self._uncounted = 0
        self._work_ns = 0.0
        self._came_since_ns = self._last_ns = 0
        self.retry_ns = 0.0
        self._full_until_ns = 0
        self._full_rows = 0
        self._patience_ns = min(max(target.timeout_ns, _BURST_NS), _PATIENCE * target.limit_ns)
        self._late_since_ns = -1
        self._missed_ns = self._seen_ns = -1

    def by_ns(self, since_ns: int, deadline_ns: int) -> int:
        """Return by when a batch must end for the SLO's sake.

        A little before the target; but not where the deadline leaves who is late for it no other batch, nor while a
        backlog stands: admission has seen to it then, and batches need the time to be full.
        """
        target_ns = self.target.of(since_ns, deadline_ns)
        has_time = deadline_ns - target_ns >= self.target.limit_ns and not self.stands
        return target_ns - self._early_ns if has_time else target_ns

    def missed(self, now_ns: int, left_ns: int, own_ns: float) -> None:
        """Record a shed request: it would have missed its deadline.

        Where the deadline is close to the SLO's limit, hardly anybody waits late: who would, is refused. It shows
        nothing where its time-out is shorter than usual, or where the SLO is out of its reach.

        Args:
            left_ns: until its deadline.
            own_ns: what it takes alone.
        """
        if own_ns <= self.aim.limit_ns and not self.target.is_short(left_ns):
            if now_ns - self._seen_ns > self.target.limit_ns:
                self._late_since_ns = -1  # a break without a plan
            self._missed_ns = self._seen_ns = now_ns

    def see(self, now_ns: int, *, late: bool) -> None:
        """Record a plan: whether some that wait are late for the SLO.

        Where none are, there is no break yet as long as the last who was refused for the deadline came within the
        limit.
        """
        seen_ns = now_ns if late else self._missed_ns
        self._seen_ns = max(seen_ns, self._seen_ns)
        if seen_ns < 0 or now_ns - seen_ns > self.target.limit_ns:
            self._late_since_ns = -1
        elif self._late_since_ns < 0:
            self._late_since_ns = seen_ns
        elif seen_ns - self._late_since_ns > self._patience_ns and not self.stands:
            self.stands = True
            self.gap_ns, self._gaps, self._last_ns = 0.0, 0, now_ns
            self._begin(now_ns)

    def arrived(self, now_ns: int, rows: int, row_ns: float = 0.0) -> None:
        """Record a request while the backlog stands, and of its end.

        Args:
            row_ns: what the executors take together for a row like its own; 0 where it is not known here: as much as
                for the next one of which it is.
        """
        self._gaps = min(self._gaps + rows, _GAPS)
        gap_ns = max(now_ns - self._last_ns, 0) / rows  # some have waited a little since they came
        self.gap_ns += (gap_ns - self.gap_ns) * min(rows / self._gaps, 1.0)
        self._last_ns = max(now_ns, self._last_ns)
        self._requests += 1
        self._uncounted += rows
        if not row_ns:
            return
        self._work_ns += self._uncounted * row_ns
        self._uncounted = 0
        passed_ns = now_ns - self._came_since_ns
        longest_ns = _PATIENCE * self.target.limit_ns
        if passed_ns > self._patience_ns and (self._requests >= _ENOUGH or passed_ns > longest_ns):
            self.stands = self._work_ns > _FEWER * passed_ns
            self._begin(now_ns)
            if not self.stands:
                self._late_since_ns = -1

    def _begin(self, now_ns: int) -> None:
        """Begin to count what comes."""
        self._requests = self._uncounted = 0
        self._work_ns, self._came_since_ns = 0.0, now_ns

    def is_seen(self, now_ns: int) -> bool:
        """Whether the backlog stands and requests still come: who does not come cannot end it."""
        return self.stands and now_ns - self._last_ns <= self._patience_ns

    def refused(self, now_ns: int, opens_ns: float, rows: int, retry_ns: float) -> None:
        """Record a shed request: it would have been late.

        Args:
            opens_ns: for how long one like it would be refused as well, unless less waits.
            rows: that waited.
            retry_ns: what it was told to wait.
        """
        self._full_until_ns = now_ns + int(opens_ns)
        self._full_rows = rows
        self.retry_ns = retry_ns

    def is_full(self, now_ns: int, rows: int) -> bool:
        """Whether a request like the last that was refused would be refused as well: no less waits than did then.

        Args:
            rows: that wait.
        """
        return now_ns < self._full_until_ns and rows >= self._full_rows

    def rest(self) -> None:
        """Note that nothing waits and nothing runs."""
        self._full_until_ns = 0
        self._late_since_ns = -1
        self._missed_ns = self._seen_ns = -1
