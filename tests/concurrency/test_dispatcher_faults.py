"""Whatever fails, hangs, expires or goes away, every item ends and no neighbour is hurt."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from tests.concurrency.dispatching import Bench, S, answer, error_of

from tailcut.errors import InferenceError, InferTimeout, NotReady, QueueTimeout
from tailcut.models.executors import InlineExecutor, ThreadExecutor
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime


def test_cancelled_before_it_starts_it_is_never_computed() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        running = bench.submit(1)
        await bench.settle()
        gone, stays = bench.submit(2), bench.submit(3)
        bench.dispatcher.cancel(gone)
        bench.executors[0].finish()
        await bench.settle()
        bench.executors[0].finish()
        assert gone[0].future.cancelled()
        assert (answer(running), answer(stays)) == ([1], [3])
        assert [batch["x"].ravel().tolist() for batch in bench.runtime.batches] == [[1], [3]]
        assert bench.dispatcher.scheduler.waiting.rows == 0

    bench.run(main())


def test_cancelled_while_it_runs_it_does_not_hurt_its_neighbour() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        gone, stays = bench.submit(1), bench.submit(2)
        await bench.settle()
        bench.dispatcher.cancel(gone)
        bench.executors[0].finish()
        assert gone[0].future.cancelled()
        assert answer(stays) == [2]
        after = bench.submit(3)
        await bench.settle()
        bench.executors[0].finish()
        assert answer(after) == [3]

    bench.run(main())


def test_a_failing_batch_fails_alone() -> None:
    bench = Bench(max_rows=2)

    async def main() -> None:
        bench.open()
        first, second, third = bench.submit(1), bench.submit(2), bench.submit(3, slack_s=11)
        await bench.settle()
        for _ in range(3):  # together, and then each alone
            bench.executors[0].finish(InferenceError("broken"))
            await bench.settle()
        assert [str(error_of(one[0])) for one in (first, second)] == ["broken", "broken"]
        bench.executors[0].finish()
        assert answer(third) == [3]
        assert bench.dispatcher.healthy

    bench.run(main())


def test_an_exception_in_the_model_reaches_its_batch_only() -> None:
    bench = Bench(executors=0, max_rows=1)
    faulty = FaultyRuntime()
    faulty.fail(ZeroDivisionError("inside"))

    async def main() -> None:
        bench.open()
        bench.dispatcher.add(InlineExecutor(faulty, bench.dispatcher.on_done))
        bad, good = bench.submit(1), bench.submit(2)
        await bench.settle()
        error = error_of(bad[0])
        assert isinstance(error, InferenceError)
        assert error.message == "the model failed on a batch of 1 rows (ZeroDivisionError)"
        assert error.detail == "inside", "for the log, not for clients"
        assert answer(good) == [2]

    bench.run(main())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, MemoryError])
def test_not_even_a_base_exception_takes_the_executor_away(kind: type[BaseException]) -> None:
    bench = Bench(executors=0, max_rows=1)
    faulty = FaultyRuntime()
    faulty.fail(kind())

    async def main() -> None:
        bench.open()
        bench.dispatcher.add(InlineExecutor(faulty, bench.dispatcher.on_done))
        bad, good = bench.submit(1), bench.submit(2)
        await bench.settle()
        assert isinstance(error_of(bad[0]), InferenceError)
        assert answer(good) == [2]

    bench.run(main())


@pytest.mark.parametrize("shape", [(1,), (3,), (), (0,)])
def test_a_wrong_number_of_answers_is_an_error_for_all_and_nobody_gets_anothers(shape: tuple[int, ...]) -> None:
    bench = Bench(executors=0)
    runtime = StubRuntime(lambda inputs: {"y": np.ones(shape, np.float32)})

    async def main() -> None:
        bench.open()
        bench.dispatcher.add(InlineExecutor(runtime, bench.dispatcher.on_done))
        items = [bench.submit(1)[0], bench.submit(2)[0]]
        await bench.settle()
        assert runtime.rows == [2]
        for item in items:
            error = error_of(item)
            assert isinstance(error, InferenceError)
            assert "output 'y' has shape" in error.message

    bench.run(main())


def test_what_expires_in_the_queue_is_told_so_at_its_deadline_and_never_computed() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        running = bench.submit(1, slack_s=9)
        await bench.settle()
        waits, waits_longer = bench.submit(2, slack_s=1), bench.submit(3, slack_s=5)
        await bench.clock.pass_time(0.999)
        assert not waits[0].future.done()
        await bench.clock.pass_time(0.001)
        assert isinstance(error_of(waits[0]), QueueTimeout)
        assert not waits_longer[0].future.done()
        bench.executors[0].finish()
        await bench.settle()
        bench.executors[0].finish()
        assert (answer(running), answer(waits_longer)) == ([1], [3])
        assert [batch["x"].item() for batch in bench.runtime.batches] == [1, 3]

    bench.run(main())


def test_a_later_request_with_an_earlier_deadline_is_not_kept_waiting_past_it() -> None:
    """The timer that is set for the first one must be moved."""
    bench = Bench()

    async def main() -> None:
        bench.open()
        bench.submit(1, slack_s=9)
        await bench.settle()
        late, soon = bench.submit(2, slack_s=8), bench.submit(3, slack_s=1)
        await bench.clock.pass_time(0.5)
        sooner = bench.submit(4, slack_s=0.1)
        await bench.clock.pass_time(0.1)
        assert isinstance(error_of(sooner[0]), QueueTimeout)
        await bench.clock.pass_time(0.4)
        assert isinstance(error_of(soon[0]), QueueTimeout)
        await bench.clock.pass_time(7)
        assert isinstance(error_of(late[0]), QueueTimeout)

    bench.run(main())


def test_submitted_after_its_deadline_it_is_not_computed() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        late = bench.submit(1, slack_s=-1)
        await bench.settle()
        assert isinstance(error_of(late[0]), QueueTimeout)
        assert bench.executors[0].batch is None

    bench.run(main())


def test_a_hanging_model_times_its_waiters_out_and_shows_in_health_until_it_comes_back() -> None:
    bench = Bench(executors=0, max_rows=2)
    faulty = FaultyRuntime()
    faulty.hang()

    async def main() -> None:
        bench.open()
        dispatcher = bench.dispatcher
        executor = ThreadExecutor(faulty, dispatcher.on_done, asyncio.get_running_loop(), "test-executor")
        dispatcher.add(executor)
        first, second = bench.submit(1, slack_s=1), bench.submit(2, slack_s=2)
        await bench.settle()
        assert faulty.entered.wait(10)
        await bench.clock.pass_time(1)
        assert isinstance(error_of(first[0]), InferTimeout)
        assert not second[0].future.done()
        assert dispatcher.healthy, "one client's short time-out says nothing about the model"
        queued = bench.submit(3, slack_s=0.5)
        await bench.clock.pass_time(1)
        assert isinstance(error_of(second[0]), InferTimeout)
        assert isinstance(error_of(queued[0]), QueueTimeout)
        assert not dispatcher.healthy
        with pytest.raises(NotReady):
            bench.submit(4)
        faulty.release()
        await bench.ran.wait()
        assert dispatcher.healthy
        again = bench.submit(5)
        await again[0].future
        assert answer(again) == [5]
        executor.close(10)

    bench.run(main())


def test_a_clients_short_time_out_does_not_close_the_server_to_others() -> None:
    """The batch takes 1.5 s, which is normal here; whoever wanted it in 10 ms is told so, and others are taken."""
    bench = Bench()

    async def main() -> None:
        bench.open()
        for _ in range(5):
            hasty = bench.submit(1, slack_s=0.01)
            await bench.clock.pass_time(1.4)
            assert isinstance(error_of(hasty[0]), InferTimeout)
            assert bench.dispatcher.healthy
            patient = bench.submit(2)
            bench.executors[0].finish()
            await bench.settle()
            bench.executors[0].finish()
            assert answer(patient) == [2]

    bench.run(main())


def test_stop_lets_the_loop_go_on_while_the_running_batch_ends() -> None:
    bench = Bench(max_rows=1)

    async def main() -> None:
        bench.open()
        runs, waits = bench.submit(1), bench.submit(2)
        await bench.settle()
        stopping = asyncio.get_running_loop().create_task(bench.dispatcher.stop(10))
        await bench.settle()
        assert isinstance(error_of(waits[0]), NotReady)
        assert not stopping.done()
        bench.executors[0].finish()
        await stopping
        assert answer(runs) == [1]
        assert bench.executors[0].closed

    bench.run(main())


def test_stop_gives_a_hung_batch_up() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        runs = bench.submit(1)
        await bench.settle()
        stopping = asyncio.get_running_loop().create_task(bench.dispatcher.stop(3))
        await bench.clock.pass_time(3)
        await stopping
        await bench.settle()
        assert isinstance(error_of(runs[0]), NotReady)

    bench.run(main())


def test_one_stuck_executor_of_two_leaves_the_other_at_work() -> None:
    bench = Bench(executors=2, max_rows=1)

    async def main() -> None:
        bench.open()
        bench.submit(1, slack_s=1)
        await bench.settle()
        await bench.clock.pass_time(2)
        assert bench.dispatcher.healthy
        after = bench.submit(2)
        await bench.settle()
        next(executor for executor in bench.executors if executor.batch and executor.batch[0] is after[0]).finish()
        assert answer(after) == [2]

    bench.run(main())


@pytest.mark.parametrize("reads", range(3))
def test_a_batch_that_gets_stuck_while_a_late_request_is_told_is_found_at_once(reads: int) -> None:
    """A deadline and the moment of being stuck are often less apart than one look takes: none may be slept through."""
    bench, told = Bench(), []

    async def main() -> None:
        bench.open()
        bench.dispatcher.on_stuck = lambda executor: told.append(bench.clock.monotonic_s())
        stuck_s = bench.clock.monotonic_s() + 2
        late = bench.submit(1, slack_s=1.9999)
        bench.submit(2, slack_s=30)
        await bench.clock.pass_time(1)
        bench.creep(0.00005, after=reads)  # every look at the clock takes 50 us from here on
        await bench.clock.pass_time(1.1)
        assert isinstance(error_of(late[0]), InferTimeout)
        assert told == [pytest.approx(stuck_s, abs=0.01)]

    bench.run(main())


def test_the_time_of_a_batch_that_hung_is_the_models_and_not_the_queues() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        items = bench.submit(1, slack_s=1)
        await bench.clock.pass_time(1)
        assert isinstance(error_of(items[0]), InferTimeout)
        assert items[0].finished_ns - items[0].started_ns == S

    bench.run(main())


class _ReleasedByClose(ThreadExecutor):
    def close(self, timeout_s: float) -> None:
        assert isinstance(self._runtime, FaultyRuntime)
        self._runtime.release()
        super().close(timeout_s)


def test_close_fails_what_waits_and_lets_running_batches_answer() -> None:
    bench = Bench(executors=0, max_rows=1)
    faulty = FaultyRuntime()
    faulty.hang()

    async def main() -> None:
        bench.open()
        bench.dispatcher.add(
            _ReleasedByClose(faulty, bench.dispatcher.on_done, asyncio.get_running_loop(), "test-executor")
        )
        runs = bench.submit(1)
        await bench.settle()
        assert faulty.entered.wait(10)
        waits = bench.submit(2)
        bench.dispatcher.close(10)
        assert isinstance(error_of(waits[0]), NotReady)
        await bench.settle()
        assert answer(runs) == [1]
        with pytest.raises(NotReady):
            bench.submit(3)

    bench.run(main())


def test_close_gives_a_hung_batch_up() -> None:
    bench = Bench(executors=2, max_rows=1)

    async def main() -> None:
        bench.open()
        runs = [bench.submit(1), bench.submit(2)]
        await bench.settle()
        bench.dispatcher.close(0)
        await bench.settle()
        assert [type(error_of(one[0])) for one in runs] == [NotReady, NotReady]
        assert all(executor.closed for executor in bench.executors)

    bench.run(main())


def test_a_thread_executor_closes_its_runtime_and_its_thread() -> None:
    bench = Bench(executors=0)
    runtime = StubRuntime()

    async def main() -> None:
        bench.open()
        executor = ThreadExecutor(runtime, bench.dispatcher.on_done, asyncio.get_running_loop(), "test-to-close")
        bench.dispatcher.add(executor)
        item = bench.submit(1)[0]
        await item.future
        executor.close(10)

    bench.run(main())
    assert runtime.closed
    assert "test-to-close" not in {thread.name for thread in threading.enumerate()}
