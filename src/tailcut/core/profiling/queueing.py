"""A service as a network of queues: requests go through phases that take a core, a thread, or only time.

Discrete events. The interpreter is one server, because one thread at a time runs Python; a model, which releases the
interpreter, has the other cores where there are any. Who has taken a core for ``_QUANTUM_NS`` goes to the end of the
queue, as the system's scheduler has it. Waiting (for a database, a network) takes no core, only time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
import numpy.typing as npt

_QUANTUM_NS = 1_000_000.0


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
    TAKE = 3
    """Takes a thread of the pool, and waits for one where all are taken; the time says nothing."""
    GIVE = 4
    """Gives it back."""


Phase = tuple[At, float]
"""Where, and nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """What requests go through.

    Attributes:
        processes: interpreters.
        executors: that run models; 0: models take the interpreter's time (one core for all, or on the event loop). What
            waits for it together is then one batch, where there is batching.
        database: cores that answer queries; 0: as many as are asked for.
        beside: the database takes its turns on the interpreters' cores too, where those are free first.
        database_share: of a query's waiting that the database computes; the rest takes no core.
        threads: of the pool for synchronous handlers; 0: as many as are asked for.
        batch_share: of a model's time that a batch of any size takes once; the rest is per row. 0: no batching.
        max_rows: of a batch.
    """

    processes: int = 1
    executors: int = 0
    database: int = 0
    beside: bool = False
    database_share: float = 1.0
    threads: int = 0
    batch_share: float = 0.0
    max_rows: int = 32


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
        jobs: phases of each, in order; n of them.
    """
    return _Play(service, arrivals_ns.tolist(), jobs).run()


class _Play:
    def __init__(self, service: Service, arrivals_ns: list[float], jobs: Sequence[Sequence[Phase]]) -> None:
        self.service = service
        self.arrivals_ns = arrivals_ns
        self.jobs = jobs
        self.done_ns = [0.0] * len(jobs)
        # (when, tie-breaker, request, phase, nanoseconds left of it or -1 for a phase that begins)
        self.events = [(at, number, number, 0, -1.0) for number, at in enumerate(arrivals_ns)]
        heapify(self.events)
        self.ties = len(jobs)
        self.free_ns = [0.0] * max(service.processes, 1)
        self.database_ns = [0.0] * service.database
        self.python_ns = 0.0
        self.forming_ns, self.formed = -1.0, 0
        self.threads = service.threads or len(jobs)
        self.for_thread: deque[tuple[int, int]] = deque()
        self.idle = service.executors
        self.for_model: deque[tuple[int, int, float]] = deque()
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def run(self) -> Played:
        events, jobs = self.events, self.jobs
        shared, beside = self.service.executors == 0, self.service.beside
        while events:
            now, _, number, place, left = heappop(events)
            if place < 0:
                self._batch_done(now, number)
                continue
            job = jobs[number]
            if place == len(job):
                self.done_ns[number] = now
                continue
            at, length = job[place]
            if at is At.NOWHERE:
                self._later(now + length, number, place + 1)
            elif at is At.PYTHON or (at is At.MODEL and shared):
                self._in_turn(self.free_ns, now, at, number, place, left if left >= 0 else length, left < 0)
            elif at is At.DATABASE:
                cores = self._free_first(now) if beside else self.database_ns
                self._in_turn(cores, now, at, number, place, left if left >= 0 else length, left < 0)
            else:
                self._resource(now, at, number, place, length)
        span_ns = self.arrivals_ns[-1] - self.arrivals_ns[0] if self.arrivals_ns else 0.0
        latency_ns = np.array(self.done_ns) - np.array(self.arrivals_ns)
        return Played(latency_ns, self.python_ns / span_ns / len(self.free_ns) if span_ns else 0.0)

    def _free_first(self, now: float) -> list[float]:
        """Of the database's cores and the interpreters', those of which one is free first; its own where all are."""
        own = self.database_ns
        return own if own and own[0] <= max(self.free_ns[0], now) else self.free_ns

    def _in_turn(
        self, free_ns: list[float], now: float, at: At, number: int, place: int, left: float, begins: bool
    ) -> None:
        """Take a turn at one of some servers, the one that is free first; come back for the rest."""
        if not free_ns:
            self._later(now + left, number, place + 1)
            return
        free = free_ns[0]
        if begins and at is At.MODEL and self.service.batch_share:
            left = self._in_batch(now, free, left)
        took = left if left < _QUANTUM_NS else _QUANTUM_NS
        end = (free if free > now else now) + took
        heapreplace(free_ns, end)
        if at is not At.DATABASE:
            self.python_ns += took
        if left > took:
            self._later(end, number, place, left - took)
        else:
            self._later(end, number, place + 1)

    def _in_batch(self, now: float, free: float, length: float) -> float:
        """What a row takes of the interpreter that runs batches: less where one is still waiting to begin."""
        if now <= self.forming_ns and self.formed < self.service.max_rows:
            self.formed += 1
            return length * (1.0 - self.service.batch_share)
        self.forming_ns, self.formed = max(free, now), 1
        return length

    def _later(self, at: float, number: int, place: int, left: float = -1.0) -> None:
        self.ties += 1
        heappush(self.events, (at, self.ties, number, place, left))

    def _resource(self, now: float, at: At, number: int, place: int, length: float) -> None:
        if at is At.TAKE:
            if self.threads:
                self.threads -= 1
                self._later(now, number, place + 1)
            else:
                self.for_thread.append((number, place))
        elif at is At.GIVE:
            self._later(now, number, place + 1)
            if self.for_thread:
                waiting, where = self.for_thread.popleft()
                self._later(now, waiting, where + 1)
            else:
                self.threads += 1
        else:
            self.for_model.append((number, place, length))
            self._start_batches(now)

    def _start_batches(self, now: float) -> None:
        share = self.service.batch_share
        while self.idle and self.for_model:
            rows = min(len(self.for_model), self.service.max_rows) if share else 1
            batch = [self.for_model.popleft() for _ in range(rows)]
            lengths = [length for _, _, length in batch]
            took = share * max(lengths) + (1.0 - share) * sum(lengths) if share else lengths[0]
            self.idle -= 1
            self.batches[batch[0][0]] = [(number, place) for number, place, _ in batch]
            self._later(now + took, batch[0][0], -1)

    def _batch_done(self, now: float, number: int) -> None:
        self.idle += 1
        for member, place in self.batches.pop(number):
            self._later(now, member, place + 1)
        self._start_batches(now)
