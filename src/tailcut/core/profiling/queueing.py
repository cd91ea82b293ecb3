"""A service as a network of queues: requests go through phases that take a core, a thread, a lock, or only time.

Discrete events. The interpreter is one server, because one thread at a time runs Python; a model, which releases the
interpreter, has the other cores where there are any. Whoever computes needs one of the machine's cores, too. Who has
taken a core for ``_QUANTUM_NS`` goes to the end of the queue, as the system's scheduler has it. Waiting (for a
database, a network) takes no core, only time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

_QUANTUM_NS = 1_000_000.0
_BATCH_QUANTUM_NS = 4_000_000.0
"""A batch on an executor, where others may want its core: nearly what the system lets who only computes run for."""


@unique
class At(IntEnum):
    """Where a phase takes its time."""

    NOWHERE = 0
    """Waiting: as many at once as there are."""
    PYTHON = 1
    """The interpreter: one at a time per process."""
    MODEL = 2
    """An executor: one batch at a time each."""
    DATABASE = 5
    """A database's core."""
    BESIDE = 6
    """A core, from then on, while the request goes on without waiting for it."""
    TAKE = 3
    """Takes one of what only so many may hold (its number in the place of a time), waits where all are taken."""
    GIVE = 4
    """Gives it back."""
    ANSWERED = 7
    """It is answered; what follows is done beside it, and nobody waits for that."""


Phase = tuple[At, float]
"""Where, and nanoseconds; for TAKE and GIVE what: 0 is a thread of the pool, others count as ``Service.held`` does."""
THREAD = 0


@dataclass(frozen=True, kw_only=True)
class Service:
    """What requests go through.

    Attributes:
        processes: interpreters.
        executors: that run models; 0: models take the interpreter's time (one core for all, or on the event loop). What
            waits for it together is then one batch, where there is batching.
        cores: that interpreters and executors share; 0: each has one of its own.
        database: cores that answer queries; 0: as many as are asked for.
        beside: the database takes its turns on the service's cores too, where those are free first.
        database_share: of a query's waiting that the database computes; the rest takes no core.
        threads: of the pool for synchronous handlers; 0: as many as are asked for.
        held: how many at once may hold each lock, semaphore or connection pool; they count from 1.
        batch_share: of a model's time that a batch of any size takes once; the rest is per row. 0: no batching.
        max_rows: of a batch.
    """

    processes: int = 1
    executors: int = 0
    cores: int = 0
    database: int = 0
    beside: bool = False
    database_share: float = 1.0
    threads: int = 0
    held: tuple[int, ...] = ()
    batch_share: float = 0.0
    max_rows: int = 32

    @property
    def has_database(self) -> bool:
        """Whether queries wait for the cores that compute them."""
        return self.database > 0 or self.beside


@dataclass(frozen=True)
class Played:
    """What became of the requests.

    Attributes:
        latency_ns: each, shape [n].
        busy_share: of the time from the first arrival to the last that the interpreters worked.
    """

    latency_ns: npt.NDArray[np.float64]
    busy_share: float


def play(service: Service, arrivals_ns: npt.NDArray[np.float64], jobs: Sequence[Sequence[Phase]]) -> Played:
    """Send requests through a service until all are answered.

    Args:
        arrivals_ns: ascending, shape [n].
        jobs: phases of each, in order; n of them. What is taken is given back, and taken in ascending order by those
            who hold several, or they may wait for one another for ever.
    """
    return _Play(service, arrivals_ns.tolist(), jobs).run()


_Turn = tuple[int, int, int, float]
"""Since when it waits (a count), the request (of a batch: its first), the phase, and nanoseconds left of it."""
_GIVES_NOTHING, _GIVES_PYTHON, _GIVES_DATABASE, _GIVES_CORE = range(4)
_BATCH = -1
_NOBODY = -1
"""In a request's place: who computes beside one."""


