"""What holds up everybody: callbacks that keep the event loop, and garbage collections.

Only asyncio's own loop can be watched callback by callback; uvloop's callbacks are C's.
"""

from __future__ import annotations

import asyncio.events
import gc
import time
from types import CodeType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.places import code_of
from tailcut.profile.tracing import Trace, current, now, tracer

BLOCKED_NS = 1_000_000
"""A callback that runs longer than this is worth naming."""

Handle = asyncio.events.Handle


def watch_loop() -> None:
    """Time every callback of asyncio's loop, and know which request it works for."""
    original: Any = Handle._run
    thread_time_ns = time.thread_time_ns
    tracer.times_loop = True

    def run(self: Any) -> None:
        span = self._context.get(current)
        tracer.entered = None
        cpu_ns = thread_time_ns() if span is not None else 0
        start_ns = now()
        try:
            original(self)
        finally:
            end_ns = now()
            # A request that began in this callback is known only after it.
            trace = span.trace if span is not None else tracer.entered
            if trace is not None:
                trace.cpu_ns += thread_time_ns() - (cpu_ns or trace.began_cpu_ns)
            if end_ns - start_ns > BLOCKED_NS:
                _blocked(self, trace, start_ns, end_ns)

    Handle._run = run  # type: ignore[method-assign]


def watch_collections() -> None:
    """Time every garbage collection; it stops all threads."""
    began_ns = 0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = now()
        else:
            tracer.moment(Stage.GC, began_ns, now(), f"generation {info['generation']}", "", -1)

    gc.callbacks.append(collected)


def _blocked(handle: Any, trace: Trace | None, start_ns: int, end_ns: int) -> None:
    label, place = _describe(handle._callback)
    if trace is not None and not place and trace.endpoint:
        label, _, place = trace.endpoint.rstrip(")").partition(" (")
    number = trace.number if trace is not None else -1
    tracer.moment(Stage.LOOP, start_ns, end_ns, label, place, number)


def _describe(callback: Any) -> tuple[str, str]:
    """Name a callback: a task by its innermost coroutine of the user, else by its outermost."""
    task = getattr(callback, "__self__", None)
    get_coro = getattr(task, "get_coro", None)
    if get_coro is None:
        label, place, users = tracer.places.describe(callback)
        return label, place if users else ""
    coroutine, code, found = get_coro(), None, None
    for _ in range(100):
        inner: CodeType | None = getattr(coroutine, "cr_code", None)
        if inner is None:
            break
        code = code or inner
        if tracer.places.is_user(inner.co_filename):
            frame = getattr(coroutine, "cr_frame", None)
            line = frame.f_lineno if frame is not None else inner.co_firstlineno
            found = (inner.co_qualname, f"{tracer.places.name(inner.co_filename)}:{line}")
        coroutine = getattr(coroutine, "cr_await", None)
    if found is not None:
        return found
    code = code or code_of(get_coro())
    return (code.co_qualname if code is not None else "task"), ""
