"""Drives the scheduler: hands batches to idle executors and every item its one end.

Owned by the event loop: every method is called on it. Submissions of one turn of the loop are planned together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from tailcut.common.tensors import Arrays, Keys
from tailcut.errors import InferTimeout, QueueTimeout, TailcutError
from tailcut.models import shed_errors
from tailcut.models.batch_item import BatchItem, WrongRows, bytes_of, cut, length_class
from tailcut.models.executors import Executor, InlineExecutor
from tailcut.scheduler.admission import Admission, AdmissionRequest, Executors
from tailcut.scheduler.batching_delay import Fixed
from tailcut.scheduler.core_budget import CoreUser
from tailcut.scheduler.cost import BatchCost, CostSource, LatencyLearner, left_ns
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import Scheduler

NEVER_NS = 2**63 - 1
"""Later than every deadline."""

_NUMBERS = count(1)
"""Of batches, of all dispatchers of the process."""

_SHORT_NS, _SOME = 1_000_000, 7
"""Of batches that are expected to take up to a millisecond, one in eight is learned from: they come fast enough."""


Cores = Callable[[Callable[[], object]], CoreUser]
"""Joins a budget of cores; takes what is called when a batch may begin."""


class Dispatcher:
    """The one place where batches are formed for a device.

    Args:
        observer: told the rows and duration of every finished batch.
        running, costs, admission: holds the executors, none yet; of the scheduler.
        lengths: whether rows differ in length, so that costs are learned per length class.
        cores: joins the budget of the cores that it shares with other models; None where it has them to itself.

    ``on_stuck`` hears once of an executor whose batch takes far too long; ``coming`` says when the next one is there;
    ``kind`` is that of the shortest rows that came, ``single`` whether all requests had one row.
    """

    def __init__(
        self,
        scheduler: Scheduler[BatchItem],
        observer: BatchObserver,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int] = perf_counter_ns,
        *,
        running: ExecutorSet | None = None,
        costs: LatencyLearner | None = None,
        admission: Admission[BatchItem] | None = None,
        lengths: bool = False,
        cores: Cores | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.costs = costs or LatencyLearner()
        self.admission = admission or Admission(scheduler, self.costs)
        self.batch_retry = BatchRetry()
        self.on_stuck: Callable[[Executor], None] | None = None
        self.coming: Callable[[], Coming | None] | None = None
        self._lengths = lengths
        self._observer = observer
        self._loop = loop
        self._clock_ns = clock_ns
        self.running = ExecutorSet(1.0) if running is None else running
        self._closed, self._kick_due, self._runs, self.kind, self.single = False, False, 0, 0, True
        self._admitted_ns = -1
        self._delays_lone = isinstance(scheduler.window, Fixed)  # by that rule lone requests wait for some
        # One timer for all deadlines: wakes no later than the earliest, at the cost of one comparison per request.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = self._noted_ns = NEVER_NS
        self._window: asyncio.TimerHandle | None = None
        self._ended: asyncio.Event | None = None
        self._cores = cores(self._schedule_kick) if cores is not None else None

    def add(self, executor: Executor) -> None:
        """Put an idle executor to use; at any time."""
        self.running.join(executor)
        self._schedule_kick()

    def remove(self, executor: Executor) -> asyncio.Future[None]:
        """Give an executor no further batch. The future is done when it runs none; the caller closes it then."""
        self._schedule_kick()  # one that rested may begin in its place
        return self.running.leave(executor)

    def fail(self, executor: Executor, error: TailcutError) -> None:
        """Do without an executor that died or hangs: its batch runs once more elsewhere, each request alone.

        Alone, because one of them may have killed it. Who was run again before, or is late, gets ``error``. What the
        executor still reports of its batch is ignored; the caller closes it.
        """
        now_ns = NEVER_NS if self._closed else self._clock_ns()
        lost = self.running.lose(executor)
        if self._cores is not None:
            self._cores.ended(executor, self._clock_ns())
        for item in self.batch_retry.rescue(lost, error, now_ns):
            self.scheduler.waiting.add(item)  # accepted before: there is a place for it whatever waits now
        self._schedule_kick()
        self._tell_ended()

    @property
    def healthy(self) -> bool:
        """Whether at least one executor is not stuck in a batch that runs far longer than it should."""
        return self.running.usable > 0

    def check_room(self, rows: int, deadline_ns: int = NEVER_NS, *, priority: int = 0, tenant: str = "") -> None:
        """Refuse what could not be queued now, or not be answered in time; priority and tenant as for ``submit``.

        Raises:
            TooLarge: the queue could never take the rows.
            Shed: it cannot now, they would be answered after ``deadline_ns``, or the tenant asks for too much.
            NotReady: the dispatcher is closed, or no executor is there and the next one comes too late.
        """
        running = self.running
        if self._closed:
            raise shed_errors.unavailable()
        self._admitted_ns, self.single = deadline_ns, self.single and rows == 1
        if not tenant and len(running.executors) > len(running.stuck):
            # As admission says, in short: what is let in without doubt should not pay for asking.
            if running.idle and not self.scheduler.waiting.rows and rows <= self.scheduler.max_queue_rows:
                return
            if self.admission.is_easy(self._clock_ns(), rows, deadline_ns, self.kind):
                return
        # Its length is not known yet: as if it were one of the shortest.
        self._admit(
            AdmissionRequest(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant, kind=self.kind), counted=False
        )

    def refused_unread(self, now_ns: int) -> TailcutError | None:
        """Return why a request of the usual kind that arrives now is shed; None if its body must be read to decide.

        At three times the capacity two of three requests are shed. Reading and checking their bodies would take most
        of the time that they cost, and that time would be missing for those that are answered.

        The usual kind has no deadline, priority or tenant of its own. Where rows differ in length, a short request may
        have a chance that a long one, shed milliseconds before, did not have. While all requests had one row, each is
        judged as it comes; else what was seen last counts. (The number of rows is not known before the body is read.
        A request that alone takes longer than the SLO is judged by its deadline: more rows may be let in than one.)
        """
        scheduler = self.scheduler
        overload = scheduler.overload
        if overload is None or not overload.stands:
            return None
        if not scheduler.waiting.rows and self.running.idle:
            return None  # it would run at once
        if overload.is_full(now_ns, scheduler.waiting.rows):
            overload.arrived(now_ns, 1)
            return shed_errors.overloaded(overload.target.limit_ns, overload.retry_ns)
        if not self.single or self.running.usable <= 0:
            return None
        request = AdmissionRequest(1, now_ns + overload.target.timeout_ns, kind=self.kind)
        executors, refusal = self._judge(request, now_ns, counted=True)
        if refusal is not None:
            self.admission.came(now_ns, request, executors)  # one that is read is judged again, and counts then
        return refusal

    def _admit(self, request: AdmissionRequest, *, counted: bool) -> None:
        _, refusal = self._judge(request, self._clock_ns(), counted=counted)
        if refusal is not None:
            raise refusal

    def _judge(self, request: AdmissionRequest, now_ns: int, *, counted: bool) -> tuple[Executors, TailcutError | None]:
        """Return what the executors are doing, and why the request is shed; None if it is accepted."""
        executors = self.running.seen(now_ns, self.costs, self.coming, self._cores)
        refusal = self.admission.check(now_ns, request, executors, counted=counted)
        return executors, None if refusal is None else shed_errors.of(refusal, request, executors)

    def run_now(
        self, inputs: Arrays, rows: int, outputs: Sequence[str], deadline_ns: int, entities: Keys | None = None
    ) -> tuple[Arrays, int] | None:
        """Run rows at once and past the queue, where nothing waits and an inline executor is there to run them.

        Nothing is queued, so the scheduler would decide the same. This saves the item, its future and the planning,
        which cost a lone request more than a small model does.

        Returns:
            the outputs and the nanoseconds that the model took; None where the rows must be submitted.
        """
        inline, scheduler = self.running.inline, self.scheduler
        if inline is None or self._closed or scheduler.waiting.rows or rows > scheduler.max_rows or self._delays_lone:
            return None
        started_ns = self._clock_ns()
        if started_ns >= deadline_ns:
            return None  # the scheduler says so, as it does to everybody
        found = inline.run_now(inputs, rows, outputs)
        duration_ns = self._clock_ns() - started_ns
        if self._cores is not None:
            self._cores.used(started_ns + duration_ns, duration_ns)
        self._runs += 1
        if not self._runs & _SOME:
            self.costs.observe(rows, duration_ns, length_class(inputs, rows) if self._lengths else 0)
        self._observer.batch(rows, duration_ns, (inputs,), (found,), (entities,))
        return found, duration_ns

    def submit(
        self,
        inputs: Arrays,
        rows: int,
        outputs: Sequence[str],
        deadline_ns: int,
        lane: Hashable,
        at_once: bool = False,
        priority: int = 0,
        tenant: str = "",
        since_ns: int = 0,
        entities: Keys | None = None,
    ) -> list[BatchItem]:
        """Queue rows for an executor.

        Args:
            at_once: plan now, not at the end of this loop iteration, because nobody is there to share a batch.
            priority: 1 runs first, larger later; 0 is the default, between 1 and 3.
            tenant: whose request it is; empty where there is one tenant.
            since_ns: when the request came: the SLO counts from then; 0 for now.
            entities: see ``FinishedBatch``.

        Returns:
            one item, or several in row order where ``rows`` exceeds the largest batch. Await their futures.

        Raises TooLarge, Shed and NotReady as ``check_room``; nothing was queued then.
        """
        if self._closed:
            raise shed_errors.unavailable()
        scheduler, size_bytes = self.scheduler, bytes_of(inputs)
        kind = length_class(inputs, rows) if self._lengths else 0
        full = scheduler.waiting.size_bytes + size_bytes > scheduler.max_queue_bytes
        if full or deadline_ns != self._admitted_ns or kind != self.kind:
            # Others were let in since; or nobody asked yet, or for shorter rows.
            self._admit(
                AdmissionRequest(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant, size_bytes, kind), counted=True
            )
        self._admitted_ns, self.kind = -1, min(kind, self.kind or kind)
        future = self._loop.create_future()
        now_ns = self._clock_ns()
        target_ns = scheduler.target_ns(since_ns or now_ns, deadline_ns)
        whole = BatchItem(
            inputs, rows, outputs, deadline_ns, lane, future, priority, now_ns, size_bytes, tenant, kind, target_ns
        )
        whole.entities = entities
        items = [whole] if rows <= scheduler.max_rows else cut(whole, scheduler.max_rows, self._loop)
        for item in items:
            scheduler.waiting.add(item)  # there is room for the whole, or it would have been refused
        self._noted_ns = min(self._noted_ns, deadline_ns)
        if at_once:
            self._kick()
        elif not self._kick_due:
            self._schedule_kick()
        return items

    def cancel(self, items: Sequence[BatchItem]) -> None:
        """Drop what has not started of a request whose client is gone; its futures are cancelled."""
        for item in items:
            self.scheduler.cancel(item)
            item.future.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, then close; blocks nothing."""
        self._refuse()
        if self.running:
            self._ended = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout_s)
        self.close(0)

    def close(self, timeout_s: float) -> None:
        """Fail what waits, stop the executors after their running batch; blocks for at most ``timeout_s``."""
        self._refuse()
        give_up_ns = perf_counter_ns() + int(timeout_s * 1e9)
        for executor in self.running.executors:
            executor.close(max(give_up_ns - perf_counter_ns(), 0) / 1e9)
        if self._cores is not None:
            self._cores.leave()
        # Later: the answers of batches that ended meanwhile are on their way through the loop.
        self._loop.call_soon(lambda: shed_errors.end_all([item for item, _ in self.running.items()]))

    def _refuse(self) -> None:
        """Take nothing more and fail what waits."""
        self._closed = True
        if self._cores is not None:
            self._cores.withdraw()
        for timer in (self._timer, self._window):
            if timer is not None:
                timer.cancel()
        self._timer = None
        shed_errors.end_all(self.scheduler.waiting.expire(NEVER_NS))

    def _schedule_kick(self) -> None:
        if not self._kick_due:
            self._kick_due = True
            # While a model runs on the loop nothing can be read: what came meanwhile is read first, in one more turn.
            soon = self._loop.call_soon
            soon(self._kick) if self.running.inline is None else soon(soon, self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        running, cores = self.running, self._cores
        if not self.scheduler.waiting.rows:
            if cores is not None:
                cores.withdraw()
        elif cores is not None and running.inline is None:
            now_ns = self._clock_ns()
            idle = cores.ask(len(running.idle), self.scheduler.waiting.urgent_ns, now_ns)
            if idle:
                self.scheduler.cap_ns = cores.cap_ns(now_ns)
                self._start_batches(now_ns, idle)
        elif running.idle:
            self._start_batches(self._clock_ns(), len(running.idle))
        self._arm_timer()

    def _start_batches(self, now_ns: int, idle: int) -> None:
        """Begin up to ``idle`` batches of what waits."""
        running, cores = self.running, self._cores
        plan = self.scheduler.plan(now_ns, idle, self.costs, executors=max(running.usable, 1), probe=not running)
        self.admission.learn(len(plan.expired))
        for batch in plan.batches:
            executor, cost = running.idle.pop(), self.costs.of(batch[0].kind)
            started = running.begin(executor, batch, now_ns, cost)
            self._noted_ns = min(self._noted_ns, started.stuck_ns)
            if cores is not None:
                cores.started(executor, now_ns, cost.batch_ns(started.rows))
            executor.start(batch)
        for item in plan.expired:
            _expire(item, now_ns)
        if plan.again_ns:
            if self._window is not None:
                self._window.cancel()
            self._window = self._loop.call_later((plan.again_ns - now_ns) / 1e9, self._schedule_kick)
        if cores is not None:
            # What the plan leaves although an executor is idle waits for company.
            more = self.scheduler.waiting.rows > 0 and len(plan.batches) >= idle
            cores.planned(more=more, idle=bool(running.idle))

    def on_done(
        self,
        executor: Executor,
        batch: Sequence[BatchItem],
        result: list[Arrays] | TailcutError,
        started_ns: int,
        finished_ns: int,
    ) -> None:
        """Take an executor back that has finished a batch, and hand every item its end, or one more run alone."""
        ended = self.running.end(executor)
        if ended is None:
            return  # it was given up: its items run elsewhere, or were told
        ran = next(_NUMBERS), len(batch), ended.rows, started_ns, finished_ns
        for item in batch:
            item.started_ns, item.finished_ns, item.batch = started_ns, finished_ns, ran
        now_ns = self._clock_ns()
        if self._cores is not None:
            self._cores.ended(executor, now_ns)
        if self.scheduler.waiting.rows and executor is not self.running.inline:
            self._schedule_kick()  # before the answers are written: nobody would compute meanwhile
        for item in self.batch_retry.hand_out(batch, result, NEVER_NS if self._closed else now_ns):
            self.scheduler.waiting.add(item)  # accepted before: there is a place for it whatever waits now
        # All of the time that the executor was taken: handing over and waiting for the event loop included.
        kind = batch[0].kind
        self._runs += 1
        told = not self._runs & _SOME or not 0.0 < self.costs.of(kind).batch_ns(ended.rows) <= _SHORT_NS
        if told and not isinstance(result, TailcutError):  # of a batch that failed nobody knows how much of it ran
            self.costs.observe(ended.rows, now_ns - ended.started_ns, kind)
        inputs = [item.inputs for item in batch]
        outputs = () if isinstance(result, TailcutError) else result
        entities = [item.entities for item in batch]
        self._observer.batch(ended.rows, finished_ns - started_ns, inputs, outputs, entities)
        if self.scheduler.waiting.rows:
            self._schedule_kick()
        else:
            self.scheduler.rest(nothing_runs=not self.running)
        self._tell_ended()

    def _arm_timer(self) -> None:
        """Set the timer early enough for every deadline, of what waits and of what runs.

        Everything is looked at only where no timer is set, about once per time-out; else only deadlines noted since it
        was set can be earlier. Deadlines that have passed count, too: they may have passed since the last look.
        """
        if not self.running and not self.scheduler.waiting.rows:
            return
        if self._timer is None:
            moments_ns, waiting_ns = self.running.moments_ns(), self.scheduler.waiting.next_deadline_ns()
            wake_ns = min(moments_ns if waiting_ns is None else [*moments_ns, waiting_ns], default=NEVER_NS)
        elif self._noted_ns < self._timer_ns:
            wake_ns = self._noted_ns
            self._timer.cancel()
        else:
            return
        self._noted_ns = NEVER_NS
        if wake_ns != NEVER_NS:
            self._timer_ns = wake_ns
            left_s = max(wake_ns - self._clock_ns(), 0) / 1e9
            self._timer = self._loop.call_later(left_s, self._time_passed)

    def _time_passed(self) -> None:
        """Fail requests whose deadline has passed, and report executors whose batch takes far too long."""
        self._timer = None
        now_ns = self._clock_ns()
        if now_ns - self._timer_ns > _HELD_UP_NS:
            self.running.excuse(now_ns)
        for item in self.scheduler.waiting.expire(now_ns):
            _expire(item, now_ns)
        for item, started in self.running.items():
            if item.deadline_ns <= now_ns and not item.future.done():
                item.started_ns, item.finished_ns = started.started_ns, now_ns
                message = "the deadline passed while the model was running"
                item.future.set_exception(shed_errors.late(InferTimeout, message))
        for executor in self.running.find_stuck(now_ns):
            if self._cores is not None:
                self._cores.ended(executor, now_ns)  # other models do not wait for what may never end
            self._schedule_kick()  # another may begin in its place
            if self.on_stuck is not None:
                self.on_stuck(executor)
        self._arm_timer()

    def _tell_ended(self) -> None:
        if self._ended is not None and not self.running:
            self._ended.set()


_HELD_UP_NS = 100_000_000
"""A timer that is this late was held up: by a hook that blocks the event loop, or by a process that was stopped."""
_STUCK_FACTOR = 10
"""A batch is stuck after this many times its predicted time, but not before ``stuck_after_s``."""


class BatchObserver(Protocol):
    """Told of every batch that ran."""

    def batch(
        self,
        rows: int,
        duration_ns: int,
        inputs: Sequence[Arrays],
        outputs: Sequence[Arrays],
        entities: Sequence[Keys | None],
    ) -> None:
        """Note a batch; see ``FinishedBatch``."""


class RunningBatch(NamedTuple):
    """A batch on an executor; from ``stuck_ns`` on it has run far longer than any batch should."""

    items: Sequence[BatchItem]
    rows: int
    started_ns: int
    stuck_ns: int
    excused: bool = False


class Coming(NamedTuple):
    """What a pool says of its next executor while there is none.

    Attributes:
        left_s: seconds until it is expected to be ready; None if unknown, because the last could not be opened.
        retry_s: seconds after which clients should retry.
    """

    left_s: float | None
    retry_s: float


class ExecutorSet:
    """The executors of one dispatcher and their batches. Owned by the event loop.

    Args:
        stuck_after_s: an executor whose batch runs longer than this, and than ten times what was predicted, counts
            as stuck until the batch ends. The deadlines of those who wait for it have no say: one client's short
            time-out tells nothing about the model.
        at_once: most batches that run at a time, at least 1; None for as many as there are executors. Where models
            compute on the processor's cores, executors beyond those only take turns: batches are as late as all of them
            together, and smaller than the queue would have filled them by then.

    Attributes:
        executors: all that take batches now, busy or idle.
        idle: those of them that run nothing and may begin now; the last of them began last, and begins next.
        inline: the one that runs batches on the event loop, where there is one.
        stuck: busy ones whose batch takes far too long.
    """

    def __init__(self, stuck_after_s: float, at_once: int | None = None) -> None:
        self.executors: list[Executor] = []
        self.idle: list[Executor] = []
        self.at_once = at_once
        self._spare: list[Executor] = []
        """That run nothing, and would make more than may run at a time."""
        self.inline: InlineExecutor | None = None
        self.stuck: set[Executor] = set()
        self._stuck_after_ns = int(stuck_after_s * 1e9)
        self._started: dict[Executor, RunningBatch] = {}
        self._leaving: dict[Executor, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._started)

    @property
    def usable(self) -> int:
        """Batches that can run at a time: executors that are neither stuck nor leaving, no more than ``at_once``."""
        found = len(self.executors) - len(self.stuck)
        return found if self.at_once is None else min(found, self.at_once)

    def join(self, executor: Executor) -> None:
        """Put an idle executor to use; before it others run what comes, whose caches are warm."""
        self.executors.append(executor)
        self.idle.insert(0, executor)
        if isinstance(executor, InlineExecutor):
            self.inline = executor
        self._limit_idle()

    def turn(self, executor: Executor) -> int:
        """Return how soon an executor would be missed: 0 for the one that would begin last, the most for busy ones."""
        resting = [*self._spare, *self.idle]
        return resting.index(executor) if executor in resting else len(self.executors)

    def leave(self, executor: Executor) -> asyncio.Future[None]:
        """Give an executor no further batch; the future is done when it runs none."""
        done = self._leaving.get(executor)
        if done is not None:
            return done
        done = asyncio.get_running_loop().create_future()
        self._forget(executor)
        if executor in self._started:
            self._leaving[executor] = done
        else:
            done.set_result(None)
        self._limit_idle()
        return done

    def lose(self, executor: Executor) -> Sequence[BatchItem]:
        """Forget an executor that is dead; return what it was running."""
        self._forget(executor)
        started = self._started.pop(executor, None)
        self._left(executor)
        self._limit_idle()
        return started.items if started is not None else ()

    def begin(self, executor: Executor, items: Sequence[BatchItem], now_ns: int, cost: BatchCost) -> RunningBatch:
        """Note a batch."""
        rows = sum([item.rows for item in items])
        stuck_ns = now_ns + max(self._stuck_after_ns, int(_STUCK_FACTOR * cost.batch_ns(rows)))
        started = self._started[executor] = RunningBatch(items, rows, now_ns, stuck_ns)
        return started

    def end(self, executor: Executor) -> RunningBatch | None:
        """Take an executor back whose batch has ended; None where it was lost meanwhile."""
        started = self._started.pop(executor, None)
        if started is None:
            return None
        self.stuck.discard(executor)
        if executor in self._leaving:
            self._left(executor)
        else:
            self.idle.append(executor)
        self._limit_idle()
        return started

    @property
    def rows(self) -> int:
        """Rows that are being computed."""
        return sum([started.rows for started in self._started.values()])

    def items(self) -> Iterator[tuple[BatchItem, RunningBatch]]:
        """Yield every item that is being computed, with its batch."""
        for started in self._started.values():
            for item in started.items:
                yield item, started

    def seen(
        self,
        now_ns: int,
        costs: CostSource,
        coming: Callable[[], Coming | None] | None,
        cores: CoreUser | None = None,
    ) -> Executors:
        """Return what the executors are doing; where there is none, the next is one that is busy until it is there.

        Args:
            coming: says when the next one is ready; None where none comes.
            cores: of which others have a part; None where there are no others.

        Raises:
            NotReady: there is none, and it is unknown when the next one is ready.
        """
        if self.usable > 0:
            ends_ns, usable = self.ends_ns(now_ns, costs), self.usable
            if cores is None or self.inline is not None:
                return Executors(usable, len(self.idle), sum(ends_ns), ends_ns)
            part = cores.part(now_ns, usable)
            # Where all cores are taken, the end of another's batch makes room, too; after its own they have their turn.
            is_taken = cores.all_taken
            if is_taken:
                pause_ns = cores.typical_ns * (1.0 / part - 1.0)
                own_ns = [end_ns + pause_ns for end_ns in ends_ns]
                ends_ns = sorted([*cores.others_ns(now_ns), *own_ns])[:usable]
            return Executors(usable, 0 if is_taken else len(self.idle), sum(ends_ns), ends_ns, part)
        expected = coming() if coming is not None else None
        if expected is None or expected.left_s is None:
            raise shed_errors.unavailable(expected.retry_s if expected is not None else 0.0)
        return Executors(0, 0, expected.left_s * 1e9)

    def ends_ns(self, now_ns: int, costs: CostSource) -> list[float]:
        """Return what each running batch still takes, ascending; those that are stuck or leave are not counted on."""
        return sorted(
            [
                left_ns(now_ns - started.started_ns, started.rows, costs.of(started.items[0].kind))
                for executor, started in self._started.items()
                if executor not in self.stuck and executor not in self._leaving
            ]
        )

    def find_stuck(self, now_ns: int) -> list[Executor]:
        """Look which executors are stuck; return those that were not before."""
        found = [
            executor
            for executor, started in self._started.items()
            if started.stuck_ns <= now_ns and self._may_stick(executor)
        ]
        self.stuck.update(found)
        self._limit_idle()
        return found

    def excuse(self, now_ns: int) -> None:
        """Let running batches count from now on, each once: the event loop, or the whole process, stood still."""
        for executor, started in self._started.items():
            if not started.excused:
                stuck_ns = now_ns + started.stuck_ns - started.started_ns
                self._started[executor] = started._replace(stuck_ns=stuck_ns, excused=True)

    def moments_ns(self) -> list[int]:
        """Return the deadlines of running items and the times at which batches count as stuck, past ones included.

        A time that has passed since the last look has not been acted on yet.
        """
        moments = [started.stuck_ns for executor, started in self._started.items() if self._may_stick(executor)]
        return moments + [item.deadline_ns for item, _ in self.items() if not item.future.done()]

    def _may_stick(self, executor: Executor) -> bool:
        return executor not in self.stuck and executor not in self._leaving

    def _forget(self, executor: Executor) -> None:
        self.stuck.discard(executor)
        if executor in self.executors:
            self.executors.remove(executor)
        for waiting in (self.idle, self._spare):
            if executor in waiting:
                waiting.remove(executor)
        if executor is self.inline:
            self.inline = None

    def _limit_idle(self) -> None:
        """Keep as many executors idle as may begin a batch; executors that are stuck or leaving do not count."""
        if self.at_once is None:
            return
        room = max(self.at_once - sum([self._may_stick(executor) for executor in self._started]), 0)
        while len(self.idle) > room:
            self._spare.append(self.idle.pop(0))  # the one that ended last stays: its caches are warm
        while len(self.idle) < room and self._spare:
            self.idle.append(self._spare.pop())

    def _left(self, executor: Executor) -> None:
        done = self._leaving.pop(executor, None)
        if done is not None and not done.done():
            done.set_result(None)


def _expire(item: BatchItem, now_ns: int) -> None:
    """Fail a request that is not computed because it would be late."""
    item.started_ns = item.finished_ns = now_ns
    message = "no executor can answer before the deadline; the request was dropped without running"
    if item.alone:
        message = "its batch failed, and the deadline passes before the request can be retried alone"
    if not item.future.done():
        item.future.set_exception(shed_errors.late(QueueTimeout, message))


# -- Retry of a failed batch -------------------------------------------------------------------------------------------


# What becomes of a finished batch: each item its end, and after a failure one more run alone for each.
# A batch that raises says nothing about which of its requests is to blame. Run one by one, only the culprit fails.

_UNPROVEN_BATCHES = 4
"""So many failed batches are taken apart without one success in between; then the model is broken, not a request."""


class BatchRetry:
    """Hands out results, decides what runs again, and counts it. Owned by the dispatcher.

    Work is bounded: an item runs at most twice, and a model that always fails at most four batches so.

    Attributes:
        batches: failed batches whose items were run again one by one.
        answered, failed: how those runs ended.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.answered = 0
        self.failed = 0
        self._unproven = 0

    def hand_out(self, batch: Sequence[BatchItem], result: list[Arrays] | TailcutError, now_ns: int) -> list[BatchItem]:
        """Give every item of a batch its end; return those that are to be run again, each alone."""
        again: list[BatchItem] = []
        if isinstance(result, TailcutError):
            if batch[0].alone:
                self.failed += 1
            elif len(batch) > 1 and self._unproven < _UNPROVEN_BATCHES and not isinstance(result, WrongRows):
                again = [item for item in batch if not item.future.done() and item.deadline_ns > now_ns]
            for item in batch:
                if item not in again and not item.future.done():
                    item.future.set_exception(result)
            if again:
                self.batches += 1
                self._unproven += 1
            for item in again:
                item.set_alone()
        else:
            self._unproven = 0
            self.answered += batch[0].alone
            for item, outputs in zip(batch, result, strict=True):
                if not item.future.done():
                    item.future.set_result(outputs)
        return again

    def rescue(self, batch: Sequence[BatchItem], error: TailcutError, now_ns: int) -> list[BatchItem]:
        """Return which items of a dead executor's batch run once more, each alone; the others end with ``error``."""
        again = []
        for item in batch:
            if item.future.done():
                continue
            if item.alone or item.deadline_ns <= now_ns:
                item.future.set_exception(error)
            else:
                item.set_alone()
                again.append(item)
        self.batches += bool(again)
        return again