class _Play:
    def __init__(self, service: Service, arrivals_ns: list[float], jobs: Sequence[Sequence[Phase]]) -> None:
        self.service = service
        self.arrivals_ns = arrivals_ns
        self.jobs = jobs
        self.done_ns = [-1.0] * len(jobs)
        # (when, tie-breaker, request, phase, nanoseconds left of it or -1 for one that begins, what ends with it)
        self.events = [(at, number, number, 0, -1.0, _GIVES_NOTHING) for number, at in enumerate(arrivals_ns)]
        heapify(self.events)
        self.ties = len(jobs)
        # What is free of each, and who waits for it.
        self.python = max(service.processes, 1)
        self.executors = service.executors
        self.cores = service.cores or self.python + service.executors
        self.database = service.database
        self.places = [service.threads or len(jobs), *service.held]
        self.for_python, self.for_model, self.for_core, self.for_database = (deque[_Turn]() for _ in range(4))
        self.for_place: list[deque[tuple[int, int]]] = [deque() for _ in self.places]
        others = any(at is At.BESIDE for job in jobs for at, _ in job)
        crowded = others or service.beside or self.python + self.executors > self.cores
        self.longest_ns = _BATCH_QUANTUM_NS if crowded else float("inf")
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.forming, self.formed = -1, 0
        self.python_ns = 0.0

    def run(self) -> Played:
        events = self.events
        while events:
            now, _, number, place, left, gives = heappop(events)
            if gives:
                self._give_back(gives)
            if place == _BATCH:
                self._batch_stops(now, number, left)
            else:
                self._reach(now, number, place, left)
            self._begin_turns(now)
        span_ns = self.arrivals_ns[-1] - self.arrivals_ns[0] if self.arrivals_ns else 0.0
        latency_ns = np.array(self.done_ns) - np.array(self.arrivals_ns)
        return Played(latency_ns, self.python_ns / span_ns / max(self.service.processes, 1) if span_ns else 0.0)

    def _later(self, at: float, number: int, place: int, left: float = -1.0, gives: int = _GIVES_NOTHING) -> None:
        self.ties += 1
        heappush(self.events, (at, self.ties, number, place, left, gives))

    def _give_back(self, gives: int) -> None:
        if gives == _GIVES_DATABASE:
            self.database += 1
            return
        self.cores += 1
        if gives == _GIVES_PYTHON:
            self.python += 1

    def _reach(self, now: float, number: int, place: int, left: float) -> None:
        """Begin a request's phase, or go on with it."""
        job, service = self.jobs[number], self.service
        if self.done_ns[number] < 0 and (place == len(job) or job[place][0] is At.ANSWERED):
            self.done_ns[number] = now
        if place == len(job):
            return
        at, length = job[place]
        if at is At.ANSWERED:
            self._later(now, number, place + 1)
        elif at is At.NOWHERE or (at is At.DATABASE and not service.has_database):
            self._later(now + length, number, place + 1)
        elif at is At.TAKE or at is At.GIVE:
            self._take_or_give(now, at, number, place, int(length))
        elif at is At.BESIDE:
            self._wait(self.for_core, _NOBODY, _BATCH, length)
            self._later(now, number, place + 1)
        elif at is At.DATABASE:
            self._wait(self.for_database, number, place, left if left >= 0 else length)
        elif at is At.MODEL and service.executors:
            self._wait(self.for_model, number, place, length)
        else:
            if left < 0:
                left = self._in_batch(number, length) if at is At.MODEL and service.batch_share else length
            self._wait(self.for_python, number, place, left)

    def _wait(self, queue: deque[_Turn], number: int, place: int, left: float) -> None:
        self.ties += 1
        queue.append((self.ties, number, place, left))

    def _take_or_give(self, now: float, at: At, number: int, place: int, what: int) -> None:
        waiting = self.for_place[what]
        if at is At.GIVE:
            self._later(now, number, place + 1)
            if waiting:
                first, where = waiting.popleft()
                self._later(now, first, where + 1)
            else:
                self.places[what] += 1
        elif self.places[what]:
            self.places[what] -= 1
            self._later(now, number, place + 1)
        else:
            waiting.append((number, place))

    def _in_batch(self, number: int, length: float) -> float:
        """What a row takes of the interpreter that runs batches: less where one is still waiting to begin."""
        if self.forming >= 0 and self.formed < self.service.max_rows:
            self.formed += 1
            return length * (1.0 - self.service.batch_share)
        self.forming, self.formed = number, 1
        return length

    def _begin_turns(self, now: float) -> None:
        """Let compute whoever has all that it takes, those first that have waited longest."""
        while True:
            ready = []
            if self.for_database and (self.database or (self.cores and self.service.beside)):
                ready.append(self.for_database)
            if self.cores:
                if self.python and self.for_python:
                    ready.append(self.for_python)
                if self.for_core:
                    ready.append(self.for_core)
                if self.executors and self.for_model:
                    ready.append(self.for_model)
            if not ready:
                return
            queue = ready[0] if len(ready) == 1 else min(ready, key=_waits_since)
            if queue is self.for_model:
                self._begin_batch(now)
            elif queue is self.for_core:
                _, first, _, left = queue.popleft()
                self._run_batch(now, first, left)
            else:
                self._turn(now, queue)

    def _turn(self, now: float, queue: deque[_Turn]) -> None:
        """Take a turn at the interpreter or the database; come back for the rest."""
        _, number, place, left = queue.popleft()
        took = left if left < _QUANTUM_NS else _QUANTUM_NS
        if queue is self.for_python:
            self.python -= 1
            self.cores -= 1
            self.python_ns += took
            gives = _GIVES_PYTHON
            if number == self.forming:
                self.forming = -1
        elif self.database:
            self.database -= 1
            gives = _GIVES_DATABASE
        else:
            self.cores -= 1
            gives = _GIVES_CORE
        if left > took:
            self._later(now + took, number, place, left - took, gives)
        else:
            self._later(now + took, number, place + 1, -1.0, gives)

    def _begin_batch(self, now: float) -> None:
        share, waiting = self.service.batch_share, self.for_model
        rows = min(len(waiting), self.service.max_rows) if share else 1
        batch = [waiting.popleft() for _ in range(rows)]
        lengths = [length for _, _, _, length in batch]
        first = batch[0][1]
        self.executors -= 1
        self.batches[first] = [(number, place) for _, number, place, _ in batch]
        self._run_batch(now, first, share * max(lengths) + (1.0 - share) * sum(lengths) if share else lengths[0])

    def _run_batch(self, now: float, first: int, left: float) -> None:
        took = min(left, self.longest_ns)
        self.cores -= 1
        self._later(now + took, first, _BATCH, left - took, _GIVES_CORE)

    def _batch_stops(self, now: float, first: int, left: float) -> None:
        if left > 0:
            self._wait(self.for_core, first, _BATCH, left)
            return
        if first == _NOBODY:
            return
        self.executors += 1
        for member, place in self.batches.pop(first):
            self._later(now, member, place + 1)


def _waits_since(queue: deque[_Turn]) -> int:
    return queue[0][0]
