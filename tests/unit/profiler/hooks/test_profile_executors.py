"""Hooks on executors of the user's and of libraries: whose time is the wait for them, and what runs in them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import socket
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tailcut.profiler.hooks import locks, threads
from tailcut.profiler.recording.tracing import Trace, close_span, current, open_timed, open_under, tracer
from tailcut.profiler.records import Stage


@pytest.fixture
def hooked_anyio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyio.to_thread, "run_sync", anyio.to_thread.run_sync)
    threads._hook_anyio(anyio.to_thread)


def resolve() -> Any:
    """A function of the user's."""
    return socket.getaddrinfo("127.0.0.1", 80)


@pytest.mark.parametrize("stage", [Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.MODEL])
def test_what_a_drivers_call_hands_to_a_thread_is_part_of_the_call(
    request_: Trace, hooked_threads: None, stage: Stage
) -> None:
    """The resolution of a name, the wait for a thread to do it, and the way back: a client that connects each time."""

    async def call(handed: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
        span = open_under(request_.spans[0], stage, "GET http://127.0.0.1/")
        await handed(asyncio.get_running_loop())
        close_span(span)
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(call(lambda loop: loop.getaddrinfo("127.0.0.1", 80)))
    assert [one.stage for one in request_.spans[1:]] == [stage]
    # What is the user's has a name of its own.
    asyncio.run(call(lambda loop: loop.run_in_executor(None, resolve)))
    assert [one.label for one in request_.spans if one.stage is Stage.CODE] == ["resolve"]


def test_a_thread_of_a_drivers_call_is_somebody_elses_next(request_: Trace, hooked_threads: None) -> None:
    span = open_under(request_.spans[0], Stage.HTTP, "GET http://127.0.0.1/")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(socket.getaddrinfo, "127.0.0.1", 80).result()
        assert Context().run(pool.submit, current.get).result() is None
    close_span(span)
    assert request_.spans[1:] == [span]


def test_who_joins_a_thread_waits_for_another(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``with ThreadPoolExecutor()`` does at its end: not computing, though the span around it is timed."""
    for owner, name in (
        (threading, "Lock"), (threading, "RLock"), (threading.Semaphore, "acquire"), (threading.Semaphore, "__enter__"),
        (threading.Condition, "wait"), (threading.Thread, "join"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    locks._hook_threading(threading)
    thread = threading.Thread(target=lambda: None)
    handler = open_timed(request_.spans[0], Stage.CODE, "predict")
    thread.start()
    before = len(request_.spans)
    thread.join()
    waits = request_.spans[before:]
    assert [(one.stage, one.label, one.parent) for one in waits] == [(Stage.WAIT, "another thread", handler)]


def test_who_waits_at_a_limiter_of_the_users_does_not_wait_for_the_thread_pool(
    request_: Trace, hooked_anyio: None
) -> None:
    """Of those that the application makes nobody knows who holds them; the first who comes finds it free."""
    free = threading.Event()

    async def run(limiter: anyio.CapacityLimiter | None) -> list[str | bytes]:
        before = len(request_.spans)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(functools.partial(anyio.to_thread.run_sync, free.wait, limiter=limiter))
            while limiter is not None and limiter.statistics().tasks_waiting < 1:
                await asyncio.sleep(0)
            free.set()
        free.clear()
        return [one.label for one in request_.spans[before:] if one.stage is Stage.WAIT]

    async def both() -> None:
        assert await run(anyio.CapacityLimiter(1)) == ["thread pool", "anyio.CapacityLimiter"]
        assert await run(None) == ["thread pool"] * 2
        pool = anyio.to_thread.current_default_thread_limiter()
        pool.total_tokens = 1
        assert await run(pool) == ["thread pool"] * 2

    asyncio.run(both())


def waits(trace: Trace) -> list[str | bytes]:
    return [one.label for one in trace.spans if one.stage is Stage.WAIT]


def resolve_later(pool: ThreadPoolExecutor | None) -> None:
    """Hand something over as an asynchronous handler does."""

    async def run() -> None:
        await asyncio.get_running_loop().run_in_executor(pool, resolve)
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(run())


def test_an_executor_is_known_by_the_line_that_made_it(request_: Trace, hooked_threads: None) -> None:
    with ThreadPoolExecutor(max_workers=3) as pool:
        line = resolve.__code__.co_filename, inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        label = f"executor of {tracer.places.name(line[0])}:{line[1]}"
        pool.submit(resolve).result()
        pool.submit(copy_context().run, resolve).result()
        resolve_later(pool)
        assert waits(request_) == [label] * 3
        resolve_later(None)
    assert waits(request_)[3:] == ["executor of asyncio"]


def test_what_an_executors_class_puts_around_a_function_is_no_second_one(request_: Trace, hooked_threads: None) -> None:
    """As tools do that carry their context into threads: one wait, and one thread that is busy."""

    class Carrying(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(lambda: fn(*args, **kwargs))

    with Carrying(2) as pool:
        resolve_later(pool)
        (wait,) = waits(request_)
        assert [one.label for one in request_.spans if one.stage is Stage.CODE] == ["resolve"]
        # What is handed over without an event loop is whatever that class makes of it.
        pool.submit(resolve).result()
    assert waits(request_) == [wait] * 2


def test_an_executor_may_hide_its_attributes(request_: Trace, hooked_threads: None) -> None:
    class Hiding(ThreadPoolExecutor):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise RuntimeError("there is none")
            return super().__getattribute__(name)

    with Hiding(2) as pool:
        pool.submit(resolve).result()
    assert str(waits(request_)[0]).startswith(f"executor of {tracer.places.name(__file__)}:")


def test_an_executor_that_a_library_makes_has_no_name(request_: Trace, hooked_threads: None) -> None:
    namespace: dict[str, Any] = {"make": ThreadPoolExecutor}
    exec(compile("pool = make(1)", os.path.join(sysconfig.get_paths()["purelib"], "driver.py"), "exec"), namespace)
    with namespace["pool"] as pool:
        pool.submit(resolve).result()
    assert waits(request_) == ["executor"]
