"""Work that a request leaves behind: background tasks of the framework's, and threads that it starts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.recording.background import Name, background, steps
from tailcut.profiler.recording.clocks import now, thread_time_ns
from tailcut.profiler.recording.tracing import Trace, current, tracer


def _hook_starlette(module: ModuleType) -> None:
    _hook_task(module.BackgroundTask, "func")


def _hook_litestar(module: ModuleType) -> None:
    _hook_task(module.BackgroundTask, "fn")


def _hook_task(owner: Any, attribute: str) -> None:
    """Let a background task be known by its function from where it begins: in the midst of the request's last step.

    What it hands to a thread is known there (``threads``).
    """
    original = owner.__call__

    @functools.wraps(original)
    async def call(self: Any) -> Any:
        span = current.get()
        in_thread = not getattr(self, "is_async", True)
        if in_thread or span is None or span.trace.over:
            return await original(self)
        label, place, _ = tracer.places.describe(getattr(self, attribute))
        trace = span.trace
        trace.background = (label, place)
        steps.open((label, place), trace.number)
        try:
            return await original(self)
        finally:
            steps.close()
            trace.background = None

    owner.__call__ = call


def _hook_threading(module: ModuleType) -> None:
    thread = module.Thread
    start, join = thread.start, thread.join

    @functools.wraps(start)
    def started(self: Any) -> None:
        span = current.get()
        if span is not None and (name := _users(self)) is not None:
            self.run = _counted(self, self.run, name, span.trace)
        start(self)

    @functools.wraps(join)
    def joined(self: Any, *args: Any, **kwargs: Any) -> None:
        self._tailcut_joined = True
        join(self, *args, **kwargs)

    thread.start, thread.join = started, joined


def _users(thread: Any) -> Name | None:
    """Name what a thread runs; None where that is a library's."""
    label, place, users = tracer.places.describe(getattr(thread, "_target", None) or type(thread).run)
    return (label, place) if users else None


def _counted(thread: Any, run: Callable[[], None], name: Name, trace: Trace) -> Callable[[], None]:
    """What a thread runs; where the request is answered before it ends, and waits for it nowhere, that is counted."""

    def counted() -> None:
        start_ns, cpu_ns = now(), thread_time_ns()
        try:
            run()
        finally:
            if trace.finished and not getattr(thread, "_tailcut_joined", False):
                background.add(trace.number, name, "thread", thread_time_ns() - cpu_ns, now() - start_ns)

    return counted


HOOKS: dict[str, Hook] = {
    "starlette.background": _hook_starlette,
    "litestar.background_tasks": _hook_litestar,
    "threading": _hook_threading,
}
