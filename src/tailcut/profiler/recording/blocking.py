"""What holds up all requests: callbacks that keep the event loop, and garbage collections.

asyncio's own loop runs all of them through its handles. uvloop's handles are C's: there each callback is wrapped when
it is handed to the loop, and so is what transports hand to the protocols that connections and servers are made with.
Not seen there: what they call once in a connection's life, protocols that take another's place, those of datagrams and
those that have slots, and signal handlers.
"""

from __future__ import annotations

import asyncio.events
import functools
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any, Literal, cast

import msgspec

from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.places import code_of
from tailcut.profiler.recording.tracing import OpenSpan, Trace, current, tracer
from tailcut.profiler.records import Stage

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
        # A callback that cancels its own handle, as stopping to read does, clears it.
        callback, context = self._callback, self._context
        start_ns = now()
        original(self)
        end_ns = now()
        if end_ns - start_ns > BLOCKED_NS:
            _blocked(callback, context.get(current), start_ns, end_ns)

    Handle._run = run  # type: ignore[method-assign]


def _watch_calls(loop: Any) -> None:
    for name in ("call_soon", "call_soon_threadsafe"):
        setattr(loop, name, _timing_now(getattr(loop, name)))
    for name in ("call_later", "call_at", "add_reader", "add_writer"):
        setattr(loop, name, _timing(getattr(loop, name)))
    for name in ("create_connection", "create_unix_connection", "create_server", "create_unix_server"):
        setattr(loop, name, _timing_protocols(getattr(loop, name)))


def _time(callback: Callable[..., object], /, *args: Any, **kwargs: Any) -> Any:
    start_ns = now()
    try:
        return callback(*args, **kwargs)
    finally:
        end_ns = now()
        if end_ns - start_ns > BLOCKED_NS:
            _blocked(callback, current.get(), start_ns, end_ns)


class _Timed(functools.partial):  # type: ignore[type-arg]
    """``_Timed(_time, callback)``: a callback that is timed. In what the loop says of it, it is the callback itself.

    A ``partial``, because making and calling one runs no Python: there are some for each step of each request.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.args[0], name)

    def __repr__(self) -> str:
        return repr(self.args[0])


def _timing_now(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what every step of every task goes through."""

    @functools.wraps(original)
    def call(self: Any, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        # Some of the loop's methods hand on to others, which then find a callback that is timed already.
        if type(callback) is not _Timed:
            callback = _Timed(_time, callback)
        return original(self, callback, *args, context=context)

    return call


def _timing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method whose second argument is the callback."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            if type(args[1]) is not _Timed:
                args = (args[0], _Timed(_time, args[1]), *args[2:])
        elif "callback" in kwargs:
            kwargs["callback"] = _Timed(_time, kwargs["callback"])
        return original(self, *args, **kwargs)

    return call


def _timing_protocols(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what makes transports: they hand what they read to a protocol by themselves."""

    @functools.wraps(original)
    def call(self: Any, protocol_factory: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, lambda: _reading(protocol_factory()), *args, **kwargs)

    return call


def _reading(protocol: Any) -> Any:
    for name in ("data_received", "buffer_updated"):
        method = getattr(protocol, name, None)
        # One that serves several connections, or connects again, is timed already.
        if method is not None and type(method) is not _Timed:
            with suppress(AttributeError, TypeError):  # one with slots, or of C, keeps its own
                setattr(protocol, name, _Timed(_time, _loose(method)))
    return protocol


def _loose(method: Any) -> Callable[..., Any]:
    """The method with a weak reference to its object, which is freed as it would be without this hook."""
    function = getattr(method, "__func__", None)
    if function is None:
        return cast(Callable[..., Any], method)
    found = weakref.ref(method.__self__)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(found(), *args, **kwargs)

    return call


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


def settle(trace: Trace) -> None:
    """Once a request is answered: what its tasks did till then that still run was no work that it waited for."""
    for task, place, moment in trace.steps:
        if task.done() or place >= len(tracer.moments) or tracer.moments[place] is not moment:
            continue
        tracer.moments[place] = msgspec.structs.replace(moment, request=-1)
    trace.steps = []


def _blocked(callback: Any, span: OpenSpan | None, start_ns: int, end_ns: int) -> None:
    # Before it was taken in and after it was finished, its context does not know the request.
    known = span is not None and not span.trace.over  # a connection keeps the context of the request that made it
    trace: Trace | None = (
        span.trace if span is not None and known else tracer.touched if tracer.touched_ns >= start_ns else None
    )
    label, place = _describe(callback)
    if trace is not None and not place and trace.endpoint is not None:
        label, place = trace.endpoint
    number = trace.number if trace is not None else -1
    tracer.moment(Stage.LOOP, start_ns, end_ns, label, place, number)
    task = getattr(callback, "__self__", None)
    if span is not None and known and span.trace.task != id(task) and hasattr(task, "get_coro"):
        span.trace.steps.append((task, len(tracer.moments) - 1, tracer.moments[-1]))


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
