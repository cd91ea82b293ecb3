"""Executors beyond what may run at a time rest, and take over at once where another is lost, stuck or leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.concurrency.dispatching import Bench, ManualExecutor, answer

from tailcut.common.fingerprint import Machine
from tailcut.errors import InferenceError
from tailcut.models.dispatch.scheduler_factory import at_once


def busy(bench: Bench) -> list[ManualExecutor]:
    return [executor for executor in bench.executors if executor.batch is not None]


def test_what_comes_while_as_many_run_as_may_shares_the_next_batch() -> None:
    bench = Bench(executors=3, max_rows=4, at_once=1)

    async def main() -> None:
        bench.open()
        first = bench.submit(1)
        await bench.settle()
        later = [bench.submit(2), bench.submit(3)]
        await bench.settle()
        (running,) = busy(bench)
        assert not any(item.future.done() for items in (first, *later) for item in items)
        running.finish()
        await bench.settle()
        assert busy(bench) == [running], "the one whose caches are warm"
        running.finish()
        await bench.settle()
        assert [answer(items) for items in (first, *later)] == [[1], [2], [3]]
        assert [rows for rows, _ in bench.batches] == [1, 2]

    bench.run(main())


def test_as_many_as_may_run_side_by_side() -> None:
    bench = Bench(executors=3, max_rows=1, at_once=2)

    async def main() -> None:
        bench.open()
        for value in range(4):
            bench.submit(value)
        await bench.settle()
        assert len(busy(bench)) == 2
        assert bench.dispatcher.running.usable == 2

    bench.run(main())


def test_one_that_joins_is_used_after_those_that_are_warm() -> None:
    bench = Bench(executors=1, max_rows=1)

    async def main() -> None:
        bench.open()
        (warm,) = bench.executors
        cold = ManualExecutor(bench.runtime, bench.dispatcher.on_done, bench.clock)
        bench.executors.append(cold)
        bench.dispatcher.add(cold)
        bench.submit(1)
        await bench.settle()
        assert busy(bench) == [warm]
        bench.submit(2)
        await bench.settle()
        assert busy(bench) == [warm, cold]

    bench.run(main())


@pytest.mark.parametrize("most", [None, 2, 1])
def test_the_one_that_rests_longest_is_missed_least(most: int | None) -> None:
    bench = Bench(executors=3, max_rows=1, at_once=most)

    async def main() -> None:
        bench.open()
        turn = bench.dispatcher.running.turn
        bench.submit(1, slack_s=60)
        await bench.settle()
        (first,) = busy(bench)
        rested = [executor for executor in bench.executors if executor is not first]
        assert turn(first) > max(turn(executor) for executor in rested)
        first.finish()
        await bench.settle()
        assert turn(first) > max(turn(executor) for executor in rested), "its caches are warm"
        bench.dispatcher.remove(min(bench.executors, key=turn))
        bench.submit(2, slack_s=60)
        await bench.settle()
        assert busy(bench) == [first]

    bench.run(main())


async def begun(bench: Bench) -> ManualExecutor:
    """Open the bench and let the one that may run begin."""
    bench.open()
    bench.submit(1, slack_s=60)
    await bench.settle()
    (first,) = busy(bench)
    return first


def die(bench: Bench, executor: ManualExecutor) -> None:
    bench.dispatcher.fail(executor, InferenceError("killed"))


def leave(bench: Bench, executor: ManualExecutor) -> None:
    bench.dispatcher.remove(executor)


def get_stuck(bench: Bench, executor: ManualExecutor) -> None:
    """The test lets time pass for each of them."""


@pytest.mark.parametrize("happens", [die, leave, get_stuck])
def test_one_that_rests_takes_over(happens: Callable[[Bench, ManualExecutor], None]) -> None:
    bench = Bench(executors=2, max_rows=1, at_once=1)

    async def main() -> None:
        first = await begun(bench)
        waiting = bench.submit(2, slack_s=60)
        await bench.settle()  # so that nothing is planned any more because of what was asked
        happens(bench, first)
        await bench.clock.pass_time(2 if happens is get_stuck else 1)
        other = next(executor for executor in busy(bench) if executor is not first)
        assert bench.dispatcher.healthy
        while not waiting[0].future.done():  # the batch of one that died is run once more, before it or after it
            other.finish()
            await bench.settle()
        assert answer(waiting) == [2]

    bench.run(main())


def test_one_that_was_stuck_comes_back_to_rest() -> None:
    bench = Bench(executors=2, max_rows=1, at_once=1)

    async def main() -> None:
        first = await begun(bench)
        bench.submit(2, slack_s=60)
        await bench.clock.pass_time(3)
        first.finish()
        bench.submit(3, slack_s=60)
        await bench.settle()
        assert len(busy(bench)) == 1
        busy(bench)[0].finish()
        await bench.settle()
        assert len(busy(bench)) == 1

    bench.run(main())


@pytest.mark.parametrize(
    ("runtime", "settings", "quota", "most"),
    [
        ("onnxruntime", {}, None, 4),
        ("openvino", {}, 1.5, 2),
        ("onnxruntime", {}, 0.5, 1),
        ("onnxruntime", {"provider": "CUDAExecutionProvider"}, None, None),
        ("openvino", {"device": "NPU"}, None, None),
        ("openvino", {"device": "CPU"}, None, 4),
        ("torch", {}, None, None),
        ("python", {}, None, None),
    ],
)
def test_cores_limit_what_only_computes_on_them(
    runtime: str, settings: dict[str, str], quota: float | None, most: int | None
) -> None:
    machine = Machine(architecture="x86_64", cores=4, quota_cores=quota)
    assert at_once(runtime, settings, machine.usable_cores) == most
