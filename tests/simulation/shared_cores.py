"""Several models on one budget of cores: real dispatchers, schedulers and admission, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Dispatcher, ExecutorSet
from tailcut.models.executors import Done
from tailcut.scheduler.admission import Admission
from tailcut.scheduler.batching_delay import Gain
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.scheduler.cost import LatencyLearner
from tailcut.scheduler.overload_detector import LatencyTarget
from tailcut.scheduler.scheduler import Scheduler
from tailcut.testing.clock import FakeClock

_ROW = {"x": np.zeros((1, 1), np.float32)}


@dataclass
class Load:
    """One model and what it is asked.

    Attributes:
        rate: requests a second, of one row each; Poisson.
        row_ms: what a row takes a core in a batch, beside ``batch_ms``.
        limit_ms: of the SLO.
        took_ms: of answered requests, from their arrival.
    """

    rate: float
    row_ms: float = 3.5
    batch_ms: float = 1.5
    max_rows: int = 8
    limit_ms: float = 130.0
    timeout_ms: float = 2000.0
    share: float = 1.0
    executors: int = 1
    asked: int = 0
    took_ms: list[float] = field(default_factory=list)

    def cost_ms(self, rows: int) -> float:
        return self.batch_ms + rows * self.row_ms

    @property
    def good(self) -> float:
        """Answers within the SLO, as a share of what was asked."""
        return sum(took <= self.limit_ms for took in self.took_ms) / max(self.asked, 1)


class _Cores:
    """Cores that all batches that run share evenly, as the kernel's scheduler does it."""

    def __init__(self, cores: int, clock: FakeClock) -> None:
        self._cores, self._clock = cores, clock
        self._left_s: dict[Callable[[], None], float] = {}
        self._at_s = clock.monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    def run(self, work_s: float, ended: Callable[[], None]) -> None:
        self._pass()
        self._left_s[ended] = work_s
        self._next()

    def _pass(self) -> None:
        passed_s, self._at_s = self._clock.monotonic_s() - self._at_s, self._clock.monotonic_s()
        speed = min(1.0, self._cores / max(len(self._left_s), 1))
        self._left_s = {ended: left_s - passed_s * speed for ended, left_s in self._left_s.items()}

    def _next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._left_s:
            speed = min(1.0, self._cores / len(self._left_s))
            due_s = max(min(self._left_s.values()), 0.0) / speed
            self._timer = asyncio.get_running_loop().call_later(due_s, self._end)

    def _end(self) -> None:
        self._pass()
        over = [ended for ended, left_s in self._left_s.items() if left_s <= 1e-9]
        for ended in over:
            del self._left_s[ended]
        self._next()
        for ended in over:
            ended()


class _Executor:
    """Takes as long as its model's batches do."""

    run_rows = 0

    def __init__(self, load: Load, done: Done, clock: FakeClock, draw: np.random.Generator, cores: _Cores) -> None:
        self._load, self._done, self._clock, self._draw, self._cores = load, done, clock, draw, cores

    def start(self, batch: Sequence[BatchItem]) -> None:
        began_ns = self._clock.monotonic_ns()
        took_s = self._load.cost_ms(sum(item.rows for item in batch)) * self._draw.lognormal(0, 0.05) / 1e3
        self._cores.run(took_s, partial(self._end, batch, began_ns))

    def _end(self, batch: Sequence[BatchItem], began_ns: int) -> None:
        self._done(self, batch, [{"y": item.inputs["x"]} for item in batch], began_ns, self._clock.monotonic_ns())

    def close(self, timeout_s: float) -> None: ...


class _Nobody:
    def batch(self, rows: int, duration_ns: int, *arrays: object) -> None: ...


def run(loads: dict[str, Load], *, cores: int, seconds: float, warm_up_s: float = 3.0, shared: bool = True) -> None:
    """Run loads at once on as many cores; what they are answered is in them afterwards.

    Args:
        shared: whether they have one budget; else each believes that it has the cores to itself, as in processes apart.
    """
    clock, budget = FakeClock(), CoreBudget(cores)
    clock.run(_run(clock, budget if shared else None, loads, cores, seconds, warm_up_s))


async def _run(
    clock: FakeClock, budget: CoreBudget | None, loads: dict[str, Load], cores: int, seconds: float, warm_up_s: float
) -> None:
    draw = np.random.default_rng(1)
    arrivals: list[tuple[float, Callable[[], None]]] = []
    start_s = clock.monotonic_s()
    machine = _Cores(cores, clock)
    for name, load in loads.items():
        dispatcher = _dispatcher(clock, budget, name, load, cores)
        for _ in range(cores):
            dispatcher.add(_Executor(load, dispatcher.on_done, clock, draw, machine))
        at_s = 0.0
        while (at_s := at_s + draw.exponential(1 / load.rate)) < seconds:
            arrivals.append((at_s, partial(_ask, clock, dispatcher, load, at_s >= warm_up_s)))
    for at_s, ask in sorted(arrivals, key=lambda one: one[0]):
        await _until(clock, start_s + at_s)
        ask()
    await _until(clock, start_s + seconds + 3)


async def _until(clock: FakeClock, at_s: float) -> None:
    await clock.pass_time(max(at_s - clock.monotonic_s(), 0.0))


def _dispatcher(clock: FakeClock, budget: CoreBudget | None, name: str, load: Load, cores: int) -> Dispatcher:
    target = LatencyTarget(int(load.limit_ms * 1e6), int(load.timeout_ms * 1e6))
    scheduler: Scheduler[BatchItem] = Scheduler(
        max_rows=load.max_rows, max_queue_rows=1024, window=Gain(target.limit_ns), target=target
    )
    costs = LatencyLearner()
    costs.seed({rows: load.cost_ms(rows) * 1e6 for rows in (1, 2, 4, 8, 16) if rows <= load.max_rows})
    join = None
    if budget is not None:
        join = partial(budget.join, name, share=load.share, limit_ns=target.limit_ns)
    return Dispatcher(
        scheduler,
        _Nobody(),
        asyncio.get_running_loop(),
        clock.monotonic_ns,
        running=ExecutorSet(load.timeout_ms / 1e3, cores),
        costs=costs,
        admission=Admission(scheduler, costs),
        cores=join,
    )


def _ask(clock: FakeClock, dispatcher: Dispatcher, load: Load, counted: bool) -> None:
    came_ns = clock.monotonic_ns()
    deadline_ns = came_ns + int(load.timeout_ms * 1e6)
    load.asked += counted
    try:
        if (refusal := dispatcher.refused_unread(came_ns)) is not None:
            raise refusal
        dispatcher.check_room(1, deadline_ns)
        [item] = dispatcher.submit(_ROW, 1, ("y",), deadline_ns, None, since_ns=came_ns)
    except TailcutError:
        return

    def ended(future: asyncio.Future[object]) -> None:
        if counted and not future.cancelled() and future.exception() is None:
            load.took_ms.append((item.finished_ns - came_ns) / 1e6)

    item.future.add_done_callback(ended)
