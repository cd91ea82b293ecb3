"""Work that a request hands to worker processes: the wait for one, what runs there, and the way back.

Both pools of the standard library: ``concurrent.futures.ProcessPoolExecutor`` and ``multiprocessing.Pool``. A call is
wrapped (``pool_worker.Timed``) so that its times come back with its result; the wrapping is taken off before the
service's code sees the result.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import CodeType, FrameType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.recording.background import background
from tailcut.profiler.recording.clocks import ThreadClock, new_number, now, of_thread
from tailcut.profiler.recording.executors import executors, label_of
from tailcut.profiler.recording.model_libraries import libraries
from tailcut.profiler.recording.pool_worker import Ran, Timed
from tailcut.profiler.recording.spans import spans_of
from tailcut.profiler.recording.tracing import CODE, WAIT, Open, Trace, add_span, current, tracer
from tailcut.profiler.records import BACK_FROM_PROCESS, PROCESS_POOL, Span, Stage

_LOOKS = range(60)
_MOST_CALLS = 10_000


class _WorkerCall:
    """A call on its way to a worker.

    Args:
        parent: the span that hands it over.
        pool: label of the wait.
        name: label and place of the function.
        spot: the line that hands it over: its code, and the instruction in it.
    """

    __slots__ = ("asked_ns", "ended_ns", "name", "parent", "pool", "spot")

    def __init__(self, parent: Open, pool: str, name: tuple[str, str], spot: tuple[str | CodeType, int]) -> None:
        self.parent = parent
        self.pool = pool
        self.name = name
        self.spot = spot
        self.asked_ns = now()
        self.ended_ns = 0

    def ran(self, ran: Ran) -> None:
        """Keep the wait for the worker, and what it did."""
        self.ended_ns = ran.end_ns
        parent, place = self.parent, self.name[1] or self.spot[0]
        if parent.trace.finished:
            background.add(parent.trace.number, self.name, "process", ran.cpu_ns, ran.end_ns - ran.start_ns)
            return
        thread = _thread_of(ran.pid, 0)
        add_span(parent, WAIT, self.pool, self.asked_ns, ran.start_ns, *self.spot).thread = thread
        at = self.spot[1] if not self.name[1] else 0
        span = add_span(parent, CODE, self.name[0], ran.start_ns, ran.end_ns, place, at, ran.cpu_ns)
        span.thread = thread
        if ran.delay_ns >= 0:
            span.before, span.after = b"0 0 0", b"0 %d 0" % ran.delay_ns
        self._inside(ran, span)

    def _inside(self, ran: Ran, call: Open) -> None:
        for label, library in ran.libraries.items():
            libraries.tell(label, library)
        known: list[Open] = []
        for one in ran.spans:
            parent = known[one.parent] if one.parent >= 0 else call
            place = one.place or self.spot[0]
            at = 0 if one.place else self.spot[1]
            span = add_span(parent, one.stage, one.label, one.start_ns, one.end_ns, place, at, one.cpu_ns)
            span.thread, span.more, span.asked = _thread_of(ran.pid, one.thread), one.more, one.asked
            known.append(span)

    def returned(self, _: Any = None) -> None:
        """Keep the time from the function's end to the event loop's taking its result."""
        if self.ended_ns:
            add_span(self.parent, Stage.LOOP, BACK_FROM_PROCESS, self.ended_ns, now())


class _Latest(threading.local):
    """The call that this thread handed over last."""

    call: _WorkerCall | None = None


_latest = _Latest()
_calls: dict[int, _WorkerCall] = {}
_tokens = count(1)
_threads: dict[tuple[int, int], int] = {}


def returning(future: Any) -> Any:
    """Let a future of the event loop say when it took a worker's result, where it is one of a call that is timed."""
    call, _latest.call = _latest.call, None
    if call is not None:
        future.add_done_callback(call.returned)
    return future


def keep_spans() -> Callable[[], tuple[tuple[Span, ...], dict[str, str]]]:
    """Begin, in a worker, to keep the spans of a call.

    Returns:
        what ends that, and hands out the spans and what their models run on.
    """
    trace = Trace(-1, "", "", 0, [])
    current.set(Open(trace, None, CODE, "", "", 0, of_thread.clock.number, now()))

    def kept() -> tuple[tuple[Span, ...], dict[str, str]]:
        trace.over = True
        current.set(None)
        return spans_of(trace, tracer.places), libraries.found()

    return kept


def _thread_of(pid: int, thread: int) -> int:
    """Number a worker's threads beside those of the service."""
    if (pid, thread) not in _threads:
        _threads[pid, thread] = new_number()
    return _threads[pid, thread]


