from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.core.contention import Contention, Refusing, Saturation
from tailcut.errors import NotReady
from tailcut.server import scheduling
from tailcut.server.scheduling import Scheduling, Times, cores_busy_s, model_threads, thread_times
from tailcut.server.slices import Slices, set_slice

ALONE, BUSY, OTHERS = (1.0, 0.99, 1.2), (1.0, 0.99, 1.35), (1.0, 0.085, 0.985)
"""Seconds that passed, were computed and waited on one core, as measured: alone, alone and busy, beside another."""


def looks(contention: Contention, *seen: tuple[float, float, float]) -> list[bool]:
    return [contention.look(*each) for each in seen]


def test_it_yields_once_nobody_was_there_three_times() -> None:
    assert looks(Contention(1), ALONE, BUSY, ALONE, BUSY) == [False, False, True, True]


def test_it_goes_first_again_as_soon_as_others_are_there() -> None:
    assert looks(Contention(1), ALONE, ALONE, ALONE, OTHERS, ALONE) == [False, False, True, False, False]


def test_breaks_grow_where_others_come_and_go() -> None:
    contention = Contention(1)
    looks(contention, ALONE, ALONE, ALONE)
    breaks = []
    for _ in range(9):
        contention.look(*OTHERS)
        count = 0
        while not contention.look(*ALONE):
            count += 1
        breaks.append(count)
    assert breaks[:3] == [9, 19, 39]
    assert breaks[-2:] == [599, 599]


def test_an_idle_machine_is_no_contended_one() -> None:
    assert looks(Contention(1), *[(1.0, 0.001, 0.004)] * 3)[-1]
    assert not looks(Contention(1), *[(1.0, 0.003, 0.05)] * 3)[-1]


def test_threads_with_several_cores_hardly_wait_for_each_other() -> None:
    alone, others = (1.0, 1.27, 0.59), (1.0, 0.756, 1.014)
    assert looks(Contention(2), alone, alone, alone, others) == [False, False, True, False]


