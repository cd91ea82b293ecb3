"""What a deployment would do under a load: the scheduler, admission and cost model of serving, on a clock of its own.

A discrete-event simulation. Its resources: the event loop, on which every request is received, admitted, planned and
answered, one piece of work after the other; the executors, which run batches beside it (or on it, where the executor is
inline); and the cores. The times of batches come from the scenario; what the scheduler believes is learned from the
batches, as in serving.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ulp

import numpy as np
import numpy.typing as npt

from tailcut.common.statistics import percentile
from tailcut.scheduler.admission import Admission, AdmissionRequest, Executors
from tailcut.scheduler.batching_delay import Window
from tailcut.scheduler.cost import BatchCost, LatencyLearner, left_ns
from tailcut.scheduler.overload_detector import LatencyTarget
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import QueueEntry, Scheduler

LOOP_NS = 60_000.0
"""What a request takes of the event loop where nothing else was measured: the path of one small JSON request."""

_BEFORE = 0.6
"""Share of it before the batch: three fifths read and admit, the rest answers."""
_HICCUP_TIMES = 5.0
_NEAR_NS = 0.01
"""A batch with so little left has ended."""


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
        loop_ns: event loop's time per request.
        inline: batches run on the event loop.
        cores: that executors and event loop share; 0: each executor has one of its own.
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
    cores: float = 0.0
    rows: Sequence[int] = (1,)
    priorities: Sequence[int] = (0,)
    tenants: Sequence[str] = ("",)


@dataclass(frozen=True)
class SimulatedOutcomes:
    """What became of the requests, each at its place, shape [n].

    Attributes:
        latency_ns: from arrival to answer; NaN where there was none.
        shed: refused at arrival.
        timeout_ns: their deadline.
        batches: rows of a batch -> how often.
        end_ns: when the last event was.
        busy_ns: executors' time in batches, summed; for an inline one part of the loop's.
        loop_ns: event loop's time at work, batches that it runs included.
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
        return percentile(found, share) / 1e6 if found.size else float("nan")


def noisy(cost: BatchCost, seed: int, *, sigma: float = 0.1, hiccups: float = 0.0) -> Callable[[int], float]:
    """Draw a batch's time: lognormal noise around the expectation, its mean kept; and now and then a hiccup.

    Args:
        sigma: of the logarithm: 0.1 is about ten percent.
        hiccups: share of the batches that are hit by one and take five times what is expected.
    """
    generator = np.random.default_rng(seed)

    def draw(rows: int) -> float:
        times = float(np.exp(generator.normal(-sigma * sigma / 2, sigma))) if sigma else 1.0
        if hiccups and generator.random() < hiccups:
            times = _HICCUP_TIMES
        return cost.batch_ns(rows) * times

    return draw


def simulate(scenario: Scenario) -> SimulatedOutcomes:
    """Play a scenario to its end."""
    return _Run(scenario).play()


