"""Work that a request hands to threads: the wait for a thread, what runs there, and the way back to the event loop.

A thread that runs a request's function is part of that request: its spans find the request by the context that goes
along. anyio copies it by itself; executors do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from types import FunctionType, MethodType, ModuleType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.clocks import SHORT_NS, now
from tailcut.profile.hooks.imports import Hook
from tailcut.profile.tracing import CODE, WAIT, Open, add_span, close_timed, current, open_timed, tracer

# A tuple: the members' hash is Python's, and is asked for in every request.
_INHERITED = (Stage.ENCODE, Stage.DECODE, Stage.FRAMEWORK)
_LOOP = Stage.LOOP
_PLAIN = (FunctionType, MethodType)


class _Handed:
    """A function on its way to a thread.

    Args:
        parent: the span that hands it over.
        pool: what is waited for.
        function: it, as given.
        arguments: those that say what it really is, where it only calls something.
    """

    __slots__ = ("_arguments", "_asked_ns", "_function", "_parent", "_pool", "ended_ns")

    def __init__(self, parent: Open, pool: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._parent = parent
        self._pool = pool
        self._function = function
        self._arguments = arguments
        self._asked_ns = now()
        self.ended_ns = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        parent = self._parent
        add_span(parent, WAIT, self._pool, self._asked_ns, now())
        label, place, users = tracer.places.describe(_meant(self._function, self._arguments))
        if not users and parent.stage in _INHERITED:
            return self._framework(label, place, args, kwargs)
        span = open_timed(parent, CODE, label, place)
        try:
            return self._function(*args, **kwargs)
        finally:
            close_timed(span)
            self.ended_ns = span.end_ns

    def _framework(self, label: str, place: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what the framework hands over to a thread for itself, validation for one: more of what it was doing."""
        parent, began_ns = self._parent, now()
        try:
            return self._function(*args, **kwargs)
        finally:
            self.ended_ns = end_ns = now()
            took_ns = end_ns - began_ns
            cpu_ns = took_ns if took_ns < SHORT_NS else -1
            add_span(parent, parent.stage, label, began_ns, end_ns, place, 0, cpu_ns)

    def returned(self) -> None:
        """Keep the time from the function's end to the event loop's taking its result."""
        if self.ended_ns:
            add_span(self._parent, _LOOP, "back from a thread", self.ended_ns, now())


def _meant(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a function that only calls another one is about: a context's run, the next item of a generator."""
    if isinstance(function, functools.partial):
        # FastAPI: _run_sync_endpoint(function=the endpoint, arguments=...)
        inner = function.keywords.get("function")
        if inner is not None and callable(inner) and not tracer.places.describe(function.func)[2]:
            return inner
        if isinstance(function.func, _PLAIN):
            return function.func
        arguments = (*function.args, *arguments)
        if not isinstance(getattr(function.func, "__self__", None), Context):
            return function.func if not hasattr(function.func, "func") else _meant(function.func, arguments)
        function = function.func
    if isinstance(getattr(function, "__self__", None), Context) and arguments:
        return _meant(arguments[0], arguments[1:])
    if arguments and hasattr(arguments[0], "gi_code"):
        return arguments[0]
    return function


def _hook_anyio(module: ModuleType) -> None:
    original = module.run_sync

    @functools.wraps(original)
    async def run_sync(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None:
            return await original(func, *args, **kwargs)
        handed = _Handed(parent, "thread pool", func, args)
        try:
            return await original(handed, *args, **kwargs)
        finally:
            handed.returned()

    module.run_sync = run_sync  # type: ignore[attr-defined]


def _hook_loop(module: ModuleType) -> None:
    original = module.BaseEventLoop.run_in_executor

    @functools.wraps(original)
    def run_in_executor(self: Any, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        parent = current.get()
        if parent is None or not (executor is None or isinstance(executor, ThreadPoolExecutor)):
            return original(self, executor, func, *args)
        handed = _Handed(parent, "executor", func, args)
        future = original(self, executor, functools.partial(copy_context().run, handed), *args)
        # Before whoever awaits it: callbacks are called in the order in which they were added.
        future.add_done_callback(lambda _: handed.returned())
        return future

    module.BaseEventLoop.run_in_executor = run_in_executor


def _hook_executor(module: ModuleType) -> None:
    original = module.ThreadPoolExecutor.submit

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or isinstance(_first(fn), _Handed):
            return original(self, fn, *args, **kwargs)
        handed = _Handed(parent, "executor", fn, args)
        return original(self, copy_context().run, handed, *args, **kwargs)

    module.ThreadPoolExecutor.submit = submit


def _first(function: Any) -> Any:
    return function.args[0] if isinstance(function, functools.partial) and function.args else None


HOOKS: dict[str, Hook] = {
    "anyio.to_thread": _hook_anyio,
    "asyncio.base_events": _hook_loop,
    "concurrent.futures.thread": _hook_executor,
}
