"""Admission: whether a request that comes now can be answered in time, and what it is told where it cannot.

A request is refused at arrival where the prediction says that it would miss its deadline, or make others miss theirs
that were accepted before it: what is accepted is answered. The prediction for one that comes now is

    (what the running batches still take + what runs before it) / executors + its own batch

with a margin for what is not known exactly, and, for all that is not in the next batch, a reserve for one hiccup as
they were seen lately. Where not even that batch could wait a hiccup out, there is no reserve: it would save nobody.

While a backlog stands it is refused as well where it would miss the SLO: see ``OverloadAdmission``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import sqrt
from typing import Generic, Literal, NamedTuple

from tailcut.scheduler.cost import DRIFT, FREE, BatchCost, LatencyLearner
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.request_queue import DEFAULT_LEVEL, E, RequestQueue
from tailcut.scheduler.scheduler import Scheduler, rows_within

__all__ = ["Admission", "AdmissionRequest", "Executors", "Refusal"]

# Which tenants asked lately, and how many rows each may still ask for: a bucket of tokens each.

_ACTIVE_NS = 2_000_000_000
_MOST = 1024
"""A tenant is there for two seconds after its last request; so many are remembered."""


class Tenants:
    """Remembers tenants.

    Args:
        rows_per_s: most rows a second of one, a second's worth at once; 0: no limit.
    """

    def __init__(self, rows_per_s: float = 0.0) -> None:
        self.rows_per_s = rows_per_s
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Tenant -> when it last asked, and the rows that it could still ask for, then."""

    def asks(self, now_ns: int, tenant: str, rows: int) -> float:
        """Record a request; return the nanoseconds until its tenant may ask for so many rows, 0 for now."""
        rate, most = self.rows_per_s, max(self.rows_per_s, 1.0)
        asked_ns, tokens = self._known.get(tenant, (now_ns, most))
        tokens = min(tokens + rate * (now_ns - asked_ns) / 1e9, most)
        self._known[tenant] = now_ns, tokens
        self._known.move_to_end(tenant)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        short = min(rows, most) - tokens
        return short / rate * 1e9 if rate and short > 0 else 0.0

    def charge(self, tenant: str, rows: int) -> None:
        """Take the rows of a request that is let in from what its tenant may ask for."""
        asked_ns, tokens = self._known[tenant]
        # Below zero where one request brings more than a second's worth: it is paid for by waiting afterwards.
        self._known[tenant] = asked_ns, tokens - rows

    def others(self, now_ns: int, tenant: str) -> bool:
        """Whether another tenant asked lately."""
        if len(self._known) < 2:
            return False
        for other in reversed(self._known):
            if other != tenant:
                return now_ns - self._known[other][0] <= _ACTIVE_NS
        return False


class Refusal(NamedTuple):
    """Why a request is not accepted.

    Attributes:
        why: "rows" or "bytes": the queue is full; "late": it would miss its deadline; "slo": it would miss the SLO's
            target, and a backlog stands; "crowds": others would miss theirs; "tenant": its tenant has more than its
            share of the queue; "rate": more than its rate.
        never: it could not be accepted at any time.
        value, limit: what was seen and what is allowed, in the unit of ``why`` (nanoseconds for "late", "slo" and
            "crowds").
        ahead_rows: rows that would run first.
        retry_ns: when it may be accepted.
    """

    why: Literal["rows", "bytes", "late", "slo", "crowds", "tenant", "rate"]
    value: float
    limit: float
    retry_ns: float
    ahead_rows: int = 0
    never: bool = False


class Executors(NamedTuple):
    """What the executors are doing.

    Attributes:
        usable: how many can be counted on.
        idle: how many of them run nothing.
        left_ns: what the running batches are still expected to take, summed.
        ends_ns: the same of each, ascending.
        part: of their time that the model can count on, where others share the cores.
    """

    usable: int
    idle: int
    left_ns: float
    ends_ns: Sequence[float] = ()
    part: float = 1.0

    @property
    def speed(self) -> float:
        """How many batches run at a time, on average."""
        return max(self.usable, 1) * self.part


class AdmissionRequest(NamedTuple):
    """What admission needs to know of a request."""

    rows: int
    deadline_ns: int
    level: int = DEFAULT_LEVEL
    tenant: str = ""
    size_bytes: int = 0
    kind: int = 0