@given(st.integers(1, 64), st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_it_never_yields_beside_others(cores: int, seen: list[tuple[float, float, float]]) -> None:
    contention = Contention(cores)
    for passed_s, cpu_s, waited_s in seen:
        yields = contention.look(passed_s, cpu_s, waited_s)
        if waited_s > 2 * cpu_s and waited_s > 0.02 * passed_s:
            assert not yields


class Bench:
    """A process with three threads, a loop that runs what is due when told to, and times as they are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
        self.policies = {1: os.SCHED_OTHER, 2: os.SCHED_OTHER, 3: os.SCHED_OTHER}
        self.took = Times(0.0, 0.0, 0.0)
        self.now_s = 100.0
        self.due: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        path = SimpleNamespace(fallback=None, tensor_cache=None, entity_cache=None)
        self.opened: Any = SimpleNamespace(executor="inline", path=path)
        self.others_s = 0.0
        """That others computed on the core since the start."""
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
        monkeypatch.setattr(os, "sched_getscheduler", lambda pid: self.policies[pid or 1])
        monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, _: self.policies.update({pid: policy}))
        monkeypatch.setattr(os, "listdir", lambda path: [str(pid) for pid in self.policies])
        monkeypatch.setattr(scheduling, "perf_counter", lambda: self.now_s)
        self.recorder = SimpleNamespace(requests={})
        self.slices: dict[int, int] = {}
        slices = Slices(10, lambda task, slice_ns: self.slices.update({task: slice_ns}))
        monkeypatch.setattr(scheduling, "model_threads", lambda: [3])
        self.scheduling = Scheduling(self, policy, lambda: self.took, self.busy_s, slices)  # type: ignore[arg-type]

    def busy_s(self, cores: object) -> float | None:
        assert cores == {0}
        return 50.0 + self.took.cpu_s + self.others_s

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.due.append((call, arguments))

    def watch(self) -> None:
        self.scheduling.watch(self)  # type: ignore[arg-type]

    def ended(self, ok: int, shed: int) -> None:
        """Requests that ended since the last second."""
        for outcome, count in (("ok", ok), ("shed", shed)):
            key = ("infer", "onnx", outcome, "off")
            self.recorder.requests[key] = self.recorder.requests.get(key, 0) + count

    def second(self, cpu_s: float, waited_s: float, beside_s: float = 0.0) -> None:
        self.now_s += 1.0
        took = self.took
        self.took = Times(took.cpu_s + cpu_s + beside_s, took.waited_s + waited_s, took.beside_s + beside_s)
        due, self.due = self.due, []
        for call, arguments in due:
            call(*arguments)

    @property
    def batch(self) -> list[bool]:
        sample, longer = self.scheduling.samples()
        assert longer.value == float(any(self.slices.values()))
        found = [policy == os.SCHED_BATCH for policy in self.policies.values()]
        assert sample.value == float(found[0])
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Bench]:
    return lambda policy: Bench(monkeypatch, policy)


def test_all_threads_yield_while_the_cores_are_theirs(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.watch()
    for _ in range(4):
        assert process.batch == [False] * 3
        process.second(0.9, 1.0)
    assert process.batch == [True] * 3
    process.policies[4] = os.SCHED_OTHER  # a thread that somebody else began
    process.second(0.9, 1.0)
    assert process.batch == [True] * 4
    process.second(0.1, 0.9)
    assert process.batch == [False] * 4


def test_a_model_beside_the_event_loop_must_not_hold_it_up(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    process.watch()
    for _ in range(6):
        process.second(0.6, 1.0)
    assert process.batch == [False] * 3


def test_but_it_may_where_there_is_no_time_left_on_the_cores(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    process.watch()
    process.second(0.0, 0.0)
    for _ in range(3):
        assert process.batch == [False] * 3
        process.second(0.95, 2.0)
    assert process.batch == [True] * 3
    process.second(0.65, 2.0)
    assert process.batch == [True] * 3
    process.second(0.5, 2.0)
    assert process.batch == [False] * 3


def test_and_where_nobody_else_computes_there(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    process.watch()
    for _ in range(5):
        process.second(0.95, 2.0)
    assert process.batch == [True] * 3
    for _ in range(6):
        process.others_s += 0.25
        process.second(0.75, 2.0)
        assert process.batch == [False] * 3


@pytest.mark.parametrize("what", ["fallback", "tensor_cache", "entity_cache"])
def test_answers_of_others_do_not_wait_for_the_model(bench: Callable[[str], Bench], what: str) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    setattr(process.opened.path, what, object())
    process.watch()
    for _ in range(6):
        process.second(0.95, 2.0)
    assert process.batch == [False] * 3


@given(st.integers(1, 64), st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1), st.floats(0, 1)), max_size=50))
def test_threads_of_a_model_yield_only_on_full_cores_without_others(
    cores: int, seen: list[tuple[float, float, float]]
) -> None:
    saturation = Saturation(cores)
    for passed_s, own, others in seen:
        own_s, others_s = own * cores * passed_s, others * cores * passed_s
        if saturation.look(passed_s, own_s, own_s + others_s):
            assert own >= 0.59
            assert others_s <= 0.21 * passed_s


def test_a_kernel_that_does_not_tell_who_was_busy_changes_nothing() -> None:
    saturation = Saturation(2)
    assert not any(saturation.look(1.0, 2.0, 0.0) for _ in range(6))


def test_nor_must_threads_that_load_the_next_variant(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.watch()
    for _ in range(4):
        process.second(0.9, 1.0)
    assert process.batch == [True] * 3
    process.second(0.5, 0.5, beside_s=0.4)
    assert process.batch == [False] * 3
    process.second(0.9, 1.0)
    assert process.batch == [True] * 3


def test_before_it_is_loaded_nothing_changes(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")

    class Loading:
        @property
        def opened(self) -> Any:
            raise NotReady("loading", hint="wait")

    process.scheduling._engine = Loading()  # type: ignore[assignment]
    process.watch()
    for _ in range(6):
        process.second(0.9, 1.0)
    assert process.batch == [False] * 3


def test_batch_and_normal_are_not_asked_twice(bench: Callable[[str], Bench]) -> None:
    always = bench("batch")
    always.watch()
    assert always.batch == [True] * 3
    assert not always.due
    never = bench("normal")
    never.watch()
    assert never.batch == [False] * 3
    assert not never.due


def test_a_policy_that_somebody_gave_stays(bench: Callable[[str], Bench]) -> None:
    process = bench("batch")
    process.policies = dict.fromkeys(process.policies, os.SCHED_IDLE)
    process.watch()
    assert set(process.policies.values()) == {os.SCHED_IDLE}
    one = bench("auto")
    one.policies[2] = os.SCHED_FIFO
    one.watch()
    for _ in range(4):
        one.second(0.9, 1.0)
    assert one.policies == {1: os.SCHED_BATCH, 2: os.SCHED_FIFO, 3: os.SCHED_BATCH}
    one.second(0.1, 0.9)
    assert one.policies == {1: os.SCHED_OTHER, 2: os.SCHED_FIFO, 3: os.SCHED_OTHER}


def test_where_it_is_not_allowed_it_is_not_said_to_be_so(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = bench("batch")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    process.watch()
    assert process.batch == [False] * 3


def test_where_the_kernel_does_not_tell_nothing_changes(bench: Callable[[str], Bench]) -> None:
    process = bench("auto")
    process.scheduling._times = lambda: None
    process.watch()
    assert not process.due


def test_the_kernel_tells_what_this_process_took_and_which_threads() -> None:
    before = thread_times()
    assert before is not None
    sum(range(3_000_000))
    between = thread_times()
    assert between is not None
    assert between.cpu_s > before.cpu_s

    computed, done = threading.Event(), threading.Event()

    def compute() -> None:
        sum(range(3_000_000))
        computed.set()
        done.wait(60)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert computed.wait(60)
        after = thread_times()
    finally:
        done.set()
        thread.join()
    assert after is not None
    assert after.beside_s > between.beside_s


def test_after_an_hour_breaks_are_short_again() -> None:
    contention = Contention(1)
    looks(contention, ALONE, ALONE, ALONE, OTHERS)
    looks(contention, *[ALONE] * 3700, OTHERS)
    assert [contention.look(*ALONE) for _ in range(10)] == [False] * 9 + [True]


def test_the_kernel_tells_what_cores_did() -> None:
    cores = os.sched_getaffinity(0)
    before = cores_busy_s(cores)
    assert before is not None
    computed = 0
    while (now := cores_busy_s(cores)) == before:
        computed += sum(range(100_000))
    assert now is not None
    assert now > before
    assert cores_busy_s([]) == 0.0


def test_models_that_cannot_answer_all_have_longer_slices(bench: Callable[[str], Bench]) -> None:
    """While the threads fill the cores and every fourth is refused, and until hardly any is."""
    process = bench("auto")
    process.opened.executor = "thread"
    process.watch()
    for shed, expected in [
        (20, {}),
        (20, {}),
        (20, {}),
        (20, {}),
        (30, {3: 10}),
        (12, {3: 10}),
        (9, {3: 0}),
        (20, {3: 0}),
    ]:
        process.ended(100 - shed, shed)
        process.second(0.95, 2.0)
        assert process.slices == expected
        assert process.batch is not None
    process.ended(50, 50)
    process.second(0.95, 2.0)
    assert process.slices == {3: 10}
    process.ended(50, 50)
    process.second(0.5, 2.0)  # there is time left on the core
    assert process.slices == {3: 0}


def test_refused_is_what_was_since_the_last_look() -> None:
    refusing = Refusing()
    assert not refusing.look(100, 100)  # since the start, however long ago that was
    assert refusing.look(200, 130)
    assert not refusing.look(200, 130)  # nobody asked
    assert refusing.look(204, 131)


def test_slices_are_given_to_those_that_are_there_and_taken_from_the_others() -> None:
    calls: list[tuple[int, int]] = []

    def set_one(task: int, slice_ns: int) -> None:
        calls.append((task, slice_ns))
        if task == 9:
            raise OSError

    slices = Slices(10, set_one)
    slices.give([1, 2, 9])
    assert slices.longer
    slices.give([2, 3])
    slices.give([])
    slices.give([])
    assert calls[:5] == [(1, 10), (2, 10), (9, 10), (1, 0), (3, 10)]
    assert sorted(calls[5:]) == [(2, 0), (3, 0)]
    assert not slices.longer


def test_the_kernel_takes_a_slice() -> None:
    """Of this thread, whose policy and niceness stay; one that has ended is told."""
    task, policy = threading.get_native_id(), os.sched_getscheduler(0)
    set_slice(task, 10_000_000)
    try:
        assert os.sched_getscheduler(task) == policy
        assert os.getpriority(os.PRIO_PROCESS, task) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        set_slice(task, 0)
    with pytest.raises(ProcessLookupError):
        set_slice(int(Path("/proc/sys/kernel/pid_max").read_text()) + 1, 0)


def test_threads_of_models_are_known_by_their_names() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="tailcut-executor-7")
    thread.start()
    try:
        assert thread.native_id in model_threads()
        assert threading.get_native_id() not in model_threads()
    finally:
        done.set()
        thread.join()