class ProcessorSharing:
    """Batches on some cores, on a clock of the caller's own.

    All running batches advance alike, so one counter of work done by each since the start says when any ends. Source:
    the fluid model of processor sharing, L. Kleinrock, Queueing Systems vol. 2 (1976), section 4.4.

    Args:
        cores: that the batches share with the event loop, which comes first; 0: every batch has its own.
    """

    def __init__(self, cores: float = 0.0) -> None:
        self._cores = cores
        self._done_ns = 0.0
        self._seen_ns = self._loop_ns = 0.0
        self._tasks: list[tuple[float, int, int]] = []
        self._count = 0

    def start(self, now_ns: float, loop_ns: float, work_ns: float, task: int) -> None:
        """Begin a batch.

        Args:
            loop_ns: time that the event loop has had of the cores so far.
            work_ns: what the batch takes with a core of its own.
        """
        self._advance(now_ns, loop_ns)
        self._count += 1
        heappush(self._tasks, (self._done_ns + work_ns, self._count, task))

    def finished(self, now_ns: float, loop_ns: float) -> list[int]:
        """Take out the batches that have ended, in their order."""
        if not self._tasks:
            self._seen_ns, self._loop_ns = now_ns, loop_ns
            return []
        self._advance(now_ns, loop_ns)
        found = []
        while self._tasks and self._tasks[0][0] <= self._done_ns + self._near_ns():
            found.append(heappop(self._tasks)[2])
        return found

    def next_ns(self) -> float | None:
        """Return when the next batch ends if the event loop rests until then; None where none runs."""
        if not self._tasks:
            return None
        speed = min(1.0, self._cores / len(self._tasks)) if self._cores else 1.0
        return self._seen_ns + max(self._tasks[0][0] - self._done_ns, self._near_ns() / 2) / speed

    def _near_ns(self) -> float:
        # After a day the clock's own rounding is coarser than the constant: a shorter step would not move it.
        return max(_NEAR_NS, 2 * ulp(self._seen_ns))

    def _advance(self, now_ns: float, loop_ns: float) -> None:
        elapsed_ns = now_ns - self._seen_ns
        taken_ns = loop_ns - self._loop_ns
        self._seen_ns, self._loop_ns = now_ns, loop_ns
        if self._tasks:
            if self._cores:
                elapsed_ns = min(elapsed_ns, (self._cores * elapsed_ns - taken_ns) / len(self._tasks))
            self._done_ns += max(elapsed_ns, 0.0)


