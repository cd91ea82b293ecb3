"""Executors come, go and die while requests wait and run: nobody is lost, and nobody is computed more than twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.concurrency.dispatching import Bench, ManualExecutor, S, answer, error_of

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError, InferTimeout, NotReady, Shed, TailcutError
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Dispatcher, ExecutorSet
from tailcut.models.executors import Executor, InlineExecutor
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.scheduler.scheduler import Scheduler
from tailcut.testing.runtimes import StubRuntime

DEAD = InferenceError("the executor died")


def one_more(bench: Bench) -> ManualExecutor:
    executor = ManualExecutor(bench.runtime, bench.dispatcher.on_done, bench.clock)
    bench.executors.append(executor)
    bench.dispatcher.add(executor)
    return executor


def test_an_executor_that_joins_takes_what_waits() -> None:
    bench = Bench(executors=1, max_rows=1)

    async def main() -> None:
        bench.open()
        first, second = bench.submit(1), bench.submit(2)
        await bench.settle()
        added = one_more(bench)
        await bench.settle()
        added.finish()
        assert answer(second) == [2]
        bench.executors[0].finish()
        assert answer(first) == [1]

    bench.run(main())


def test_a_removed_executor_ends_its_batch_and_gets_no_other() -> None:
    bench = Bench(executors=2, max_rows=1)

    async def main() -> None:
        bench.open()
        running = [bench.submit(1), bench.submit(2)]
        await bench.settle()
        leaving = bench.executors[0]
        gone = bench.dispatcher.remove(leaving)
        assert bench.dispatcher.remove(leaving) is gone
        third = bench.submit(3)
        await bench.settle()
        assert not gone.done()
        leaving.finish()
        await gone
        await bench.settle()
        assert leaving.batch is None
        bench.executors[1].finish()
        await bench.settle()
        bench.executors[1].finish()
        assert sorted(answer(one)[0] for one in (*running, third)) == [1, 2, 3]

    bench.run(main())


def test_an_idle_executor_is_gone_at_once_and_with_the_last_one_nobody_is_let_in() -> None:
    bench = Bench(executors=1)

    async def main() -> None:
        bench.open()
        assert bench.dispatcher.remove(bench.executors[0]).done()
        assert not bench.dispatcher.healthy
        with pytest.raises(NotReady):
            bench.submit(1)
        one_more(bench)
        after = bench.submit(2)
        await bench.settle()
        bench.executors[1].finish()
        assert answer(after) == [2]

    bench.run(main())


def test_an_inline_executor_that_left_runs_no_lone_request_either() -> None:
    bench = Bench(executors=0)

    async def main() -> None:
        bench.open()
        inline = InlineExecutor(StubRuntime(), bench.dispatcher.on_done)
        bench.dispatcher.add(inline)
        bench.dispatcher.remove(inline)
        assert bench.dispatcher.run_now({}, 1, ("y",), 2**62) is None

    bench.run(main())


def test_the_batch_of_a_dead_executor_is_run_once_more_elsewhere_each_request_alone() -> None:
    bench = Bench(executors=2, max_rows=4)

    async def main() -> None:
        bench.open()
        first, second = bench.submit(1), bench.submit(2)
        await bench.settle()
        dead = next(executor for executor in bench.executors if executor.batch)
        alive = next(executor for executor in bench.executors if executor is not dead)
        bench.dispatcher.fail(dead, DEAD)
        for _ in range(2):
            await bench.settle()
            assert len(alive.batch or ()) == 1
            alive.finish()
        assert (answer(first), answer(second)) == ([1], [2])
        assert bench.dispatcher.healthy

    bench.run(main())


def test_what_kills_a_second_executor_is_told_so_and_hurts_nobody_else() -> None:
    bench = Bench(executors=3, max_rows=4)

    async def main() -> None:
        bench.open()
        poison, good = bench.submit(99), bench.submit(1)
        await bench.settle()
        dead = next(executor for executor in bench.executors if executor.batch)
        bench.dispatcher.fail(dead, DEAD)
        await bench.settle()
        others = [executor for executor in bench.executors if executor is not dead]
        for executor in others:
            if executor.batch and executor.batch[0] is poison[0]:
                bench.dispatcher.fail(executor, DEAD)
                break
        for executor in others:
            if executor.batch and executor.batch[0] is good[0]:
                executor.finish()
        assert error_of(poison[0]) is DEAD
        assert answer(good) == [1]

    bench.run(main())


def test_who_has_no_time_left_is_not_run_again() -> None:
    bench = Bench(executors=2)

    async def main() -> None:
        bench.open()
        late = bench.submit(1, slack_s=1)
        await bench.clock.pass_time(0.999)
        bench.clock.advance(0.002)
        bench.dispatcher.fail(next(executor for executor in bench.executors if executor.batch), DEAD)
        await bench.settle()
        assert late[0].future.done()
        assert all(executor.batch is None or executor.batch[0] is late[0] for executor in bench.executors)

    bench.run(main())


def test_what_a_lost_executor_still_reports_is_ignored() -> None:
    bench = Bench(executors=2)

    async def main() -> None:
        bench.open()
        item = bench.submit(1)
        await bench.settle()
        lost = next(executor for executor in bench.executors if executor.batch)
        bench.dispatcher.fail(lost, DEAD)
        lost.finish()
        assert not item[0].future.done(), "it is answered by the one that runs it now"
        await bench.settle()
        next(executor for executor in bench.executors if executor is not lost).finish()
        assert answer(item) == [1]

    bench.run(main())


def test_a_stuck_executor_is_reported_once_and_can_be_replaced() -> None:
    bench = Bench(executors=1)
    told: list[Executor] = []

    async def main() -> None:
        bench.open()

        def replace(executor: Executor) -> None:
            told.append(executor)
            bench.dispatcher.fail(executor, DEAD)
            one_more(bench)

        bench.dispatcher.on_stuck = replace
        item = bench.submit(1, slack_s=10)
        await bench.clock.pass_time(3)
        assert told == [bench.executors[0]]
        bench.executors[1].finish()
        assert answer(item) == [1]
        await bench.clock.pass_time(3)
        assert len(told) == 1

    bench.run(main())


@pytest.mark.parametrize("pause_s", [0.05, 3, 1000])
def test_a_pause_of_the_process_makes_no_executor_stuck(pause_s: float) -> None:
    """Nor does a hook that blocks the event loop: what has ended meanwhile is heard of only after the timer."""
    bench = Bench(executors=1)
    told: list[Executor] = []

    async def main() -> None:
        bench.open()
        bench.dispatcher.on_stuck = told.append
        short, long = bench.submit(1, slack_s=1), bench.submit(2, slack_s=2000)
        await bench.clock.pass_time(0.5)
        bench.clock.advance(pause_s)
        await bench.clock.pass_time(1.4)
        assert told == []
        bench.executors[0].finish()
        assert answer(long) == [2]
        assert isinstance(error_of(short[0]), InferTimeout)

    bench.run(main())


def test_an_executor_that_hangs_is_found_after_pauses_too() -> None:
    bench = Bench(executors=1)
    told: list[Executor] = []

    async def main() -> None:
        bench.open()
        bench.dispatcher.on_stuck = told.append
        item = bench.submit(1, slack_s=100)
        for _ in range(2):  # a batch is excused once: a loop that is always late would excuse it for ever
            await bench.clock.pass_time(1.5)
            bench.clock.advance(1)
            await bench.settle()
        await bench.clock.pass_time(0.1)
        assert told == bench.executors
        bench.executors[0].finish()
        assert answer(item) == [1]

    bench.run(main())


def test_an_executor_that_is_stuck_holds_no_core_that_another_model_waits_for() -> None:
    bench = Bench(executors=0)

    async def main() -> None:
        bench.open()
        budget = CoreBudget(1)
        loop = asyncio.get_running_loop()

        def made(name: str) -> tuple[Dispatcher, ManualExecutor]:
            scheduler: Scheduler[BatchItem] = Scheduler(max_rows=4, max_queue_rows=16)
            dispatcher = Dispatcher(
                scheduler,
                bench,
                loop,
                bench.clock.monotonic_ns,
                running=ExecutorSet(2, None),
                cores=lambda wake: budget.join(name, wake),
            )
            executor = ManualExecutor(bench.runtime, dispatcher.on_done, bench.clock)
            dispatcher.add(executor)
            return dispatcher, executor

        def ask(dispatcher: Dispatcher) -> BatchItem:
            deadline_ns = bench.clock.monotonic_ns() + 10 * S
            return dispatcher.submit({"x": np.ones((1, 1), np.float32)}, 1, ("y",), deadline_ns, None)[0]

        (hangs, hung), (other, free) = made("hangs"), made("other")
        late = ask(hangs)
        await bench.settle()
        waits = ask(other)
        await bench.settle()
        assert (hung.batch is not None, free.batch is not None) == (True, False)
        await bench.clock.pass_time(2.5)
        assert free.batch is not None, "begun once the other was stuck"
        free.finish()
        hung.finish()
        await bench.settle()
        assert (answer([waits]), answer([late]), budget.free) == ([1], [1], 1)

    bench.run(main())


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "finish", "add", "remove", "fail", "pass"]), st.integers(0, 5)), max_size=30
)


@given(STEPS, st.sampled_from([None, 1, 2, 9]))
def test_every_ticket_ends_once_whatever_becomes_of_the_executors(  # noqa: C901
    steps: list[tuple[str, int]], at_once: int | None
) -> None:
    bench = Bench(executors=2, max_rows=3, max_queue_rows=40, at_once=at_once)
    ended: list[asyncio.Future[Arrays]] = []
    count = 0

    def note_end(future: asyncio.Future[Arrays]) -> None:
        ended.append(future)
        assert future.exception() is None or isinstance(future.exception(), TailcutError)

    def play(what: str, number: int) -> None:
        nonlocal count
        executor = bench.executors[number % len(bench.executors)]
        if what == "submit" and bench.dispatcher.healthy:
            for item in bench.submit(*range(number + 1), slack_s=5):
                count += 1
                item.future.add_done_callback(note_end)
        elif what == "finish" and executor.batch is not None:
            executor.finish()
        elif what == "add":
            one_more(bench)
        elif what == "remove":
            bench.dispatcher.remove(executor)
        elif what == "fail":
            bench.dispatcher.fail(executor, DEAD)

    async def main() -> None:
        bench.open()
        for what, number in steps:
            if what == "pass":
                await bench.clock.pass_time(number / 2)
            with suppress(Shed):
                play(what, number)
            await bench.settle()
        await bench.clock.pass_time(60)
        for executor in bench.executors:
            if executor.batch is not None:
                executor.finish()
        await bench.settle()
        assert len(ended) == len({id(future) for future in ended}) == count
        assert bench.dispatcher.scheduler.waiting.rows == 0

    bench.run(main())
