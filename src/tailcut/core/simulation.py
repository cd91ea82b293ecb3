"""What a deployment would do under a load: the planner, admission and cost model of serving, on a clock of its own.

A discrete-event simulation. Two kinds of resource: the event loop, on which every request is received, admitted,
planned and answered, one piece of work after the other; and the executors, which run batches beside it (or on it,
where the executor is inline). What batches really take is drawn by ``service``; what the planner believes is learned
from them, as in serving.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from tailcut.core.admission import Admission, Executors, Request
from tailcut.core.batching import Entry, Planner
from tailcut.core.costs import left_ns
from tailcut.core.learning import Costs
from tailcut.core.overload import Target
from tailcut.core.waiting import DEFAULT_LEVEL
from tailcut.core.windows import Window

LOOP_NS = 60_000.0
"""What a request takes of the event loop where nothing else was measured: the path of one small JSON request."""

_RECEIVING = 0.6
"""The part of it before the request waits for an executor: reading, decoding, checking."""

_ARRIVE, _DONE, _TIMER = 0, 1, 2


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
        inline: batches run on the event loop.
        shared: executors and event loop share one core: what the loop works, batches wait for.
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
    inline: bool = False
    shared: bool = False
    rows: Sequence[int] = (1,)
    priorities: Sequence[int] = (0,)
    tenants: Sequence[str] = ("",)


class Arrival(Entry):
    """A request on its way; ``number`` is its place among the arrivals."""

    __slots__ = ("number",)

    def __init__(
        self, number: int, rows: int, deadline_ns: int, priority: int, tenant: str, target_ns: int = 0
    ) -> None:
        super().__init__(rows, deadline_ns, None, priority, tenant=tenant, target_ns=target_ns)
        self.number = number


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
        loop_ns: event loop's time at work.
        executors: how many there were.
    """

    latency_ns: npt.NDArray[np.float64]
    shed: npt.NDArray[np.bool_]
    timeout_ns: int
    batches: Counter[int]
    end_ns: float
    busy_ns: float
    loop_ns: float
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