class _Part(QueueEntry):
    """A request, or a part of one that is cut; ``number`` is its place among the arrivals."""

    __slots__ = ("number",)

    def __init__(
        self, number: int, rows: int, deadline_ns: int, priority: int, tenant: str, target_ns: int = 0
    ) -> None:
        super().__init__(rows, deadline_ns, None, priority, tenant=tenant, target_ns=target_ns)
        self.number = number


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.scheduler: Scheduler[_Part] = Scheduler(
            max_rows=scenario.max_rows,
            max_queue_rows=scenario.max_queue_rows,
            merge=scenario.merge,
            window=scenario.window() if scenario.window else None,
            target=LatencyTarget(scenario.limit_ns, scenario.timeout_ns) if scenario.limit_ns else None,
        )
        self.costs = LatencyLearner()
        self.costs.seed(scenario.known)
        self.admission = Admission(self.scheduler, self.costs)
        count = len(scenario.arrivals_ns)
        self.latency_ns = np.full(count, np.nan)
        self.shed = np.zeros(count, dtype=bool)
        self.batches: Counter[int] = Counter()
        self.idle = list(range(scenario.executors))
        self.running: dict[int, tuple[float, int, list[_Part]]] = {}
        self.cores = ProcessorSharing(scenario.cores)
        self.parts: dict[int, list[_Part]] = {}
        self.timers: list[float] = []
        self.ready: deque[tuple[Callable[[int], None], int]] = deque()
        self.now_ns = self.busy_ns = self.loop_ns = 0.0
        self.kick_due = False

    def play(self) -> SimulatedOutcomes:
        arrivals = self.scenario.arrivals_ns
        upcoming = 0
        while True:
            while upcoming < len(arrivals) and arrivals[upcoming] <= self.now_ns:
                self.ready.append((self._arrive, upcoming))
                upcoming += 1
            while self.timers and self.timers[0] <= self.now_ns:
                heappop(self.timers)
                self._schedule_kick()
            for executor in self.cores.finished(self.now_ns, self.loop_ns):
                self.ready.append((self._done, executor))
            if self.ready:
                work, argument = self.ready.popleft()
                work(argument)
                continue
            moments = [float(arrivals[upcoming])] if upcoming < len(arrivals) else []
            moments += self.timers[:1]
            batch_ns = self.cores.next_ns()
            moments += [batch_ns] if batch_ns is not None else []
            if not moments:
                break
            self.now_ns = max(min(moments), self.now_ns)
        spent_ns = self.now_ns, self.busy_ns, self.loop_ns
        timeout_ns, executors = self.scenario.timeout_ns, self.scenario.executors
        return SimulatedOutcomes(self.latency_ns, self.shed, timeout_ns, self.batches, *spent_ns, executors)

    # -- Pieces of work on the event loop -----------------------------------------------------------------------------

    def _work(self, took_ns: float) -> None:
        self.now_ns += took_ns
        self.loop_ns += took_ns

    def _arrive(self, number: int) -> None:
        """Receive, admit and queue one request, cut as the dispatcher cuts one of more rows than a batch."""
        scenario = self.scenario
        self._work(_BEFORE * scenario.loop_ns)
        rows = scenario.rows[number % len(scenario.rows)]
        priority = scenario.priorities[number % len(scenario.priorities)]
        tenant = scenario.tenants[number % len(scenario.tenants)]
        arrived_ns = int(scenario.arrivals_ns[number])
        deadline_ns = arrived_ns + scenario.timeout_ns
        now_ns = int(self.now_ns)
        if tenant or not self.admission.is_easy(now_ns, rows, deadline_ns):
            request = AdmissionRequest(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant)
            if self.admission.check(now_ns, request, self._executors()) is not None:
                self.shed[number] = True
                return
        target_ns = self.scheduler.target_ns(arrived_ns, deadline_ns)
        self.parts[number] = []
        for at in range(0, rows, scenario.max_rows):
            part = _Part(number, min(scenario.max_rows, rows - at), deadline_ns, priority, tenant, target_ns)
            part.arrived_ns = now_ns
            if self.scheduler.offer(part):
                self.parts[number].append(part)
        self._schedule_kick()

    def _reply(self, number: int) -> None:
        self._work((1.0 - _BEFORE) * self.scenario.loop_ns)
        self.latency_ns[number] = self.now_ns - self.scenario.arrivals_ns[number]

    def _kick(self, _: int) -> None:
        """Plan, and start batches."""
        self.kick_due = False
        if not self.idle or not self.scheduler.waiting.rows:
            return
        now_ns = int(self.now_ns)
        count = self.scenario.executors
        plan = self.scheduler.plan(now_ns, len(self.idle), self.costs, executors=count, probe=not self.running)
        self.admission.learn(len(plan.expired))
        for batch in plan.batches:
            self._start(batch)
        if plan.again_ns:
            heappush(self.timers, float(plan.again_ns))

    def _start(self, batch: list[_Part]) -> None:
        rows = sum([entry.rows for entry in batch])
        self.batches[rows] += 1
        service_ns = self.scenario.service(rows)
        self.busy_ns += service_ns
        executor = self.idle.pop()
        self.running[executor] = (self.now_ns, rows, batch)
        if self.scenario.inline:
            self._work(service_ns)
            self._done(executor)
        else:
            self.cores.start(self.now_ns, self.loop_ns, service_ns, executor)

    def _done(self, executor: int) -> None:
        """Take a finished batch back; its answers leave one after the other."""
        started_ns, rows, batch = self.running.pop(executor)
        self.idle.append(executor)
        self.costs.observe(rows, self.now_ns - started_ns)
        self.scheduler.waiting.expire(int(self.now_ns))
        if self.scheduler.waiting.rows and not self.scenario.inline:
            self._schedule_kick()  # before the answers are written, as the dispatcher does
        for entry in batch:
            parts = self.parts[entry.number]
            parts.remove(entry)
            if not parts:  # of a request of which a part expired, that part stays: it has no answer
                del self.parts[entry.number]
                self.ready.append((self._reply, entry.number))
        if self.scheduler.waiting.rows:
            self._schedule_kick()
        else:
            self.scheduler.rest(nothing_runs=not self.running)

    def _schedule_kick(self) -> None:
        if not self.kick_due:
            self.kick_due = True
            self.ready.append((self._kick, 0))

    def _executors(self) -> Executors:
        left = [
            left_ns(self.now_ns - started_ns, rows, self.costs.cost) for started_ns, rows, _ in self.running.values()
        ]
        return Executors(self.scenario.executors, len(self.idle), sum(left), sorted(left))
