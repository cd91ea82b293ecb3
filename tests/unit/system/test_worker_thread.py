"""The thread behind a bounded queue: what is dropped, in which order work is done, and how it ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.wait_kit import block_until

from tailcut.system.worker_thread import WorkerThread


class Bench:
    """A worker that notes what it takes; while it is held, it does not get on."""

    def __init__(self, **options: Any) -> None:
        self.taken: list[list[int]] = []
        self.go_on, self.is_held = threading.Event(), threading.Event()
        self.go_on.set()
        self.worker: WorkerThread[int] = WorkerThread(
            "test-worker", self.work, "figures are lost", **({"most": 100} | options)
        )

    def work(self, items: list[int]) -> None:
        self.is_held.set()
        assert self.go_on.wait(30)
        self.taken.append(items)

    @property
    def items(self) -> list[int]:
        return [item for items in self.taken for item in items]


def is_running() -> bool:
    return "test-worker" in {thread.name for thread in threading.enumerate()}


def test_what_was_put_is_done_in_order_before_the_end() -> None:
    bench = Bench(at_once=3)
    assert [bench.worker.put(number) for number in range(10)] == [True] * 10
    bench.worker.start()
    bench.worker.close(30)
    assert bench.items == list(range(10))
    assert max(map(len, bench.taken)) == 3
    assert not is_running()
    assert not bench.worker.put(10), "nobody would do it"


def test_what_finds_no_room_is_dropped_by_weight_and_by_memory() -> None:
    worker = Bench(most=10, most_bytes=100).worker
    assert [worker.put(1, weight) for weight in (6, 6, 4)] == [True, False, True]
    worker.run_once()
    assert [worker.put(1, 1, size_bytes) for size_bytes in (60, 60, 40)] == [True, False, True]
    assert not worker.has_room(1, 1)
    worker.run_once()
    assert worker.has_room(10, 100)


def test_what_is_in_work_takes_memory_but_no_place() -> None:
    bench = Bench(most=1, most_bytes=100)
    bench.go_on.clear()
    bench.worker.start()
    assert bench.worker.put(1, size_bytes=60)
    assert bench.is_held.wait(30)
    assert [bench.worker.put(2, 1, size_bytes) for size_bytes in (60, 40)] == [False, True]
    bench.go_on.set()
    bench.worker.close(30)
    assert bench.items == [1, 2]


def test_what_is_put_while_the_work_runs_is_done_as_well() -> None:
    bench = Bench()
    bench.go_on.clear()
    bench.worker.start()
    bench.worker.put(1)
    assert bench.is_held.wait(30)
    bench.worker.put(2)
    bench.go_on.set()
    block_until(lambda: bench.items == [1, 2])
    bench.worker.close(30)


def test_the_queue_is_dropped_in_the_end_where_it_is_not_flushed() -> None:
    bench = Bench()
    bench.go_on.clear()
    bench.worker.start()
    bench.worker.put(1)
    assert bench.is_held.wait(30)
    for number in range(2, 5):
        bench.worker.put(number)
    closing = threading.Thread(target=bench.worker.close, args=(30,), kwargs={"flush": False})
    closing.start()
    assert bench.worker.closing.wait(30)
    bench.go_on.set()
    closing.join()
    assert bench.items == [1]
    assert not is_running()


def test_the_end_waits_for_a_bounded_time() -> None:
    bench = Bench()
    bench.go_on.clear()
    bench.worker.start()
    bench.worker.put(1)
    bench.worker.close(0.01)
    assert is_running()
    bench.go_on.set()
    block_until(lambda: not is_running())


def test_what_the_work_raises_is_logged_once_counted_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(items: list[int]) -> None:
        for item in items:
            done.append(10 // item)

    worker = WorkerThread("test-worker", work, "figures are lost", most=10, begin=lambda: 1 // 0, end=lambda: 1 // 0)
    worker.start()
    for number in (5, 0, 2):
        worker.put(number)
    worker.close(30)
    assert done == [2, 5]
    assert worker.errors == 3
    assert [each.getMessage() for each in caplog.records] == ["figures are lost; later errors are only counted"]


def test_a_worker_that_is_not_woken_takes_together_what_came_meanwhile() -> None:
    bench = Bench(every_s=0.01, wakes_at=100, at_once=100)
    bench.worker.start()
    block_until(lambda: len(bench.taken) > 2)  # it is called without anything as well
    for number in range(5):
        bench.worker.put(number)
    block_until(lambda: bench.items == list(range(5)))
    bench.worker.close(30)


def test_a_worker_is_woken_where_enough_waits() -> None:
    bench = Bench(wakes_at=3, at_once=100)
    bench.worker.start()
    for number in range(3):
        bench.worker.put(number)
    block_until(lambda: bench.items == [0, 1, 2])
    bench.worker.close(30)


def test_the_thread_begins_and_ends_with_what_it_is_given() -> None:
    told: list[str] = []
    worker: WorkerThread[str] = WorkerThread(
        "test-worker",
        told.extend,
        "figures are lost",
        most=10,
        begin=lambda: told.append("begin"),
        end=lambda: told.append("end"),
    )
    worker.put("item")
    worker.start()
    worker.start()
    worker.close(30)
    assert told == ["begin", "item", "end"]
