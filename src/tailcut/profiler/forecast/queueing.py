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
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from tailcut.profiler.forecast.service_model import At, Phase, ServiceModel

Floats = npt.NDArray[np.float64]
Jobs = Sequence[Sequence[Phase]]

_QUANTUM_NS = 1_000_000.0
_BATCH_QUANTUM_NS = 4_000_000.0
"""A batch on an executor, where others may want its core: nearly what the system lets who only computes run for."""


@dataclass(frozen=True)
class Played:
    """What became of the requests.

    Attributes:
        latency_ns: each, shape [n].
        busy_share: of the time from the first arrival to the last that the interpreters worked.
    """

    latency_ns: Floats
    busy_share: float


def play(service: ServiceModel, arrivals_ns: Floats, jobs: Jobs) -> Played:
    """Send requests through a service until all are answered.

    Args:
        arrivals_ns: ascending, shape [n].
        jobs: phases of each, in order; n of them. What is taken is given back, and taken in ascending order by those
            who hold several, or they may wait for one another for ever.
    """
    run = _Play(service, arrivals_ns.tolist(), jobs)
    run.play()
    return run.played()


def keeps_within(service: ServiceModel, arrivals_ns: Floats, jobs: Jobs, *, limit_ns: float, late: int) -> bool:
    """Tell whether at most ``late`` requests take longer than a limit; with one more it ends early. See ``play``."""
    run = _Play(service, arrivals_ns.tolist(), jobs)
    run.limit_ns = limit_ns
    run.play(late)
    return run.late <= late


_Turn = tuple[int, int, int, float]
"""Since when it waits (a count), the request (of a batch: its first), the phase, and nanoseconds left of it."""
_GIVES_NOTHING, _GIVES_PYTHON, _GIVES_DATABASE, _GIVES_CORE = range(4)
_BATCH, _NOBODY = -1, -1
"""In place of a request's phase, and of a request that something computes beside."""
_NOWHERE, _PYTHON, _MODEL, _DATABASE = At.NOWHERE, At.PYTHON, At.MODEL, At.DATABASE  # quicker to look up
_TAKES_NO_TIME = (At.TAKE, At.GIVE)