def _begin(pool: Any, function: Any, frame: FrameType) -> tuple[int, _WorkerCall | None]:
    """Know a call that is about to be handed over; None where no request that is traced does that."""
    parent = current.get()
    if parent is None or parent.trace.over or len(_calls) >= _MOST_CALLS:
        return 0, None
    label, place, users = tracer.places.describe(function)
    call = _WorkerCall(parent, label_of(pool, PROCESS_POOL), (label, place if users else ""), _spot(frame))
    token = next(_tokens)
    _calls[token] = call
    return token, call


def _spot(frame: FrameType | None) -> tuple[str | CodeType, int]:
    """Find the user's line that hands over: below it there may be hooks of the event loop's."""
    for _ in _LOOKS:
        if frame is None:
            break
        if tracer.places.is_user(frame.f_code.co_filename):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return "", 0


def _taken_off(result: Any) -> Any:
    """What the worker's function returned; its times go to the request."""
    if type(result) is not Ran:
        return result
    call = _calls.get(result.token)
    if call is not None:
        call.ran(result)
    return result.value


def _meant(function: Any) -> Any:
    """The user's function in what ``Executor.map`` hands over: a partial of a helper."""
    if type(function) is functools.partial and function.args and callable(function.args[0]):
        return function.args[0] if function.func.__module__ == "concurrent.futures.process" else function.func
    return function


def _hook_executor(module: ModuleType) -> None:
    os.register_at_fork(after_in_child=_forked)
    pool = module.ProcessPoolExecutor
    submit, make = pool.submit, pool.__init__

    @functools.wraps(submit)
    def submitted(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        token, call = _begin(self, _meant(fn), sys._getframe(1))
        if call is None:
            return submit(self, fn, *args, **kwargs)
        _latest.call = call
        try:
            future = submit(self, Timed(fn, token), *args, **kwargs)
        except BaseException:
            _latest.call = None
            del _calls[token]
            raise
        future.add_done_callback(lambda _: _calls.pop(token, None))
        return future

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        executors.made(self, sys._getframe(1), PROCESS_POOL)

    pool.submit, pool.__init__ = submitted, init


def _hook_future(module: ModuleType) -> None:
    """Unwrap each result when it arrives, before the application reads it."""
    original = module.Future.set_result

    @functools.wraps(original)
    def set_result(self: Any, result: Any) -> None:
        original(self, _taken_off(result))

    module.Future.set_result = set_result


def _hook_pool(module: ModuleType) -> None:
    os.register_at_fork(after_in_child=_forked)
    make = module.Pool.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "multiprocessing.context":
            frame = frame.f_back
        if frame is not None:
            executors.made(self, frame, PROCESS_POOL)

    module.Pool.__init__ = init
    _hook_asking(module.Pool)
    _hook_results(module)


def _hook_asking(pool: Any) -> None:
    apply_async, map_async = pool.apply_async, pool._map_async

    @functools.wraps(apply_async)
    def applied(self: Any, func: Any, args: Any = (), kwds: Any = None, *more: Any, **others: Any) -> Any:
        token, call = _begin(self, func, sys._getframe(1))
        given = func if call is None else Timed(func, token)
        result = apply_async(self, given, args, {} if kwds is None else kwds, *more, **others)
        result._tailcut = token
        return result

    @functools.wraps(map_async)
    def mapped(self: Any, func: Any, iterable: Any, mapper: Any, *more: Any, **others: Any) -> Any:
        token, call = _begin(self, func, sys._getframe(1))
        result = map_async(self, func, iterable, mapper if call is None else Timed(mapper, token), *more, **others)
        result._tailcut = token
        return result

    pool.apply_async, pool._map_async = applied, mapped


def _hook_results(module: ModuleType) -> None:
    for owner in (module.ApplyResult, module.MapResult):
        _hook_setting(owner)


def _hook_setting(owner: Any) -> None:
    original = owner.__dict__["_set"]

    @functools.wraps(original)
    def set_(self: Any, i: int, obj: Any) -> None:
        success, result = obj
        original(self, i, (success, _taken_off(result)))
        if self.ready():
            _calls.pop(getattr(self, "_tailcut", 0), None)

    owner._set = set_


def _forked() -> None:
    """In a worker: the clock is that of the thread that forked, and so is the request that it worked for."""
    of_thread.clock = ThreadClock()
    current.set(None)


HOOKS: dict[str, Hook] = {
    "concurrent.futures._base": _hook_future,
    "concurrent.futures.process": _hook_executor,
    "multiprocessing.pool": _hook_pool,
}
