"""What holds up everybody: callbacks that keep the event loop, and garbage collections.

asyncio's own loop runs all of them through its handles. uvloop's handles are C's: there each callback is wrapped when
it is handed to the loop, so what its transports call by themselves (a protocol's ``data_received``) is not seen.
"""

from __future__ import annotations

import asyncio.events
import functools
import gc
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal

from tailcut.core.profiling.records import Stage
from tailcut.profile.clocks import now
from tailcut.profile.places import code_of
from tailcut.profile.tracing import Open, current, tracer

BLOCKED_NS = 1_000_000
"""A callback that runs longer than this is worth naming."""

Handle = asyncio.events.Handle


def watch_loop(kind: Literal["asyncio", "uvloop"]) -> None:
    """Time every callback of a kind of loop; of one that was long, find which request it worked for."""
    if kind == "uvloop":
        import uvloop

        _watch_calls(uvloop.Loop)
    else:
        _watch_handles()


def _watch_handles() -> None:
    original: Any = Handle._run

    def run(self: Any) -> None:
        # A callback that cancels its own handle, as whoever stops reading does, leaves nothing in it.
        callback = self._callback
        start_ns = now()
        original(self)
        end_ns = now()
        if end_ns - start_ns > BLOCKED_NS:
            _blocked(callback, self._context.get(current), start_ns, end_ns)

    Handle._run = run  # type: ignore[method-assign]


def _watch_calls(loop: Any) -> None:
    # Some hand on to others, which then find a callback that is timed already.
    for name in ("call_soon", "call_soon_threadsafe"):
        setattr(loop, name, _timing_now(getattr(loop, name)))
    for name in ("call_later", "call_at", "add_reader", "add_writer"):
        setattr(loop, name, _timing_then(getattr(loop, name)))


def _timing_now(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if callback is _timed:
            return original(self, callback, *args, context=context)
        return original(self, _timed, callback, *args, context=context)

    return call


def _timing_then(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, when: Any, callback: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        if callback is _timed:
            return original(self, when, callback, *args, **kwargs)
        return original(self, when, _timed, callback, *args, **kwargs)

    return call


def _timed(callback: Callable[..., object], *args: Any) -> None:
    start_ns = now()
    try:
        callback(*args)
    finally:
        end_ns = now()
        if end_ns - start_ns > BLOCKED_NS:
            _blocked(callback, current.get(), start_ns, end_ns)


def watch_collections() -> None:
    """Time every garbage collection; it stops all threads."""
    began_ns, labels = 0, [f"generation {number}" for number in range(len(gc.get_threshold()))]

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = now()
        else:
            tracer.moment(Stage.GC, began_ns, now(), labels[info["generation"]], "", -1)

    gc.callbacks.append(collected)


def _blocked(callback: Any, span: Open | None, start_ns: int, end_ns: int) -> None:
    # Before it was taken in and after it was finished, its context does not know the request.
    trace = span.trace if span is not None else tracer.touched if tracer.touched_ns >= start_ns else None
    label, place = _describe(callback)
    if trace is not None and not place and trace.endpoint is not None:
        label, place = trace.endpoint
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