_SIGMAS = 2.0
"""The upper quantile's distance from the expectation is taken so many times: one in a thousand may be later."""

_MORE_CAUTION = 0.5
_MOST_CAUTION = 4.0
_CALM = 0.9995
"""Batches that the margin grows by where a promise was broken, the most of them, and what is left after each plan."""

_OTHERS = 0.5
"""While others are there, a tenant's own backlog counts for so much more than it is."""


class Admission(Generic[E]):
    """Decides who is let in. Pure but for what it remembers of tenants.

    Args:
        scheduler: holds what waits.
        costs: what batches take.
        tenant_share: most of the queue, in rows and bytes, that one tenant may hold: 0 to 1.
        tenant_rows_per_s: most rows a second of one tenant, a second's worth at once; 0: no limit.
    """

    def __init__(
        self,
        scheduler: Scheduler[E],
        costs: LatencyLearner,
        *,
        tenant_share: float = 1.0,
        tenant_rows_per_s: float = 0.0,
    ) -> None:
        self._scheduler = scheduler
        self._waiting = scheduler.waiting
        self._easy_rows = min(scheduler.max_rows, scheduler.max_queue_rows)
        self._costs = costs
        self._share = tenant_share
        self._caution = 0.0
        self._looked_at = FREE
        self._easy_ns = 0.0
        self._filled: dict[int, tuple[BatchCost, float]] = {}
        """Kind -> its cost, and the rows of a full batch by it."""
        self._tenants = Tenants(tenant_rows_per_s)

    def is_easy(self, now_ns: int, rows: int, deadline_ns: int, kind: int = 0) -> bool:
        """Whether a request without a tenant can be let in without a closer look.

        It is in the next batch, and has time for four that take long. Most requests are let in so.
        """
        waiting, overload = self._waiting, self._scheduler.overload
        kinds = waiting.kinds
        if overload is not None and overload.stands:
            return False
        if waiting.rows + rows > self._easy_rows or (kinds and (len(kinds) > 1 or kind not in kinds)):
            return False
        cost = self._costs.of(kind)
        if cost is not self._looked_at:
            self._looked_at, self._easy_ns = cost, 4 * cost.late_ns(self._scheduler.max_rows)
        return deadline_ns - now_ns > self._easy_ns > 0

    def check(
        self, now_ns: int, request: AdmissionRequest, executors: Executors, *, counted: bool = False
    ) -> Refusal | None:
        """Return why the request is refused; None where it is let in.

        A tenant's rate is charged with what is let in.

        Args:
            counted: it was let in before and is looked at once more, after its features were fetched.
        """
        charged = bool(self._tenants.rows_per_s and request.tenant) and not counted
        refusal = self._check_room(request, executors)
        if refusal is None and request.tenant:
            refusal = self._check_tenant(now_ns, request, executors, charged)
        if not counted and (refusal is None or not (refusal.never or refusal.why == "rate")):
            self.came(now_ns, request, executors)  # the others are none of this server's to answer
        if refusal is None:
            refusal = self._check_time(now_ns, request, executors)
        if refusal is None and charged:
            self._tenants.charge(request.tenant, request.rows)
        return refusal

    def came(self, now_ns: int, request: AdmissionRequest, executors: Executors) -> None:
        """Count a request as come: that decides how long a backlog stands. ``check`` does, unless told ``counted``."""
        overload = self._scheduler.overload
        if overload is not None and overload.stands:
            overload.arrived(now_ns, request.rows, self._row_ns(request, executors))

    def _check_time(self, now_ns: int, request: AdmissionRequest, executors: Executors) -> Refusal | None:
        """Refuse what would be late, or make others late."""
        if (not self._scheduler.waiting.rows and executors.idle) or request.deadline_ns <= now_ns:
            # Where nobody is before it, whatever is predicted: what is too high must not close the door. And what is
            # too late already the scheduler answers, as it does for everybody.
            return None
        waiting, rows, deadline_left_ns = self._scheduler.waiting, request.rows, request.deadline_ns - now_ns
        left_ns = self._left_ns(deadline_left_ns, self._costs.of(request.kind).batch_ns(rows))
        shared = bool(request.tenant) and self._tenants.others(now_ns, request.tenant)
        own = int(_OTHERS * (waiting.tenants.get(request.tenant, 0) + rows)) if shared else 0
        if left_ns != deadline_left_ns and applies(self._scheduler.overload, waiting, request.level):
            return self._check_place(now_ns, own, request, executors)
        all_ns = self.wait_ns(waiting.rows + own, request, executors, left_ns)
        if all_ns <= left_ns:
            return None
        first = waiting.rows_before(request.level, request.deadline_ns) + own
        if first < waiting.rows + own:
            all_ns = self.wait_ns(first, request, executors, left_ns)
        if all_ns > left_ns:
            retry_ns = self.drain_ns(executors)
            if left_ns == deadline_left_ns:
                self._missed(now_ns, first - own, request, executors)
                return Refusal("late", all_ns, left_ns, retry_ns, first)
            return self._refuse(now_ns, request, Missed(all_ns, left_ns, all_ns - left_ns), retry_ns, first)
        return self._check_later(now_ns, first, request, executors)

    def _check_place(self, now_ns: int, own: int, request: AdmissionRequest, executors: Executors) -> Refusal | None:
        """Refuse who has no place in a batch that ends in time, while a backlog stands.

        Args:
            own: rows that its tenant's own backlog counts for more than it is.
        """
        overload, waiting, cost = self._scheduler.overload, self._waiting, self._costs.of(request.kind)
        assert overload is not None
        starts_ns = [0.0] * executors.idle + list(executors.ends_ns) or [executors.left_ns]
        full = self._full_rows(request.kind)
        pause_ns = cost.batch_ns(full) * (1.0 / executors.part - 1.0)
        boarding = OverloadAdmission(cost, starts_ns, full, overload.gap_ns, pause_ns)
        limit_ns = overload.edge.of(0, request.deadline_ns - now_ns)
        # Who can wait for longer than usual is behind those who cannot. A short deadline is no pass.
        before = waiting.rows_before(request.level, max(request.deadline_ns, now_ns + overload.target.timeout_ns))
        ahead, behind = before + own, waiting.rows - before
        missed = boarding.check(ahead, request.rows, limit_ns, tightest_ns(waiting, now_ns), behind)
        if missed is None:
            return self._check_later(now_ns, ahead, request, executors)
        return self._refuse(now_ns, request, missed, self.drain_ns(executors), ahead)

    def _refuse(self, now_ns: int, request: AdmissionRequest, missed: Missed, retry_ns: float, ahead: int) -> Refusal:
        overload, rows = self._scheduler.overload, self._waiting.rows
        assert overload is not None
        is_usual = request.level == DEFAULT_LEVEL and request.rows == 1 and ahead == rows
        if is_usual and overload.target.is_usual(request.deadline_ns - now_ns):
            overload.refused(now_ns, missed.opens_ns, rows, retry_ns)
        return Refusal("slo", missed.end_ns, missed.limit_ns, retry_ns, ahead)

    def _missed(self, now_ns: int, ahead: int, request: AdmissionRequest, executors: Executors) -> None:
        """Record a request that is refused for the deadline, not only for its priority or its tenant's own backlog."""
        overload, left_ns = self._scheduler.overload, request.deadline_ns - now_ns
        usual = request.level <= DEFAULT_LEVEL
        if overload is not None and usual and self.wait_ns(ahead, request, executors, left_ns) > left_ns:
            overload.missed(now_ns, left_ns, self._costs.of(request.kind).batch_ns(request.rows))

    def _full_rows(self, kind: int) -> float:
        """Rows of a batch where how much is done is all that counts, while a backlog stands."""
        scheduler, cost = self._scheduler, self._costs.of(kind)
        if not scheduler.merge:
            return max(scheduler.batch_rows, 1.0)
        known = self._filled.get(kind)
        if known is None or known[0] is not cost:
            assert scheduler.overload is not None
            full = min(cost.full_rows(scheduler.max_rows), most_rows(cost, scheduler.max_rows, scheduler.overload.edge))
            known = cost, float(full if scheduler.window is None else scheduler.window.rows(full))
            self._filled[kind] = known
        return known[1]

    def _row_ns(self, request: AdmissionRequest, executors: Executors) -> float:
        """What all executors together take for a row of full batches of such requests.

        How long its rows are is not known yet: of all kinds that wait it may be any.
        """
        kinds = self._waiting.kinds or {request.kind: 1}
        found = 0.0
        for kind, count in kinds.items():
            size = self._full_rows(kind) if self._scheduler.merge else float(request.rows)
            if 1 < request.rows <= self._scheduler.max_rows:
                size = max(size // request.rows, 1.0) * request.rows  # requests are not divided to fill a batch
            found += count * self._costs.of(kind).batch_ns(size) / size
        return found / sum(kinds.values()) / executors.speed

    def _left_ns(self, left_ns: int, own_ns: float) -> int:
        """Return until when an answer must come, from now, of what is left until the deadline.

        Args:
            own_ns: what the request takes alone.
        """
        overload = self._scheduler.overload
        if overload is None or not overload.stands or own_ns > overload.aim.limit_ns:
            return left_ns  # in the last case the SLO is out of its reach, whatever else is refused
        return overload.aim.of(0, left_ns)

    def wait_ns(self, ahead_rows: int, request: AdmissionRequest, executors: Executors, left_ns: float = 0.0) -> float:
        """Return when a request that comes now is predicted to be answered at the latest, from now.

        Args:
            ahead_rows: rows that run first.
            left_ns: until its deadline: whether there can be a reserve for a hiccup.
        """
        cost = self._costs.of(request.kind)
        count = max(executors.usable, 1)
        full = max(self._scheduler.batch_rows, 1.0)
        total = ahead_rows + request.rows
        # Behind a backlog others come after it, so that its own batch will be full.
        own_ns = cost.batch_ns(min(total, full))
        before_ns = max(self._drain_ns(total, full, cost) - own_ns, 0.0)
        spread_ns = cost.spread_ns(own_ns)
        wait_ns = DRIFT * (executors.left_ns / count + before_ns / executors.speed + own_ns) + spread_ns
        if total <= full * count:
            return wait_ns  # it is in the next batch
        spare_ns = left_ns - 2 * cost.batch_ns(full)
        margin_ns = _SIGMAS * sqrt(1.0 + total / full / count) * spread_ns + self._caution * own_ns
        if margin_ns + cost.hiccup_ns <= spare_ns:
            margin_ns += cost.hiccup_ns
        return wait_ns + max(min(margin_ns, spare_ns), 0.0)

    def learn(self, broken: int) -> None:
        """Record a plan: how many requests it gave up that had been accepted.

        Whatever the reason, the promise was too bold: the margin grows at once and shrinks slowly.
        """
        if broken:
            self._caution = min(self._caution + _MORE_CAUTION, _MOST_CAUTION)
        elif self._caution:
            self._caution *= _CALM

    def drain_ns(self, executors: Executors) -> float:
        """Return how long all that runs and waits now takes; at least a millisecond."""
        return max(self.wait_ns(self._scheduler.waiting.rows, AdmissionRequest(0, 0), executors), 1e6)

    def queued_ns(self) -> float:
        """Return what one executor would need for all that waits, whatever its lengths."""
        return self._drain_ns(self._scheduler.waiting.rows, max(self._scheduler.batch_rows, 1.0), self._costs.cost)

    def _drain_ns(self, rows: int, full: float, cost: BatchCost) -> float:
        """Time of ``rows`` on one executor; where several kinds wait, each as it is."""
        kinds = self._scheduler.waiting.kinds
        if not kinds:
            return cost.drain_ns(rows, full)
        waiting = self._scheduler.waiting.rows
        found = sum([self._costs.of(kind).drain_ns(count, full) for kind, count in kinds.items()])
        if rows <= waiting:
            return found * rows / waiting
        return found + cost.batch_ns(min(rows - waiting, full))

    def _check_later(self, now_ns: int, first: int, request: AdmissionRequest, executors: Executors) -> Refusal | None:
        """Refuse what would take the place of others that were promised theirs."""
        cost = self._costs.of(request.kind)
        full = max(self._scheduler.batch_rows, 1.0)
        each_ns = DRIFT * cost.batch_ns(full) / full / executors.speed
        added_ns = each_ns * request.rows
        at_ns = self.wait_ns(first, request._replace(rows=0), executors)
        for deadline_ns, rows in self._scheduler.waiting.later(request.level, request.deadline_ns):
            at_ns += each_ns * rows
            left_ns = deadline_ns - now_ns
            if at_ns <= left_ns < at_ns + added_ns:
                return Refusal("crowds", at_ns + added_ns, left_ns, self.drain_ns(executors), first)
        return None

    def _check_room(self, request: AdmissionRequest, executors: Executors) -> Refusal | None:
        scheduler = self._scheduler
        waiting = scheduler.waiting
        if waiting.rows + request.rows > scheduler.max_queue_rows:
            return self._full("rows", request.rows, waiting.rows, scheduler.max_queue_rows, executors)
        if waiting.size_bytes + request.size_bytes > scheduler.max_queue_bytes:
            return self._full("bytes", request.size_bytes, waiting.size_bytes, scheduler.max_queue_bytes, executors)
        return None

    def _full(
        self, why: Literal["rows", "bytes"], size: int, waiting: int, limit: int, executors: Executors
    ) -> Refusal:
        return Refusal(why, waiting if size <= limit else size, limit, self.drain_ns(executors), never=size > limit)

    def _check_tenant(
        self, now_ns: int, request: AdmissionRequest, executors: Executors, charged: bool
    ) -> Refusal | None:
        short_ns = self._tenants.asks(now_ns, request.tenant, request.rows)
        if charged and short_ns:
            return Refusal("rate", request.rows, self._tenants.rows_per_s, short_ns)
        if self._share < 1.0:
            limit = max(self._share * self._scheduler.max_queue_rows, 1.0)
            held = self._scheduler.waiting.tenants.get(request.tenant, 0)
            if held and held + request.rows > limit:
                return Refusal("tenant", held, limit, self.drain_ns(executors))
        return None


# -- Admission during sustained overload -------------------------------------------------------------------------------


# A request is accepted if its batch is predicted to end within the SLO.
# An overloaded server must keep its batches large, or its throughput falls further. But a request that has waited for
# long can be answered in time in a small batch only, and a request that arrives while a small batch runs waits for long
# in its turn: small batches stay small. So no request is accepted before the next batch can be a full one that ends in
# time for the first request in it. Refusing the requests before that costs nothing, because more arrive than fit.
#
# (In queueing theory a server behind such a gate is a gated one: H. Takagi, "Analysis of Polling Systems", 1986.)

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

    cost: BatchCost
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
        rounds, place = divmod(before, len(self.starts_ns))
        start_ns = self.starts_ns[place] + rounds * DRIFT * (cost.batch_ns(full) + self.pause_ns)
        own = total - before * full
        mates = min(full, own + behind + start_ns / self.gap_ns) if self.gap_ns else full
        end_ns = start_ns + DRIFT * cost.batch_ns(mates)
        if end_ns > limit_ns:
            return Missed(end_ns, limit_ns, self._opens_ns(own, start_ns, limit_ns))
        if not before and start_ns + cost.late_ns(total) > tightest_ns:
            # As the scheduler judges: it would cut the batch, and a small one follows from that.
            return Missed(start_ns + cost.late_ns(total), tightest_ns, limit_ns)
        return None

    def _opens_ns(self, own: float, start_ns: float, limit_ns: float) -> float:
        """Return how long it is until the batch would end in time; fewer will come after a request that comes later."""
        full_ns = DRIFT * self.cost.batch_ns(self.full)
        latest_ns = max(limit_ns - full_ns, 0.0)
        if self.gap_ns:
            row_ns = full_ns / self.full
            rest_ns = limit_ns - full_ns + row_ns * (self.full - own)
            latest_ns = max(latest_ns, rest_ns / (1.0 + row_ns / self.gap_ns))
        return max(start_ns - latest_ns, 0.0)


def most_rows(cost: BatchCost, max_rows: int, target: LatencyTarget) -> int:
    """Return how many rows a full batch may have so that it leaves those who come for it a fifth of the limit."""
    return rows_within(cost, max_rows, _BATCH / DRIFT * target.limit_ns)


def applies(overload: OverloadDetector | None, waiting: RequestQueue[E], level: int) -> bool:
    """Whether the batch can be foreseen that a request will be in: a backlog stands, and all that waits is alike."""
    if overload is None or not overload.stands:
        return False
    waiting.prune()  # cancelled requests no longer count
    return len(waiting.lanes) <= 1 and len(waiting.late) <= 1 and len(waiting.kinds) <= 1 and waiting.is_all_of(level)


def tightest_ns(waiting: RequestQueue[E], now_ns: int) -> float:
    """Return until when the most urgent answer must come of what waits on time in one lane, from now."""
    for heap in waiting.lanes.values():
        return heap[0][1] - now_ns
    return float("inf")
