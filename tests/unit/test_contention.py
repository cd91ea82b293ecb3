from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.errors import NotReady
from tailcut.scheduler.contention import Contention, Saturation
from tailcut.scheduler.overload_detector import Target
from tailcut.transport import thread_scheduling
from tailcut.transport.thread_scheduling import Scheduling, Times, cores_busy_s, model_threads, thread_times
from tailcut.transport.time_slices import Slices, get_slice, set_slice

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str, *, wakes: bool) -> None:
        self.policies = {1: os.SCHED_OTHER, 2: os.SCHED_OTHER, 3: os.SCHED_OTHER}
        self.took = Times(0.0, 0.0, 0.0)
        self.now_s = 100.0
        self.due: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.overload = SimpleNamespace(stands=False, target=Target(80_000_000, 500_000_000))
        self.overload.is_seen = lambda now_ns: self.overload.stands
        dispatcher = SimpleNamespace(scheduler=SimpleNamespace(overload=self.overload))
        path = SimpleNamespace(fallback=None, tensor_cache=None, entity_cache=None, dispatcher=dispatcher)
        self.opened: Any = SimpleNamespace(executor="inline", pipeline=path)
        self.others_s = 0.0
        """That others computed on the core since the start."""
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
        monkeypatch.setattr(os, "sched_getscheduler", lambda pid: self.policies[pid or 1])
        monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, _: self.policies.update({pid: policy}))
        monkeypatch.setattr(os, "listdir", lambda path: [str(pid) for pid in self.policies])
        monkeypatch.setattr(thread_scheduling, "perf_counter", lambda: self.now_s)
        self.tells = True
        self.given = set[int]()
        monkeypatch.setattr(thread_scheduling, "model_threads", lambda: [3])
        self.thread_scheduling = Scheduling(
            self,  # type: ignore[arg-type]
            policy,
            wakes=wakes,
            times=lambda: self.took if self.tells else None,
            busy_s=self.busy_s,
            slices=self,  # type: ignore[arg-type]
        )

    def busy_s(self, cores: object) -> float | None:
        assert cores == {0}
        return 50.0 + self.took.cpu_s + self.others_s

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.due.append((call, arguments))

    def watch(self) -> None:
        self.thread_scheduling.watch(self)  # type: ignore[arg-type]

    def give(self, tasks: Collection[int], slice_ns: int = 0) -> None:
        """As ``Slices``."""
        self.given, self.slice_ns = set(tasks), slice_ns

    @property
    def longer(self) -> bool:
        return bool(self.given)

    def fill(self) -> None:
        """Have a model in threads that fill the core for five seconds."""
        self.opened.executor = "thread"
        self.watch()
        for _ in range(5):
            self.second(0.95, 2.0)

    def second(self, cpu_s: float, waited_s: float, beside_s: float = 0.0) -> None:
        self.now_s += 1.0
        took = self.took
        self.took = Times(took.cpu_s + cpu_s + beside_s, took.waited_s + waited_s, took.beside_s + beside_s)
        due, self.due = self.due, []
        for call, arguments in due:
            call(*arguments)

    @property
    def batch(self) -> list[bool]:
        sample, longer = self.thread_scheduling.samples()
        assert longer.value == float(bool(self.given))
        found = [policy == os.SCHED_BATCH for policy in self.policies.values()]
        assert sample.value == float(found[0])
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    return lambda policy, wakes=True: Bench(monkeypatch, policy, wakes=wakes)


def test_all_threads_yield_while_the_cores_are_theirs(bench: Callable[..., Bench]) -> None:
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


def test_a_loop_that_nobody_wakes_has_nothing_to_win(bench: Callable[..., Bench]) -> None:
    """It reads its requests itself, and runs the model."""
    process = bench("auto", wakes=False)
    process.watch()
    for _ in range(6):
        process.second(0.9, 1.0)
        assert process.batch == [False] * 3


