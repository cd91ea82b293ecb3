"""Every accepted item ends exactly once, with its own answer or a clear error, in every sequence of events."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.concurrency.dispatching import Bench

from tailcut.errors import InferenceError, InferTimeout, NotReady, QueueTimeout, Shed, TailcutError
from tailcut.models.batch_item import BatchItem


class Request(NamedTuple):
    items: list[BatchItem]
    values: list[float]


class History:
    """Plays operations on a bench and remembers what was accepted and how often each item ended."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.requests: list[Request] = []
        self.ends: Counter[int] = Counter()

    async def play(self, what: str, number: int, slack_s: int) -> None:
        if what == "submit":
            self._submit(number, slack_s)
        elif what == "cancel" and self.requests:
            self.bench.dispatcher.cancel(self.requests[number % len(self.requests)].items)
        elif what == "pass":
            await self.bench.clock.pass_time(number)
        elif what == "finish":
            self._finish(number, None)
        elif what == "fail":
            self._finish(number, InferenceError("told to fail"))
        await self.bench.settle()

    async def finish_all(self) -> None:
        while True:
            await self.bench.settle()
            if not any(executor.batch for executor in self.bench.executors):
                return
            for index in range(len(self.bench.executors)):
                self._finish(index, None)

    def check(self) -> None:
        computed = [value for batch in self.bench.runtime.batches for value in batch["x"].ravel().tolist()]
        assert len(computed) == len(set(computed)), "a row was computed twice"
        for items, values in self.requests:
            at = 0
            for item in items:
                self._check_one(item, values[at : at + item.rows], set(computed))
                at += item.rows
        assert self.bench.dispatcher.scheduler.waiting.rows == 0
        assert self.bench.dispatcher.running.rows == 0
        assert self.bench.dispatcher.healthy

    def _check_one(self, item: BatchItem, own: list[float], computed: set[float]) -> None:
        assert self.ends[id(item)] == 1
        if item.future.cancelled():
            return
        error = item.future.exception()
        if error is None:
            assert item.future.result()["y"].tolist() == own
        elif isinstance(error, QueueTimeout):
            assert computed.isdisjoint(own), "an expired row was computed"
        else:
            assert isinstance(error, InferenceError | InferTimeout | NotReady)

    def _submit(self, rows: int, slack_s: int) -> None:
        values = [float(100 * len(self.requests) + n) for n in range(rows)]
        try:
            items = self.bench.submit(*values, slack_s=slack_s)
        except (Shed, NotReady):
            return
        self.requests.append(Request(items, values))
        for item in items:
            self._count_end(item)

    def _count_end(self, item: BatchItem) -> None:
        item.future.add_done_callback(lambda _: self.ends.update([id(item)]))

    def _finish(self, index: int, error: TailcutError | None) -> None:
        executor = self.bench.executors[index % len(self.bench.executors)]
        if executor.batch is not None:
            executor.finish(error)


NOTHING = st.just(0)
OPERATIONS = st.lists(
    st.tuples(st.just("submit"), st.integers(1, 9), st.integers(-1, 8))
    | st.tuples(st.just("cancel"), st.integers(0, 30), NOTHING)
    | st.tuples(st.just("pass"), st.integers(0, 3), NOTHING)
    | st.tuples(st.sampled_from(["finish", "fail"]), st.integers(0, 1), NOTHING),
    max_size=25,
)


@given(OPERATIONS, st.integers(1, 2), st.booleans(), st.booleans(), st.sampled_from([None, 1, 2]))
def test_every_accepted_item_ends_exactly_once(
    operations: list[tuple[str, int, int]], executors: int, merge: bool, close: bool, at_once: int | None
) -> None:
    bench = Bench(executors=executors, max_rows=4, max_queue_rows=12, merge=merge, at_once=at_once)
    history = History(bench)

    async def main() -> None:
        bench.open()
        for operation in operations:
            await history.play(*operation)
        if close:
            bench.dispatcher.close(0)
        await history.finish_all()
        history.check()

    bench.run(main())
