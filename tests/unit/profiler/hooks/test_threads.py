"""Hooks on what leaves a request's thread: contexts stay the user's, nothing lives longer, waits are whose they are."""

from __future__ import annotations

import asyncio
import ctypes
import decimal
import functools
import gc
import importlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from tailcut.profiler.hooks import locks
from tailcut.profiler.hooks.wrapping import called
from tailcut.profiler.recording import clocks, tracing
from tailcut.profiler.recording.places import Places
from tailcut.profiler.recording.spans import one_line, requests_of
from tailcut.profiler.recording.tracing import OpenSpan, Trace, close_timed, current, open_timed, tracer
from tailcut.profiler.records import RecordedSpan, Stage

MS = 1_000_000


def kept(trace: Trace) -> list[tuple[str, str]]:
    return [(span.stage.value, one_line(span.label)) for span in trace.spans[1:]]


def of_stage(trace: Trace, stage: Stage) -> list[OpenSpan]:
    return [span for span in trace.spans if span.stage is stage]


def query() -> Any:
    return called(lambda: 2, Stage.SQL, "SELECT")()


async def on_loop(handed: Callable[[], Any]) -> Any:
    """What the loop's default executor returns, which is closed then."""
    found = await handed()
    await asyncio.get_running_loop().shutdown_default_executor()
    return found


def test_what_a_context_runs_in_a_thread_is_inside_of_the_threads_span(request_: Trace, hooked_threads: None) -> None:
    assert asyncio.run(on_loop(lambda: asyncio.to_thread(query))) == 2
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.run, query).result() == 2
        assert pool.submit(functools.partial(context.run, functools.partial(context.copy().run, query))).result() == 2
    codes = of_stage(request_, Stage.CODE)
    assert [str(one.label) for one in codes] == ["query"] * 3
    assert [one.parent for one in of_stage(request_, Stage.SQL)] == codes
    assert context[current] is request_.spans[0]


def test_of_a_context_only_run_is_taken_apart(request_: Trace, hooked_threads: None) -> None:
    asked: ContextVar[int] = ContextVar("asked")
    context = copy_context()
    context.run(asked.set, 3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.get, asked).result() == 3
        assert pool.submit(context.run, lambda *, number: number, number=4).result() == 4
        incomplete: Any = context.run
        with pytest.raises(TypeError):
            pool.submit(incomplete).result()


def test_a_function_in_an_executor_finds_the_threads_own_context(request_: Trace, hooked_threads: None) -> None:
    """As without the profile: what its initializer set, and not what the request set."""
    setting: ContextVar[str] = ContextVar("setting", default="none")

    def prepare() -> None:
        setting.set("by the initializer")
        decimal.getcontext().prec = 50

    def read() -> tuple[str, int]:
        assert current.get() in of_stage(request_, Stage.CODE)
        return setting.get(), decimal.getcontext().prec

    setting.set("by the request")
    with ThreadPoolExecutor(1, initializer=prepare) as pool:
        assert pool.submit(read).result() == ("by the initializer", 50)
        assert asyncio.run(on_loop(lambda: asyncio.get_running_loop().run_in_executor(pool, read))) == (
            "by the initializer", 50,
        )  # fmt: skip
        # Afterwards the thread is nobody's.
        assert Context().run(pool.submit, current.get).result() is None


def test_a_function_that_raises_leaves_its_thread_to_others(request_: Trace, hooked_threads: None) -> None:
    def fail() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="no"):
            pool.submit(fail).result()
        assert Context().run(pool.submit, current.get).result() is None


def test_a_function_made_for_a_request_is_freed_with_what_it_holds(request_: Trace, hooked_threads: None) -> None:
    class Held:
        pass

    def hand(pool: ThreadPoolExecutor) -> weakref.ref[Held]:
        held = Held()
        assert pool.submit(lambda: held is not None).result()
        return weakref.ref(held)

    with ThreadPoolExecutor(1) as pool:
        found = [hand(pool) for _ in range(20)]
    gc.collect()
    assert [one() for one in found] == [None] * 20
    assert len(of_stage(request_, Stage.CODE)) == 20


