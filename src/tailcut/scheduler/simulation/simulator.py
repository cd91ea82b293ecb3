"""What a deployment would do under a load: the scheduler, admission and cost model of serving, on a clock of its own.

A discrete-event simulation. Its resources: the event loop, on which every request is received, admitted, planned and
answered, one piece of work after the other; the executors, which run batches beside it (or on it, where the executor is
inline); threads for slow hooks, which share the interpreter with the loop; and the cores. The steps of requests and the
times of batches come from the scenario; what the scheduler believes is learned from the batches, as in serving.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from tailcut.scheduler.admission import Admission, Executors, Request
from tailcut.scheduler.latency_learner import LatencyLearner
from tailcut.scheduler.latency_model import left_ns
from tailcut.scheduler.overload_detector import Target
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import Entry, Scheduler
from tailcut.scheduler.simulation.processor_sharing import ProcessorSharing
from tailcut.scheduler.simulation.request_steps import Kind, Step
from tailcut.scheduler.simulation.scenario import Outcome, Scenario

__all__ = ["Outcome", "Scenario", "simulate"]

HOOK_THREADS = 8
"""Threads for slow hooks in serving."""

SWITCH_NS = 5_000_000.0
"""How long a thread that computes in Python keeps the interpreter from the event loop (sys.getswitchinterval)."""

_TIMER, _RESUME, _COMPUTE = 0, 1, 2


def simulate(scenario: Scenario) -> Outcome:
    """Play a scenario to its end."""
    return _Run(scenario).play()


class _Part(Entry):
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
            target=Target(scenario.limit_ns, scenario.timeout_ns) if scenario.limit_ns else None,
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
        self.steps: dict[int, list[Step]] = {}
        self.events: list[tuple[float, int, int]] = []
        self.ready: deque[tuple[Callable[[int], None], int]] = deque()
        self.threads = HOOK_THREADS
        self.calls: deque[tuple[int, float]] = deque()
        self.computing: deque[int] = deque()
        self.call_ns: dict[int, float] = {}
        self.now_ns = 0.0
        self.busy_ns = self.loop_ns = self.hook_ns = 0.0
        self.kick_due = False

    def play(self) -> Outcome:
        arrivals = self.scenario.arrivals_ns
        upcoming = 0
        while True:
            while upcoming < len(arrivals) and arrivals[upcoming] <= self.now_ns:
                self.ready.append((self._arrive, upcoming))
                upcoming += 1
            while self.events and self.events[0][0] <= self.now_ns:
                self._event()
            for executor in self.cores.finished(self.now_ns, self.loop_ns + self.hook_ns):
                self.ready.append((self._done, executor))
            if self.ready:
                work, argument = self.ready.popleft()
                work(argument)
                continue
            if self.computing:
                self._compute()
                continue
            moments = [float(arrivals[upcoming])] if upcoming < len(arrivals) else []
            moments += [self.events[0][0]] if self.events else []
            batch_ns = self.cores.next_ns()
            moments += [batch_ns] if batch_ns is not None else []
            if not moments:
                break
            self.now_ns = max(min(moments), self.now_ns)
        scenario = self.scenario
        spent_ns = self.now_ns, self.busy_ns, self.loop_ns, self.hook_ns
        return Outcome(self.latency_ns, self.shed, scenario.timeout_ns, self.batches, *spent_ns, scenario.executors)

    def _event(self) -> None:
        _, kind, number = heappop(self.events)
        if kind == _TIMER:
            self._schedule_kick()
        elif kind == _RESUME:
            self.ready.append((self._advance, number))
        else:
            self.computing.append(number)

    # -- Pieces of work on the event loop -----------------------------------------------------------------------------

    def _work(self, took_ns: float) -> None:
        self.now_ns += took_ns
        self.loop_ns += took_ns

    def _arrive(self, number: int) -> None:
        """Receive and admit one request."""
        scenario = self.scenario
        steps = list(reversed(scenario.steps(number)))
        if steps and steps[-1].kind is Kind.LOOP:
            self._work(steps.pop().amount)
        rows = sum([int(step.amount) for step in steps if step.kind is Kind.MODEL])
        if rows and not self._admitted(number, rows):
            self.shed[number] = True
            return
        self.steps[number] = steps
        self._advance(number)

    def _admitted(self, number: int, rows: int) -> bool:
        priority, tenant, deadline_ns = self._terms(number)
        now_ns = int(self.now_ns)
        if not tenant and self.admission.is_easy(now_ns, rows, deadline_ns):
            return True
        request = Request(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant)
        return self.admission.check(now_ns, request, self._executors()) is None

    def _terms(self, number: int) -> tuple[int, str, int]:
        scenario = self.scenario
        priority = scenario.priorities[number % len(scenario.priorities)]
        tenant = scenario.tenants[number % len(scenario.tenants)]
        return priority, tenant, int(scenario.arrivals_ns[number]) + scenario.timeout_ns

    def _advance(self, number: int) -> None:
        """Begin a request's next step; one on the event loop waits for its turn."""
        steps = self.steps[number]
        while steps:
            step = steps[-1]
            if step.kind is Kind.LOOP:
                self.ready.append((self._on_loop, number))
                return
            steps.pop()
            if step.kind is Kind.WAIT:
                heappush(self.events, (self.now_ns + step.amount, _RESUME, number))
                return
            if step.kind is Kind.THREAD:
                self.calls.append((number, step.amount))
                self._start_calls()
                return
            if step.kind is Kind.MODEL:
                self._offer(number, int(step.amount))
                return
            self.latency_ns[number] = self.now_ns + step.amount - self.scenario.arrivals_ns[number]
        del self.steps[number]

    def _on_loop(self, number: int) -> None:
        self._work(self.steps[number].pop().amount)
        self._advance(number)

    def _offer(self, number: int, rows: int) -> None:
        """Queue a request, cut as the dispatcher cuts one of more rows than a batch."""
        scenario = self.scenario
        priority, tenant, deadline_ns = self._terms(number)
        target_ns = self.scheduler.target_ns(int(scenario.arrivals_ns[number]), deadline_ns)
        self.parts[number] = []
        for at in range(0, rows, scenario.max_rows):
            part = _Part(number, min(scenario.max_rows, rows - at), deadline_ns, priority, tenant, target_ns)
            part.arrived_ns = int(self.now_ns)
            if self.scheduler.offer(part):
                self.parts[number].append(part)
        self._schedule_kick()

    def _kick(self, _: int) -> None:
        """Plan, and start batches."""
        self.kick_due = False
        if not self.idle or not self.scheduler.queue_rows:
            return
        now_ns = int(self.now_ns)
        count = self.scenario.executors
        plan = self.scheduler.plan(now_ns, len(self.idle), self.costs, executors=count, probe=not self.running)
        self.admission.learn(len(plan.expired))
        for batch in plan.batches:
            self._start(batch)
        if plan.again_ns:
            heappush(self.events, (float(plan.again_ns), _TIMER, 0))

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
            self.cores.start(self.now_ns, self.loop_ns + self.hook_ns, service_ns, executor)

    def _done(self, executor: int) -> None:
        """Take a finished batch back; its answers leave one after the other."""
        started_ns, rows, batch = self.running.pop(executor)
        self.idle.append(executor)
        self.costs.observe(rows, self.now_ns - started_ns)
        self.scheduler.expire(int(self.now_ns))
        if self.scheduler.queue_rows and not self.scenario.inline:
            self._schedule_kick()  # before the answers are written, as the dispatcher does
        for entry in batch:
            parts = self.parts[entry.number]
            parts.remove(entry)
            if not parts:  # of a request of which a part expired, that part stays: it has no answer
                del self.parts[entry.number]
                self._advance(entry.number)
        if self.scheduler.queue_rows:
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

    # -- Hooks in threads ---------------------------------------------------------------------------------------------

    def _start_calls(self) -> None:
        """Give threads to calls, in order; a call whose request is too late is dropped."""
        while self.calls and self.threads:
            number, took_ns = self.calls.popleft()
            if self._terms(number)[2] <= self.now_ns:
                continue
            self.threads -= 1
            wait_ns = took_ns * self.scenario.hook_wait
            self.call_ns[number] = took_ns - wait_ns
            if wait_ns:
                heappush(self.events, (self.now_ns + wait_ns, _COMPUTE, number))
            else:
                self.computing.append(number)

    def _compute(self) -> None:
        """Run one call for a turn of the interpreter; the event loop waits that long."""
        number = self.computing.popleft()
        turn_ns = min(self.call_ns[number], SWITCH_NS)
        self.now_ns += turn_ns
        self.hook_ns += turn_ns
        self.call_ns[number] -= turn_ns
        if self.call_ns[number] > 0.0:
            self.computing.append(number)
            return
        del self.call_ns[number]
        self.threads += 1
        self._start_calls()
        self.ready.append((self._advance, number))
