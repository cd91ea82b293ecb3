"""One bad request fails alone: the others of its batch are run again, each by itself, in bounded work."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.concurrency.dispatching import Bench, answer, error_of

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError, NotReady, QueueTimeout
from tailcut.models.executors import InlineExecutor, ThreadExecutor
from tailcut.testing.runtimes import StubRuntime

BAD = 99.0


def refuses_bad(inputs: Arrays) -> Arrays:
    if (inputs["x"] == BAD).any():
        raise IndexError("index 99 is out of range")
    return {"y": inputs["x"][:, 0] * 2}


def inline(bench: Bench, runtime: StubRuntime) -> None:
    bench.open()
    bench.dispatcher.add(InlineExecutor(runtime, bench.dispatcher.on_done))


def test_neighbours_of_a_bad_request_are_answered_and_it_gets_its_own_error() -> None:
    bench = Bench(executors=0, max_rows=8)
    runtime = StubRuntime(refuses_bad)

    async def main() -> None:
        inline(bench, runtime)
        good, bad, pair = bench.submit(1), bench.submit(BAD), bench.submit(2, 3)
        await bench.settle()
        assert (answer(good), answer(pair)) == ([2], [4, 6])
        error = error_of(bad[0])
        assert isinstance(error, InferenceError)
        assert "a batch of 1 rows" in error.message
        assert "index 99 is out of range" in str(error.__cause__)
        assert sorted(runtime.rows) == [1, 1, 2, 4]
        batch_retry = bench.dispatcher.batch_retry
        assert (batch_retry.batches, batch_retry.answered, batch_retry.failed) == (1, 2, 1)

    bench.run(main())


def test_in_a_thread_as_well() -> None:
    bench = Bench(executors=0, max_rows=8)

    async def main() -> None:
        bench.open()
        executor = ThreadExecutor(
            StubRuntime(refuses_bad), bench.dispatcher.on_done, asyncio.get_running_loop(), "test-isolation"
        )
        bench.dispatcher.add(executor)
        good, bad, other = bench.submit(1), bench.submit(BAD), bench.submit(2)
        await asyncio.wait([good[0].future, bad[0].future, other[0].future], timeout=10)
        assert (answer(good), answer(other)) == ([2], [4])
        assert isinstance(error_of(bad[0]), InferenceError)
        executor.close(10)

    bench.run(main())


def test_those_that_run_alone_use_every_idle_executor() -> None:
    bench = Bench(executors=2, max_rows=2)

    async def main() -> None:
        bench.open()
        first, second = bench.submit(1), bench.submit(2)
        await bench.settle()
        next(executor for executor in bench.executors if executor.batch).finish(InferenceError("broken"))
        await bench.settle()
        for executor in bench.executors:
            executor.finish()
        assert (answer(first), answer(second)) == ([1], [2])

    bench.run(main())


def test_one_whose_deadline_passes_meanwhile_is_not_computed_again() -> None:
    bench = Bench(max_rows=4)

    async def main() -> None:
        bench.open()
        hasty, patient, other = bench.submit(1, slack_s=2), bench.submit(2, slack_s=9), bench.submit(3, slack_s=8)
        await bench.clock.pass_time(1)
        bench.executors[0].finish(InferenceError("broken"))
        await bench.settle()
        assert [item.inputs["x"].item() for item in bench.executors[0].batch or ()] == [1]
        await bench.clock.pass_time(1)
        bench.executors[0].finish()
        assert not patient[0].future.done()
        await bench.settle()
        await bench.clock.pass_time(6)  # until 8: the third's deadline, while it runs
        await bench.clock.pass_time(1)
        assert isinstance(error_of(patient[0]), QueueTimeout)
        assert "its batch failed" in str(error_of(patient[0]))
        bench.executors[0].finish()
        assert error_of(hasty[0]) is not None
        assert error_of(other[0]) is not None
        assert bench.dispatcher.scheduler.waiting.rows == 0

    bench.run(main())


def test_one_whose_client_left_is_not_computed_again() -> None:
    bench = Bench(max_rows=4)

    async def main() -> None:
        bench.open()
        gone, stays, leaves_later = bench.submit(1), bench.submit(2), bench.submit(3)
        await bench.settle()
        bench.dispatcher.cancel(gone)
        bench.executors[0].finish(InferenceError("broken"))
        bench.dispatcher.cancel(leaves_later)
        await bench.settle()
        bench.executors[0].finish()
        await bench.settle()
        assert answer(stays) == [2]
        assert bench.executors[0].batch is None
        assert [batch["x"].ravel().tolist() for batch in bench.runtime.batches] == [[2]]

    bench.run(main())


def test_a_runtime_that_always_fails_is_not_run_twice_for_ever() -> None:
    bench = Bench(executors=0, max_rows=4, max_queue_rows=400)
    calls = 0

    def fail(inputs: Arrays) -> Arrays:
        nonlocal calls
        calls += 1
        raise ValueError("no model")

    async def main() -> None:
        inline(bench, StubRuntime(fail))
        items = [bench.submit(number)[0] for number in range(400)]
        await asyncio.wait([item.future for item in items])
        assert all(isinstance(error_of(item), InferenceError) for item in items)
        assert 100 <= calls <= 100 + 4 * 4, "four batches are tried again, and then no more"

    bench.run(main())


def test_once_the_runtime_has_answered_again_a_bad_request_is_isolated_again() -> None:
    bench = Bench(executors=0, max_rows=2, max_queue_rows=400)
    broken_down = True

    def answer_or_break(inputs: Arrays) -> Arrays:
        if broken_down:
            raise ValueError("no model")
        return refuses_bad(inputs)

    async def main() -> None:
        nonlocal broken_down
        inline(bench, StubRuntime(answer_or_break))
        broken = [bench.submit(number)[0] for number in range(40)]
        await asyncio.wait([item.future for item in broken])
        assert all(item.future.exception() for item in broken)
        broken_down = False
        well = bench.submit(1)
        await bench.settle()
        assert answer(well) == [2]
        good, bad = bench.submit(2), bench.submit(BAD)
        await bench.settle()
        assert answer(good) == [4]
        assert isinstance(error_of(bad[0]), InferenceError)

    bench.run(main())


def test_a_full_queue_does_not_cost_a_neighbour_its_second_run() -> None:
    bench = Bench(max_rows=2, max_queue_rows=2)

    async def main() -> None:
        bench.open()
        first, second = bench.submit(1), bench.submit(2)
        await bench.settle()
        waiting = bench.submit(3), bench.submit(4)
        bench.executors[0].finish(InferenceError("broken"))
        for _ in range(3):
            await bench.settle()
            bench.executors[0].finish()
        assert [answer(one) for one in (first, second, *waiting)] == [[1], [2], [3], [4]]

    bench.run(main())


def test_when_the_server_stops_nothing_is_run_again() -> None:
    bench = Bench(max_rows=2)

    async def main() -> None:
        bench.open()
        items = bench.submit(1) + bench.submit(2)
        await bench.settle()
        stopping = asyncio.get_running_loop().create_task(bench.dispatcher.stop(10))
        await bench.settle()
        bench.executors[0].finish(InferenceError("broken"))
        await stopping
        assert all(isinstance(error_of(item), InferenceError | NotReady) for item in items)
        assert bench.executors[0].batch is None
        assert bench.dispatcher.scheduler.waiting.rows == 0

    bench.run(main())


@pytest.mark.parametrize("shape", [(1,), (3,), ()])
def test_a_wrong_number_of_answers_is_no_requests_fault_and_is_not_tried_again(shape: tuple[int, ...]) -> None:
    bench = Bench(executors=0)
    runtime = StubRuntime(lambda inputs: {"y": np.ones(shape, np.float32)})

    async def main() -> None:
        inline(bench, runtime)
        items = bench.submit(1) + bench.submit(2)
        await bench.settle()
        assert runtime.rows == [2]
        assert all("output 'y' has shape" in str(error_of(item)) for item in items)

    bench.run(main())