class _Play:
    def __init__(self, service: ServiceModel, arrivals_ns: list[float], jobs: Jobs) -> None:
        self.service = service
        self.limit_ns, self.late = float("inf"), 0
        self.arrivals_ns = arrivals_ns
        self.jobs = jobs
        self.done_ns = [-1.0] * len(jobs)
        # (when, tie-breaker, request, phase, nanoseconds left of it or -1 for one that begins, what ends with it)
        # Of those that have not come yet only the next one: a short heap is quick.
        self.events = [(at, 0, 0, 0, -1.0, _GIVES_NOTHING) for at in arrivals_ns[:1]]
        self.come, self.ties = 1, len(jobs)
        # What is free of each, and who waits for it.
        self.python = max(service.processes, 1)
        self.executors = service.executors
        self.cores = service.cores or self.python + service.executors
        self.database = service.database
        self.places = [service.threads or len(jobs), *service.held, self.python]
        self.for_python, self.for_model, self.for_core, self.for_database = (deque[_Turn]() for _ in range(4))
        self.for_place: list[deque[tuple[int, int]]] = [deque() for _ in self.places]
        distinct = {id(job): job for job in jobs}.values()  # thousands of requests are drawn from a few hundred jobs
        others = any(at in (At.BESIDE, At.WORKER) for job in distinct for at, _ in job)
        crowded = others or service.beside or self.python + self.executors > self.cores
        self.longest_ns = _BATCH_QUANTUM_NS if crowded else float("inf")
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.forming, self.formed = -1, 0
        self.python_ns = 0.0

    def play(self, late: int = 0) -> None:
        """Play events until all requests are answered, or more than ``late`` took longer than the limit."""
        events, arrivals_ns = self.events, self.arrivals_ns
        while events and self.late <= late:
            now, tie, number, place, left, gives = heappop(events)
            if tie == number and self.come < len(arrivals_ns):  # it has come just now
                heappush(events, (arrivals_ns[self.come], self.come, self.come, 0, -1.0, _GIVES_NOTHING))
                self.come += 1
            if gives:
                self._give_back(gives)
            # Whoever could begin has begun, but for those for whom something was given back just now.
            alone = not (gives and self._anybody_waits())
            if place == _BATCH:
                self._batch_stops(now, number, left)
            else:
                self._reach(now, number, place, left, alone)
            if self._anybody_waits():
                self._begin_turns(now)

    def played(self) -> Played:
        span_ns = self.arrivals_ns[-1] - self.arrivals_ns[0] if self.arrivals_ns else 0.0
        latency_ns = np.array(self.done_ns) - np.array(self.arrivals_ns)
        return Played(latency_ns, self.python_ns / span_ns / max(self.service.processes, 1) if span_ns else 0.0)

    def _anybody_waits(self) -> bool:
        return bool(self.for_python or self.for_core or self.for_model or self.for_database)

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

    def _reach(self, now: float, number: int, place: int, left: float, alone: bool) -> None:
        """Begin a request's phase, or continue it. TAKE and GIVE need no event of their own unless another is due now.

        Args:
            alone: nobody else may begin now: it need not wait for its turn to be told.
        """
        job, service = self.jobs[number], self.service
        while place < len(job) and job[place][0] in _TAKES_NO_TIME:
            if not self._takes_or_gives(now, number, place):
                return
            place += 1
            if self._anybody_waits() or (self.events and self.events[0][0] <= now):  # others come first
                self._later(now, number, place)
                return
        if place == len(job):
            self._end(now, number)
            return
        at, length = job[place]
        if at is _MODEL and service.executors:
            self._wait(self.for_model, number, place, length)
        elif at is _PYTHON or at is _MODEL:
            if left < 0:
                left = self._in_batch(number, length) if at is _MODEL and service.batch_share else length
            self._compute(now, number, place, left, alone)
        elif at is _NOWHERE or (at is _DATABASE and not service.has_database):
            self._later(now + length, number, place + 1)
        elif at is _DATABASE:
            self._wait(self.for_database, number, place, left if left >= 0 else length)
        elif at is At.WORKER:
            self._wait(self.for_core, number, place, left if left >= 0 else length)
        elif at is At.BESIDE:
            self._wait(self.for_core, _NOBODY, _BATCH, length)
            self._later(now, number, place + 1)
        else:
            self._end(now, number)
            self._later(now, number, place + 1)

    def _end(self, now: float, number: int) -> None:
        if self.done_ns[number] < 0:
            self.done_ns[number] = now
            self.late += now - self.arrivals_ns[number] > self.limit_ns

    def _compute(self, now: float, number: int, place: int, left: float, alone: bool) -> None:
        if alone and self.python and self.cores:
            self._turn_of_python(now, number, place, left)
        else:
            self._wait(self.for_python, number, place, left)

    def _wait(self, queue: deque[_Turn], number: int, place: int, left: float) -> None:
        self.ties += 1
        queue.append((self.ties, number, place, left))

    def _takes_or_gives(self, now: float, number: int, place: int) -> bool:
        """Take or give; return whether the request continues at once, and not by an event."""
        at, length = self.jobs[number][place]
        what = int(length)
        waiting = self.for_place[what]
        if at is At.GIVE:
            if not waiting:
                self.places[what] += 1
                return True
            self._later(now, number, place + 1)
            first, where = waiting.popleft()
            self._later(now, first, where + 1)
        elif self.places[what]:
            self.places[what] -= 1
            return True
        else:
            waiting.append((number, place))
        return False

    def _in_batch(self, number: int, length: float) -> float:
        """What a row takes of the interpreter that runs batches: less where one is still waiting to begin."""
        if self.forming >= 0 and self.formed < self.service.max_rows:
            self.formed += 1
            return length * (1.0 - self.service.batch_share)
        self.forming, self.formed = number, 1
        return length

    def _begin_turns(self, now: float) -> None:
        """Let compute whoever has all that it takes, those first that have waited longest."""
        while (queue := self._longest_waiting()) is not None:
            if queue is self.for_model:
                self._begin_batch(now)
                continue
            _, number, place, left = queue.popleft()
            if queue is self.for_python:
                self._turn_of_python(now, number, place, left)
            elif queue is self.for_core:
                self._turn_at_core(now, number, place, left)
            else:
                self._turn_of_database(now, number, place, left)

    def _longest_waiting(self) -> deque[_Turn] | None:
        """Return the queue whose first has waited longest, of those that something is free for."""
        found = None
        if self.cores:
            if self.python and self.for_python:
                found = self.for_python
            if self.for_core and (found is None or self.for_core[0] < found[0]):
                found = self.for_core
            if self.executors and self.for_model and (found is None or self.for_model[0] < found[0]):
                found = self.for_model
        is_computed = self.database or (self.cores and self.service.beside)
        if self.for_database and is_computed and (found is None or self.for_database[0] < found[0]):
            found = self.for_database
        return found

    def _turn_of_python(self, now: float, number: int, place: int, left: float) -> None:
        """Take a turn at the interpreter; come back for the rest."""
        self.python -= 1
        self.cores -= 1
        if number == self.forming:
            self.forming = -1
        took = left if left < _QUANTUM_NS else self._longest_turn(now, left)
        self.python_ns += took
        self._after_turn(now + took, number, place, left - took, _GIVES_PYTHON)

    def _longest_turn(self, now: float, left: float) -> float:
        """A turn's length: where no other waits, it lasts until after the next event, which may bring one that does."""
        if not self.events or self._anybody_waits():
            return _QUANTUM_NS
        return min(left, ((self.events[0][0] - now) // _QUANTUM_NS + 1.0) * _QUANTUM_NS)

    def _turn_of_database(self, now: float, number: int, place: int, left: float) -> None:
        """Take a turn at the database; come back for the rest."""
        if self.database:
            self.database -= 1
            gives = _GIVES_DATABASE
        else:
            self.cores -= 1
            gives = _GIVES_CORE
        took = left if left < _QUANTUM_NS else _QUANTUM_NS
        self._after_turn(now + took, number, place, left - took, gives)

    def _turn_at_core(self, now: float, number: int, place: int, left: float) -> None:
        """Let a batch, or a worker process, take a turn at a core; come back for the rest."""
        if place == _BATCH:
            self._run_batch(now, number, left)
            return
        self.cores -= 1
        took = left if left < _QUANTUM_NS else _QUANTUM_NS
        self._after_turn(now + took, number, place, left - took, _GIVES_CORE)

    def _after_turn(self, at: float, number: int, place: int, left: float, gives: int) -> None:
        self.ties += 1
        if left > 0:
            heappush(self.events, (at, self.ties, number, place, left, gives))
        else:
            heappush(self.events, (at, self.ties, number, place + 1, -1.0, gives))

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