def simulate(scenario: Scenario) -> Outcome:
    """Play a scenario to its end."""
    return _Run(scenario).play()


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.planner: Planner[Arrival] = Planner(
            max_rows=scenario.max_rows,
            max_queue_rows=scenario.max_queue_rows,
            merge=scenario.merge,
            window=scenario.window() if scenario.window else None,
            target=Target(scenario.limit_ns, scenario.timeout_ns) if scenario.limit_ns else None,
        )
        self.costs = Costs()
        self.costs.seed(scenario.known)
        self.admission = Admission(self.planner, self.costs)
        count = len(scenario.arrivals_ns)
        self.latency_ns = np.full(count, np.nan)
        self.shed = np.zeros(count, dtype=bool)
        self.batches: Counter[int] = Counter()
        self.idle = list(range(scenario.executors))
        self.running: dict[int, tuple[float, int, list[Arrival]]] = {}
        self.parts: dict[int, list[Arrival]] = {}
        self.events: list[tuple[float, int, int, float]] = []
        self.ready: deque[tuple[Callable[[int], float], int]] = deque()
        self.now_ns = 0.0
        self.busy_ns = self.loop_ns = 0.0
        self.kick_due = False

    def play(self) -> Outcome:
        arrivals = self.scenario.arrivals_ns
        upcoming = 0
        events = self.events
        while True:
            while upcoming < len(arrivals) and arrivals[upcoming] <= self.now_ns:
                self.ready.append((self._arrive, upcoming))
                upcoming += 1
            while events and events[0][0] <= self.now_ns:
                self._event()
            if self.ready:
                work, argument = self.ready.popleft()
                self.loop_ns += work(argument)
                continue
            moments = [float(arrivals[upcoming])] if upcoming < len(arrivals) else []
            moments += [events[0][0]] if events else []
            if not moments:
                break
            self.now_ns = min(moments)
        scenario = self.scenario
        spent_ns = self.now_ns, self.busy_ns, self.loop_ns
        return Outcome(self.latency_ns, self.shed, scenario.timeout_ns, self.batches, *spent_ns, scenario.executors)

    def _event(self) -> None:
        at_ns, kind, number, seen_ns = heappop(self.events)
        if kind == _TIMER:
            self._schedule_kick()
            return
        stolen_ns = self.loop_ns - seen_ns
        if self.scenario.shared and stolen_ns > 0:
            heappush(self.events, (at_ns + stolen_ns, _DONE, number, self.loop_ns))
            return
        self.ready.append((self._done, number))

    # -- Pieces of work on the event loop; each returns how long it took ----------------------------------------------

    def _arrive(self, number: int) -> float:
        """Receive, admit and queue one request."""
        scenario = self.scenario
        took_ns = scenario.loop_ns * _RECEIVING
        self.now_ns += took_ns
        rows = scenario.rows[number % len(scenario.rows)]
        priority = scenario.priorities[number % len(scenario.priorities)]
        tenant = scenario.tenants[number % len(scenario.tenants)]
        deadline_ns = int(scenario.arrivals_ns[number]) + scenario.timeout_ns
        now_ns = int(self.now_ns)
        if tenant or not self.admission.is_easy(now_ns, rows, deadline_ns):
            request = Request(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant)
            if self.admission.check(now_ns, request, self._executors()) is not None:
                self.shed[number] = True
                return took_ns
        target_ns = self.planner.target_ns(int(scenario.arrivals_ns[number]), deadline_ns)
        self.parts[number] = []
        for at in range(0, rows, scenario.max_rows):  # as the dispatcher cuts requests of more rows than a batch
            part = Arrival(number, min(scenario.max_rows, rows - at), deadline_ns, priority, tenant, target_ns)
            part.arrived_ns = now_ns
            if self.planner.offer(part):
                self.parts[number].append(part)
        self._schedule_kick()
        return took_ns

    def _kick(self, _: int) -> float:
        """Plan, and start batches."""
        self.kick_due = False
        took_ns = 0.0
        if not self.idle or not self.planner.queue_rows:
            return took_ns
        now_ns = int(self.now_ns)
        count = self.scenario.executors
        plan = self.planner.plan(now_ns, len(self.idle), self.costs, executors=count, probe=not self.running)
        self.admission.learn(len(plan.expired))
        for batch in plan.batches:
            took_ns += self._start(batch)
        if plan.again_ns:
            heappush(self.events, (float(plan.again_ns), _TIMER, 0, 0.0))
        return took_ns

    def _start(self, batch: list[Arrival]) -> float:
        rows = sum([entry.rows for entry in batch])
        self.batches[rows] += 1
        service_ns = self.scenario.service(rows)
        self.busy_ns += service_ns
        executor = self.idle.pop()
        self.running[executor] = (self.now_ns, rows, batch)
        if not self.scenario.inline:
            heappush(self.events, (self.now_ns + service_ns, _DONE, executor, self.loop_ns))
            return 0.0
        self.now_ns += service_ns
        return service_ns + self._done(executor)

    def _done(self, executor: int) -> float:
        """Take a finished batch back; its answers leave one after the other."""
        started_ns, rows, batch = self.running.pop(executor)
        self.idle.append(executor)
        self.costs.observe(rows, self.now_ns - started_ns)
        self.planner.expire(int(self.now_ns))
        if self.planner.queue_rows and not self.scenario.inline:
            self._schedule_kick()  # before the answers are written, as the dispatcher does
        for entry in batch:
            parts = self.parts[entry.number]
            parts.remove(entry)
            if not parts:  # of a request of which a part expired, that part stays: it has no answer
                self.ready.append((self._answer, entry.number))
        if self.planner.queue_rows:
            self._schedule_kick()
        else:
            self.planner.rest(nothing_runs=not self.running)
        return 0.0

    def _answer(self, number: int) -> float:
        del self.parts[number]
        took_ns = self.scenario.loop_ns * (1.0 - _RECEIVING)
        self.now_ns += took_ns
        self.latency_ns[number] = self.now_ns - self.scenario.arrivals_ns[number]
        return took_ns

    def _schedule_kick(self) -> None:
        if not self.kick_due:
            self.kick_due = True
            self.ready.append((self._kick, 0))

    def _executors(self) -> Executors:
        left = [
            left_ns(self.now_ns - started_ns, rows, self.costs.cost) for started_ns, rows, _ in self.running.values()
        ]
        return Executors(self.scenario.executors, len(self.idle), sum(left), sorted(left))