def test_a_model_beside_the_event_loop_must_not_hold_it_up(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    process.watch()
    for _ in range(6):
        process.second(0.6, 1.0)
    assert process.batch == [False] * 3


def test_but_it_may_where_there_is_no_time_left_on_the_cores(bench: Callable[..., Bench]) -> None:
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


def test_and_where_nobody_else_computes_there(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.fill()
    assert process.batch == [True] * 3
    for _ in range(6):
        process.others_s += 0.25
        process.second(0.75, 2.0)
        assert process.batch == [False] * 3


@pytest.mark.parametrize("what", ["fallback", "tensor_cache", "entity_cache"])
def test_answers_of_others_do_not_wait_for_the_model(bench: Callable[..., Bench], what: str) -> None:
    process = bench("auto")
    process.opened.executor = "thread"
    setattr(process.opened.pipeline, what, object())
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


def test_nor_must_threads_that_load_the_next_variant(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.watch()
    for _ in range(4):
        process.second(0.9, 1.0)
    assert process.batch == [True] * 3
    process.second(0.5, 0.5, beside_s=0.4)
    assert process.batch == [False] * 3
    process.second(0.9, 1.0)
    assert process.batch == [True] * 3


def test_before_it_is_loaded_nothing_changes(bench: Callable[..., Bench]) -> None:
    process = bench("auto")

    class Loading:
        @property
        def opened(self) -> Any:
            raise NotReady("loading", hint="wait")

    process.thread_scheduling._engine = Loading()  # type: ignore[assignment]
    process.watch()
    for _ in range(6):
        process.second(0.9, 1.0)
    assert process.batch == [False] * 3


def test_batch_and_normal_are_not_asked_twice(bench: Callable[..., Bench]) -> None:
    always = bench("batch")
    always.watch()
    assert always.batch == [True] * 3
    assert not always.due
    never = bench("normal")
    never.watch()
    assert never.batch == [False] * 3
    assert not never.due


def test_a_policy_that_somebody_gave_stays(bench: Callable[..., Bench]) -> None:
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
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = bench("batch")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    process.watch()
    assert process.batch == [False] * 3


def test_where_the_kernel_does_not_tell_nothing_changes(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.thread_scheduling._times = lambda: None
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


def test_models_that_cannot_answer_all_have_longer_slices(bench: Callable[..., Bench]) -> None:
    """While the threads fill the cores and a backlog stands."""
    process = bench("auto")
    process.fill()
    assert process.batch == [True] * 3
    assert process.given == set()
    process.overload.stands = True
    process.second(0.95, 2.0)
    assert process.given == {3}
    process.overload.stands = False
    process.second(0.95, 2.0)
    assert process.given == set()
    process.overload.stands = True
    process.second(0.95, 2.0)
    assert process.given == {3}
    process.second(0.5, 2.0)  # there is time left on the core
    assert process.given == set()


@pytest.mark.parametrize(("limit_ms", "slice_ms"), [(40, 10), (200, 25), (5_000, 40)])
def test_a_slice_is_so_long_that_the_slo_has_time_for_it(
    bench: Callable[..., Bench], limit_ms: int, slice_ms: int
) -> None:
    process = bench("auto")
    process.overload.stands = True
    process.overload.target = Target(limit_ms * 1_000_000, 10 * limit_ms * 1_000_000)
    process.fill()
    assert (process.given, process.slice_ns) == ({3}, slice_ms * 1_000_000)
    assert process.overload.unseen_ns == process.slice_ns, "so much later a request may be seen"
    process.overload.stands = False
    process.second(0.95, 2.0)
    assert process.overload.unseen_ns == 0


def test_without_a_word_of_the_kernels_slices_are_taken_back(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.overload.stands = True
    process.fill()
    assert process.given == {3}
    process.tells = False
    process.second(0.95, 2.0)
    assert process.given == set()


def test_a_model_on_the_event_loop_has_no_longer_slices(bench: Callable[..., Bench]) -> None:
    process = bench("auto")
    process.overload.stands = True
    process.watch()
    for _ in range(6):
        process.second(0.95, 1.0)
    assert process.batch == [True] * 3
    assert process.given == set()


@pytest.fixture
def thread() -> Iterator[Callable[[], int]]:
    """Starts threads that wait, and says their ids."""
    done, begun = threading.Event(), list[threading.Thread]()

    def start() -> int:
        begun.append(threading.Thread(target=done.wait))
        begun[-1].start()
        assert begun[-1].native_id
        return begun[-1].native_id

    yield start
    done.set()
    for each in begun:
        each.join()


needs_slices = pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 12), reason="slices can be set from Linux 6.12 on"
)


@needs_slices
def test_the_kernel_takes_a_slice_and_gives_its_own_back(thread: Callable[[], int]) -> None:
    task = thread()
    usual_ns, policy = get_slice(task), os.sched_getscheduler(task)
    set_slice(task, 10_000_000)
    assert get_slice(task) == 10_000_000
    assert (os.sched_getscheduler(task), os.getpriority(os.PRIO_PROCESS, task)) == (policy, 0)
    set_slice(task, 0)
    assert get_slice(task) == usual_ns != 10_000_000
    with pytest.raises(ProcessLookupError):
        set_slice(int(Path("/proc/sys/kernel/pid_max").read_text()) + 1, 0)


@needs_slices
def test_slices_are_given_to_those_that_are_there_and_taken_from_the_others(thread: Callable[[], int]) -> None:
    """From what they have begun, too: it has theirs."""
    first, second, third = thread(), thread(), thread()
    usual_ns, slices, gone = get_slice(first), Slices(), int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    slices.give([first, second, gone], 9_000_000)
    assert slices.longer
    assert [get_slice(task) for task in (first, second, third)] == [9_000_000, 9_000_000, usual_ns]
    set_slice(third, 9_000_000)  # as if the second had begun it
    slices.give([first], 9_000_000)
    assert [get_slice(task) for task in (first, second, third)] == [9_000_000, usual_ns, usual_ns]
    slices.give([first, third], 20_000_000)
    assert [get_slice(task) for task in (first, second, third)] == [20_000_000, usual_ns, 20_000_000]
    slices.give([])
    assert [get_slice(task) for task in (first, third)] == [usual_ns] * 2
    assert not slices.longer


@pytest.mark.parametrize("machine", ["riscv64", "x86_64"])
def test_where_slices_cannot_be_set_nobody_says_they_are(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """Another machine; a kernel that takes the call and changes nothing."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=lambda *_: 0))
    slices = Slices()
    slices.give([threading.get_native_id()], 9_000_000)
    assert not slices.longer


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
