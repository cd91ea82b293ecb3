"""Work that a request hands to worker processes: one wait, from handing it over to its result. What runs is not seen.

Both pools of the standard library: ``concurrent.futures.ProcessPoolExecutor`` and ``multiprocessing.Pool``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.threads import label_of, name_executor
from tailcut.profiler.hooks.wrapping import replaces
from tailcut.profiler.recording.clocks import ThreadClock, now, of_thread
from tailcut.profiler.recording.tracing import WAIT, add_span, current, tracer
from tailcut.profiler.records import PROCESS_POOL

Ended = Callable[[Any], None]


def _waiting(pool: Any, frame: FrameType) -> Ended:
    """Begin the wait for a call that is about to be handed over; what is returned ends it, in whichever thread."""
    parent = current.get()
    if parent is None or parent.trace.over:
        return lambda _: None
    # Between the user's line and this one there may be hooks of the event loop's.
    label, spot, asked_ns = label_of(pool, PROCESS_POOL), tracer.places.spot(frame, through=True), now()

    def ended(_: Any) -> None:
        if not parent.trace.over and parent.trace.left_ns < 0:  # else the reply went out without waiting for it
            add_span(parent, WAIT, label, asked_ns, now(), *spot)

    return ended


def _hook_executor(module: ModuleType) -> None:
    os.register_at_fork(after_in_child=_forked)
    pool = module.ProcessPoolExecutor
    submit, make = pool.submit, pool.__init__

    @replaces(pool, "submit")
    def submitted(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        ended = _waiting(self, sys._getframe(1))
        future = submit(self, fn, *args, **kwargs)
        future.add_done_callback(ended)
        return future

    @replaces(pool, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        name_executor(self, sys._getframe(1), PROCESS_POOL)


def _hook_pool(module: ModuleType) -> None:
    os.register_at_fork(after_in_child=_forked)
    pool = module.Pool
    make, apply_async, map_async = pool.__init__, pool.apply_async, pool._map_async

    @replaces(pool, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "multiprocessing.context":
            frame = frame.f_back
        if frame is not None:
            name_executor(self, frame, PROCESS_POOL)

    @replaces(pool, "apply_async")
    def applied(
        self: Any, func: Any, args: Any = (), kwds: Any = None, callback: Any = None, error_callback: Any = None
    ) -> Any:
        calls = _first(_waiting(self, sys._getframe(1)), callback, error_callback)
        return apply_async(self, func, args, {} if kwds is None else kwds, *calls)

    @replaces(pool, "_map_async")
    def mapped(
        self: Any, func: Any, iterable: Any, mapper: Any, chunksize: Any = None, callback: Any = None,
        error_callback: Any = None,
    ) -> Any:  # fmt: skip
        calls = _first(_waiting(self, sys._getframe(1)), callback, error_callback)
        return map_async(self, func, iterable, mapper, chunksize, *calls)


def _first(ended: Ended, *callbacks: Callable[[Any], object] | None) -> list[Ended]:
    """Let the wait end before each callback of the user's."""

    def calls(callback: Callable[[Any], object] | None, result: Any) -> None:
        ended(result)
        if callback is not None:
            callback(result)

    return [functools.partial(calls, one) for one in callbacks]


def _forked() -> None:
    """In a worker: the clock is that of the thread that forked, and so is the request that it worked for."""
    of_thread.clock = ThreadClock()
    current.set(None)


HOOKS: dict[str, Hook] = {
    "concurrent.futures.process": _hook_executor,
    "multiprocessing.pool": _hook_pool,
}