def test_functions_are_told_apart_by_what_they_run() -> None:
    def decorated(function: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(function)
        def wrapper() -> None:
            function()

        return wrapper

    @decorated
    def one() -> None: ...

    @decorated
    def two() -> None: ...

    places = Places("/")
    for _ in range(2):
        assert [places.describe(each)[0].rpartition(".")[2] for each in (one, two)] == ["one", "two"]


class Simulated:
    """A thread's clocks and the kernel's count of its waits, which are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_ns, self.cpu_ns, self.waited_ns = clocks.now(), 0, 0
        monkeypatch.setattr(tracing, "now", lambda: self.at_ns)
        monkeypatch.setattr(clocks, "thread_time_ns", lambda: self.cpu_ns)
        monkeypatch.setattr(clocks, "_pread", self._pread)
        monkeypatch.setattr(clocks, "of_thread", clocks._OfThread())
        monkeypatch.setattr(tracing, "of_thread", clocks.of_thread)
        monkeypatch.setattr(clocks.ThreadClock, "noted_until_ns", 0)

    def computes(self, ms: int) -> None:
        self.at_ns += ms * MS
        self.cpu_ns += ms * MS

    def sleeps(self, ms: int) -> None:
        self.at_ns += ms * MS

    def waits(self, ms: int) -> None:
        """For a core."""
        self.at_ns += ms * MS
        self.waited_ns += ms * MS

    def _pread(self, file: int, buffer: Any, *rest: int) -> int:
        line = b"%d %d 1\n\0" % (self.cpu_ns, self.waited_ns)
        ctypes.memmove(buffer, line, len(line))
        return len(line)


def delays_ms(trace: Trace) -> dict[str, float]:
    found: tuple[RecordedSpan, ...] = requests_of(tracer)[0].spans
    return {one.label: one.delay_ns / MS for one in found if one.cpu_ns >= 0}


def test_a_wait_for_a_core_before_a_span_is_not_the_spans(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's thread, which synchronous drivers keep: between two calls it has waited, for nobody's query."""
    thread, root = Simulated(monkeypatch), request_.spans[0]
    for label, waits_ms in (("first", 0), ("second", 32), ("third", 7)):
        thread.computes(600)
        thread.waits(waits_ms)
        span = open_timed(root, Stage.SQL, label)
        thread.sleeps(30)
        thread.waits(2)
        close_timed(span)
    assert delays_ms(request_) == {"first": 2.0, "second": 2.0, "third": 2.0}


def test_waits_before_spans_began_to_ask_for_their_own_are_the_outer_ones(
    request_: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, root = Simulated(monkeypatch), request_.spans[0]
    outer = open_timed(root, Stage.CODE, "predict")
    thread.computes(600)
    thread.waits(32)
    asleep = open_timed(outer, Stage.HTTP, "GET")
    thread.sleeps(10)
    # Another thread has waits that are worth dividing.
    clocks.ThreadClock.noted_until_ns = thread.at_ns + 1_000 * MS
    thread.sleeps(20)
    close_timed(asleep)
    query = open_timed(outer, Stage.SQL, "SELECT")
    thread.sleeps(5)
    thread.waits(4)
    close_timed(query)
    close_timed(outer)
    assert delays_ms(request_) == {"predict": 36.0, "GET": 0.0, "SELECT": 4.0}


def test_a_span_that_begins_close_to_another_ones_end_has_none_of_its_waits(
    request_: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, root = Simulated(monkeypatch), request_.spans[0]
    outer = open_timed(root, Stage.CODE, "predict")
    first = open_timed(outer, Stage.SQL, "first")
    thread.waits(8)
    close_timed(first)
    clocks.ThreadClock.noted_until_ns = thread.at_ns + 1_000 * MS
    second = open_timed(outer, Stage.SQL, "second")
    thread.sleeps(20)
    close_timed(second)
    close_timed(outer)
    assert delays_ms(request_) == {"predict": 8.0, "first": 0.0, "second": 0.0}


@pytest.fixture
def hooked_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (asyncio.Lock, "acquire"), (asyncio.Semaphore, "acquire"), (asyncio.Event, "wait"), (asyncio.Condition, "wait"),
        (asyncio.Queue, "get"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    locks._hook_asyncio(importlib.import_module("asyncio.locks"))
    locks._hook_queues(importlib.import_module("asyncio.queues"))


def test_what_is_free_makes_no_span_on_the_loop(request_: Trace, hooked_locks: None) -> None:
    async def run() -> None:
        lock, semaphore, event = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Event()
        queue: asyncio.Queue[int] = asyncio.Queue()
        event.set()
        queue.put_nowait(1)
        async with lock, semaphore:
            await event.wait()
            assert await queue.get() == 1

    asyncio.run(run())
    assert kept(request_) == []


def test_whoever_waits_on_the_loop_has_a_span(request_: Trace, hooked_locks: None) -> None:
    async def run() -> None:
        lock, semaphore, event = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Event()
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def waiting() -> None:
            async with lock, semaphore:
                await event.wait()
                assert await asyncio.wait_for(queue.get(), 10) == 1

        async with lock:
            await semaphore.acquire()
            task = asyncio.create_task(waiting())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        semaphore.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        await asyncio.sleep(0)
        queue.put_nowait(1)
        await task

    asyncio.run(run())
    labels = ["asyncio.Lock", "asyncio.Semaphore", "asyncio.Event", "asyncio.Queue"]
    assert [label for _, label in kept(request_)] == labels
    assert all(span.parent is request_.spans[0] and span.end_ns >= span.start_ns for span in request_.spans[1:])
    places = {tracer.places.at(span.place, span.at) for span in request_.spans[1:]}  # type: ignore[arg-type]
    assert all(place.startswith("tests/unit/profiler/hooks/test_threads.py:") for place in places)


def test_a_semaphore_of_threads_makes_a_span_where_it_is_taken(
    request_: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Semaphore(threading.Semaphore):
        acquire = locks._trying(threading.Semaphore.acquire, "threading.Semaphore")
        __enter__ = acquire

    semaphore = Semaphore(1)
    with semaphore:
        assert semaphore.acquire(blocking=False) is False
        assert semaphore.acquire(timeout=0) is False
        assert kept(request_) == []
        assert semaphore.acquire(timeout=0.001) is False
    assert kept(request_) == [("lock", "threading.Semaphore")]
    with pytest.raises(ValueError, match="timeout"):
        semaphore.acquire(False, 1)


def test_what_goes_on_after_a_request_is_no_part_of_it(
    request_: Trace, hooked_threads: None, hooked_locks: None
) -> None:
    """A task that it began, and that lives on."""
    request_.over = True

    async def run() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        task = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait(await asyncio.to_thread(lambda: 1))
        assert await task == 1

    asyncio.run(run())
    assert kept(request_) == []
