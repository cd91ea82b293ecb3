"""Work that a request hands to threads: the wait for a thread, what runs there, and the way back to the event loop.

A thread that runs a request's function is part of that request: its spans find the request by the context variable,
which is set where the function is called and put back when it is over. The thread's own context stays: what its
initializer set (a context variable, the precision of decimals) is what the user's function would find without us.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from types import BuiltinMethodType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import replaces
from tailcut.profiler.recording.clocks import SHORT_NS, now
from tailcut.profiler.recording.tracing import (
    LEAVES,
    WAIT,
    OpenSpan,
    add_span,
    close_timed,
    current,
    open_handed,
    tracer,
    working_for,
)
from tailcut.profiler.records import EXECUTOR, Stage

# Tuples: members of an enumeration hash in Python, and these are tested in every request.
_INHERITED = (Stage.ENCODE, Stage.DECODE, Stage.FRAMEWORK)
_CALLS = tuple(LEAVES)
_LOOP = Stage.LOOP
_PLAIN = (FunctionType, MethodType)


class _Handed:
    """A function on its way to a thread.

    Args:
        parent: the span that hands it over.
        pool: what is waited for.
        function: it, as given.
        arguments: by which it is named where it only calls another function.
    """

    __slots__ = ("_asked_ns", "_parent", "_pool", "arguments", "ended_ns", "function")

    def __init__(self, parent: OpenSpan, pool: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._parent = parent
        self._pool = pool
        self.function = function
        self.arguments = arguments
        self._asked_ns = now()
        self.ended_ns = 0

    def __getattr__(self, name: str) -> Any:
        """What an executor of the user's asks the function for, its name for example."""
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        parent = self._parent
        label, place, users = tracer.places.describe(_meant(self.function, self.arguments))
        if not users and parent.stage in _INHERITED:
            return self._framework(label, place, args, kwargs)
        with working_for(parent):
            # What a driver hands over to a thread, a name's resolution for one, is part of its call.
            if not users and parent.stage in _CALLS:
                return self.function(*args, **kwargs)
            span = open_handed(parent, self._pool, self._asked_ns, label, place)
            try:
                return self.function(*args, **kwargs)
            finally:
                close_timed(span)
                self.ended_ns = span.end_ns

    def _framework(self, label: str, place: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the framework's own work in a thread, such as validation: it counts in the stage that hands it over."""
        parent, began_ns = self._parent, now()
        add_span(parent, WAIT, self._pool, self._asked_ns, began_ns)
        try:
            with working_for(parent):
                return self.function(*args, **kwargs)
        finally:
            self.ended_ns = end_ns = now()
            took_ns = end_ns - began_ns
            cpu_ns = took_ns if took_ns < SHORT_NS else -1
            add_span(parent, parent.stage, label, began_ns, end_ns, place, 0, cpu_ns)

    def waits_for(self, pool: str) -> None:
        """Set what is waited for, once the executor is known."""
        self._pool = pool

    def returned(self, _: Any = None) -> None:
        """Keep the time from the function's end to the event loop's taking its result."""
        if self.ended_ns:
            add_span(self._parent, _LOOP, "back from a thread", self.ended_ns, now())


class _UnderWay(threading.local):
    """What the event loop is about to hand over to an executor, whatever the executor's own class puts around it."""

    handed: _Handed | None = None


_under_way = _UnderWay()


def _inside(handed: _Handed, function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Put what is handed over where it is really called: what a context runs, inside of that context.

    ``asyncio.to_thread`` hands over a copy of its context, which knows the span that hands over and not the thread's.

    Returns:
        what to call in place of the function, with its arguments.
    """
    found = _unpack(function, args)
    if found is None:
        handed.function, handed.arguments = function, args
        return handed, args
    run, inside = found
    inner, rest = _inside(handed, inside[0], inside[1:])
    return run, (inner, *rest)


def _is_plain(function: Any) -> bool:
    return type(function.func if type(function) is functools.partial else function) in _PLAIN


def _find_handed(function: Any, args: tuple[Any, ...]) -> _Handed | None:
    found = _unpack(function, args)
    if found is None:
        return function if type(function) is _Handed else None
    return _find_handed(found[1][0], found[1][1:])


def _unpack(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """Split a context's ``run`` from the function that it calls; None where it is something else."""
    kind = type(function)
    run = function.func if kind is functools.partial else function
    if type(run) is not BuiltinMethodType or type(run.__self__) is not Context or run.__name__ != "run":
        return None
    if kind is functools.partial:
        args = (*function.args, *args)
        run = functools.partial(run, **function.keywords) if function.keywords else run
    return (run, args) if args else None


def _meant(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a function that only calls another is about: FastAPI's endpoint, a generator that it asks for an item."""
    if type(function) is functools.partial:
        # FastAPI: _run_sync_endpoint(function=the endpoint, arguments=...)
        inner = function.keywords.get("function")
        if inner is not None and callable(inner) and not tracer.places.describe(function.func)[2]:
            return inner
        if type(function.func) in _PLAIN:
            return function.func
        return _meant(function.func, (*function.args, *arguments))
    # By type: an object of the user's may answer to any attribute.
    if arguments and type(arguments[0]) is GeneratorType:
        return arguments[0]
    return function


class _Limiters:
    """Limiters other than the thread pool's own: a call that finds one full waits for those inside.

    FastAPI makes one for each generator's end, which is never full.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._asked: dict[int, int] = {}

    def enter(self, limiter: Any) -> str:
        """Begin a call; return what it waits for."""
        asked = self._asked.get(id(limiter), 0)
        self._asked[id(limiter)] = asked + 1
        # A limiter does not yet count those that asked in the same moment.
        if limiter.available_tokens > 0 and asked < limiter.total_tokens:
            return "thread pool"
        return "thread pool" if limiter is self._module.current_default_thread_limiter() else "anyio.CapacityLimiter"

    def leave(self, limiter: Any) -> None:
        """End a call."""
        left = self._asked.pop(id(limiter), 1) - 1
        if left > 0:
            self._asked[id(limiter)] = left


def _hook_anyio(module: ModuleType) -> None:
    original = module.run_sync
    limiters = _Limiters(module)

    # A coroutine even where there is no span: whose work it is, is known where it runs, which may be a task of its own.
    @replaces(module, "run_sync")
    async def run_sync(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over:
            return await original(func, *args, **kwargs)
        limiter = kwargs.get("limiter")
        handed = _Handed(parent, "thread pool" if limiter is None else limiters.enter(limiter), func, args)
        call, args = (handed, args) if _is_plain(func) else _inside(handed, func, args)
        try:
            return await original(call, *args, **kwargs)
        finally:
            handed.returned()
            if limiter is not None:
                limiters.leave(limiter)


def _hook_asyncio(module: ModuleType) -> None:
    _hook_loop(module.BaseEventLoop)


def _hook_uvloop(module: ModuleType) -> None:
    _hook_loop(module.Loop)


def _hook_loop(loop: Any) -> None:
    original = loop.run_in_executor

    @replaces(loop, "run_in_executor")
    def run_in_executor(self: Any, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over or not (executor is None or isinstance(executor, ThreadPoolExecutor)):
            return original(self, executor, func, *args)
        # Which one it is, ``submit`` says: here it may not be made yet.
        handed = _Handed(parent, EXECUTOR, func, args)
        call, args = (handed, args) if _is_plain(func) else _inside(handed, func, args)
        _under_way.handed = handed
        try:
            future = original(self, executor, call, *args)
        finally:
            _under_way.handed = None
        # Added first: callbacks run in the order in which they were added, and the awaiting task's comes later.
        future.add_done_callback(handed.returned)
        return future


_LABEL = "_tailcut_label"
_ASYNCIO = "asyncio"
"""What the threads' names begin with of the executor that asyncio's loop makes for itself."""


def name_executor(executor: Any, maker: FrameType, kind: str = EXECUTOR) -> None:
    """Name one that was made. What a library makes stays without a name: it may make as many as it likes.

    Args:
        executor: of threads or processes.
        maker: what made it.
        kind: what waits for it are called, but for the place.
    """
    if tracer.places.is_user(maker.f_code.co_filename):
        label = f"{kind} of {tracer.places.name(maker.f_code.co_filename)}:{maker.f_lineno}"
    # uvloop is C's and has no frame: its executor seems to be made by the hook of ``run_in_executor``.
    elif getattr(executor, "_thread_name_prefix", "") == _ASYNCIO or maker.f_code.co_filename == __file__:
        label = f"{kind} of asyncio"
    else:
        return
    # A class of the user's may have an own way of setting attributes, and of asking for them.
    object.__setattr__(executor, _LABEL, label)


def label_of(executor: Any, kind: str = EXECUTOR) -> str:
    """What a wait for one of its threads or processes is called; of one without a name, ``kind``."""
    try:
        return str(object.__getattribute__(executor, _LABEL))
    except AttributeError:
        return kind


def _hook_executor(module: ModuleType) -> None:
    pool = module.ThreadPoolExecutor
    original, make = pool.submit, pool.__init__

    @replaces(pool, "submit")
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over:
            return original(self, fn, *args, **kwargs)
        label = label_of(self)
        handed, _under_way.handed = _under_way.handed, None
        if handed is None and _is_plain(fn):
            return original(self, _Handed(parent, label, fn, args), *args, **kwargs)
        if handed is not None or (handed := _find_handed(fn, args)) is not None:
            handed.waits_for(label)
            return original(self, fn, *args, **kwargs)
        call, args = _inside(_Handed(parent, label, fn, args), fn, args)
        return original(self, call, *args, **kwargs)

    @replaces(pool, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        name_executor(self, sys._getframe(1))


HOOKS: dict[str, Hook] = {
    "anyio.to_thread": _hook_anyio,
    "asyncio.base_events": _hook_asyncio,
    "concurrent.futures.thread": _hook_executor,
    "uvloop": _hook_uvloop,
}
