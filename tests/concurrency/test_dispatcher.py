"""Batches: who shares one, who waits, who is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.concurrency.dispatching import Bench, S, answer, error_of

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError, Shed, TooLarge
from tailcut.models.executors import InlineExecutor
from tailcut.testing.runtimes import StubRuntime


def test_what_arrives_together_shares_a_batch_and_each_gets_its_own_answer() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        first, second, third = bench.submit(1), bench.submit(2, 3), bench.submit(4)
        await bench.settle()
        bench.executors[0].finish()
        assert [answer(items) for items in (first, second, third)] == [[1], [2, 3], [4]]
        assert bench.runtime.rows == [4]
        assert bench.batches == [(4, 0)]

    bench.run(main())


def test_an_idle_executor_never_waits_for_a_window() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        bench.submit(1)
        await bench.settle()
        assert bench.executors[0].batch is not None

    bench.run(main())


def test_without_merging_every_request_is_its_own_batch() -> None:
    bench = Bench(executors=2, merge=False)

    async def main() -> None:
        bench.open()
        items = [bench.submit(n) for n in range(3)]
        while not all(one[0].future.done() for one in items):
            await bench.settle()
            for executor in bench.executors:
                if executor.batch is not None:
                    executor.finish()
        assert bench.runtime.rows == [1, 1, 1]
        assert [answer(one) for one in items] == [[0], [1], [2]]

    bench.run(main())


def test_lanes_never_share_a_batch() -> None:
    bench = Bench(executors=2)

    async def main() -> None:
        bench.open()
        a, b = bench.submit(1, lane="a"), bench.submit(2, lane="b")
        await bench.settle()
        assert sorted(len(executor.batch or ()) for executor in bench.executors) == [1, 1]
        for executor in bench.executors:
            executor.finish()
        assert (answer(a), answer(b)) == ([1], [2])

    bench.run(main())


def test_a_large_pre_batch_is_split_and_joined_in_order() -> None:
    bench = Bench(executors=2, max_rows=4)

    async def main() -> None:
        bench.open()
        items = bench.submit(*range(10))
        assert [item.rows for item in items] == [4, 4, 2]
        while not all(item.future.done() for item in items):
            await bench.settle()
            for executor in reversed(bench.executors):
                if executor.batch is not None:
                    executor.finish()
        assert answer(items) == list(range(10))

    bench.run(main())


def test_a_full_queue_sheds_with_the_time_it_needs_to_drain() -> None:
    bench = Bench(max_rows=4, max_queue_rows=8)

    async def main() -> None:
        bench.open()
        bench.submit(0, 1, 2, 3)
        await bench.clock.pass_time(2)
        bench.executors[0].finish()  # 4 rows in 2 s: half a second a row
        bench.submit(*range(4))
        await bench.settle()
        bench.submit(*range(8))
        with pytest.raises(Shed, match="8 rows, the limit is 8") as caught:
            bench.submit(1)
        # One batch runs and two wait, 2 s each; predictions are taken a little longer.
        assert 6 < caught.value.retry_after_s < 7.2
        assert bench.dispatcher.scheduler.waiting.rows == 8

    bench.run(main())


def test_rows_that_the_queue_could_never_take_are_too_many_and_not_shed() -> None:
    bench = Bench(max_rows=4, max_queue_rows=8)

    async def main() -> None:
        bench.open()
        with pytest.raises(TooLarge, match="9 rows exceed the queue's limit of 8 rows"):
            bench.submit(*range(9))
        assert bench.dispatcher.scheduler.waiting.rows == 0

    bench.run(main())


def test_an_inline_executor_closes_its_runtime() -> None:
    runtime = StubRuntime()
    InlineExecutor(runtime, lambda *_: None).close(0)
    assert runtime.closed


def test_inline_batches_leave_the_loop_its_turns() -> None:
    """A backlog of inline batches must not run in one go: between two of them other callbacks run."""
    bench = Bench(executors=0, max_rows=1)
    order: list[str] = []

    def note(inputs: Arrays) -> Arrays:
        order.append("batch")
        return {"y": inputs["x"].ravel()}

    async def main() -> None:
        bench.open()
        bench.dispatcher.add(InlineExecutor(StubRuntime(note), bench.dispatcher.on_done))
        items = [bench.submit(n)[0] for n in range(3)]
        for item in items:
            item.future.add_done_callback(lambda _: order.append("answer"))
        await bench.settle()

    bench.run(main())
    assert order == ["batch", "answer"] * 3


@pytest.mark.parametrize(("inline", "batches"), [(True, [2]), (False, [1, 1])])
def test_beside_an_inline_model_what_was_read_meanwhile_shares_the_batch(inline: bool, batches: list[int]) -> None:
    """While it runs nothing is read; an executor in a thread of its own begins at once."""
    bench = Bench(executors=0 if inline else 2)

    async def main() -> None:
        bench.open()
        if inline:
            bench.dispatcher.add(InlineExecutor(bench.runtime, bench.dispatcher.on_done))
        await bench.settle()
        bench.submit(1)
        asyncio.get_running_loop().call_soon(bench.submit, 2)  # read between this turn and the next
        await bench.settle()
        for executor in bench.executors:
            executor.finish()
        assert bench.runtime.rows == batches

    bench.run(main())


def test_a_lone_request_runs_past_the_queue_only_where_nothing_waits() -> None:
    """run_now gives the same answer as an item, counts its batch, and declines where the scheduler must decide."""
    bench = Bench(executors=0, max_rows=4)
    runtime = StubRuntime()

    async def main() -> None:
        bench.open()
        dispatcher = bench.dispatcher
        inputs: Arrays = {"x": np.array([[1.0], [2.0]], np.float32)}
        due_ns = bench.clock.monotonic_ns() + 1
        assert dispatcher.run_now(inputs, 2, ("y",), due_ns) is None  # no inline executor yet
        dispatcher.add(InlineExecutor(runtime, dispatcher.on_done))
        done = dispatcher.run_now(inputs, 2, ("y",), due_ns)
        assert done is not None
        (item,) = dispatcher.submit(inputs, 2, ("y",), 2**62, None)
        assert dispatcher.run_now(inputs, 2, ("y",), due_ns) is None  # somebody waits
        submitted = await item.future
        np.testing.assert_array_equal(done[0]["y"], submitted["y"])
        assert [rows for rows, _ in bench.batches] == [2, 2]
        many: Arrays = {"x": np.zeros((5, 1), np.float32)}
        assert dispatcher.run_now(many, 5, ("y",), due_ns) is None  # to be split
        assert dispatcher.run_now(inputs, 2, ("y",), bench.clock.monotonic_ns()) is None  # too late
        assert runtime.rows == [2, 2]
        dispatcher.close(1.0)
        assert dispatcher.run_now(inputs, 2, ("y",), due_ns) is None

    bench.run(main())


def test_at_once_starts_the_batch_before_the_loop_turns() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        bench.submit(1, at_once=True)
        assert bench.executors[0].batch is not None

    bench.run(main())


def test_the_next_batch_starts_before_the_answers_of_the_last_are_written() -> None:
    """Else the executor idles while the event loop writes them."""
    bench = Bench(max_rows=2)

    async def main() -> None:
        bench.open()
        [executor] = bench.executors
        first = bench.submit(1.0) + bench.submit(2.0)
        await bench.settle()
        bench.submit(3.0)
        written: list[bool] = []
        first[0].future.add_done_callback(lambda _: written.append(executor.batch is not None))
        executor.finish()
        await bench.settle()
        assert written == [True]
        executor.finish()
        await bench.settle()

    bench.run(main())


def test_batches_are_as_large_as_pays_for_those_who_come_later_until_an_executor_rests() -> None:
    """Also where another one is never idle: thirty-two rows take two percent less by the row than eight."""
    by_row_ms = {1: 6.8, 2: 6.6, 4: 6.4, 8: 6.3, 16: 6.22, 32: 6.17}
    took_s = {rows: rows * row_ms / 1e3 for rows, row_ms in by_row_ms.items()}
    bench = Bench(executors=2, max_rows=32, max_queue_rows=512)

    async def main() -> None:
        bench.open()
        bench.dispatcher.costs.seed({rows: took * S for rows, took in took_s.items()})

        def ask(rows: int) -> None:
            for value in range(rows):
                bench.submit(float(value), slack_s=1000.0)

        async def end() -> int:
            assert first.batch is not None
            rows = len(first.batch)
            bench.clock.advance(rows * by_row_ms[1 << (rows.bit_length() - 1)] / 1e3)
            first.finish()
            await bench.settle()
            return rows

        first, second = bench.executors
        bench.submit(0.0, slack_s=1000.0)
        ask(64)
        await bench.settle()
        if first.batch is not None and len(first.batch) == 1:
            first, second = second, first
        early = await end()
        for _ in range(120):
            ask(64 - bench.dispatcher.scheduler.waiting.rows)
            late = await end()
        assert (early, late) == (8, 32)
        while first.batch is not None:
            await end()
        assert second.batch is not None
        ask(32)
        await bench.settle()
        assert first.batch is not None
        assert len(first.batch) == 8
        while first.batch is not None:
            await end()
        second.finish()
        await bench.settle()

    bench.run(main())


def test_an_executor_that_ends_a_batch_while_it_is_started_loses_nobody() -> None:
    """As one in a process does that cannot send it: in the middle of planning, with another batch still to start."""
    bench = Bench(executors=2, max_rows=4, max_queue_rows=2_048)

    async def main() -> None:
        bench.open()
        first, second = bench.executors
        for executor in (first, second):
            executor.start = lambda batch, executor=executor: bench.dispatcher.on_done(  # type: ignore[method-assign]
                executor, batch, InferenceError("cannot be sent"), 0, 0
            )
        items = [item for lane in range(400) for item in bench.submit(1.0, 2.0, lane=lane)]
        await bench.settle()
        for _ in range(50):
            await bench.settle()
        assert all(isinstance(error_of(item), InferenceError) for item in items)
        assert not bench.dispatcher.running

    bench.run(main())
