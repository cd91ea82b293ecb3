"""Locks, queues and the like that a request waits for. One that is free costs a call of Python more; only waiting makes
a span.

``threading.Lock`` is C's. Those that the user's own modules make are replaced by a class that tries without waiting
first; those of libraries stay as they are and show up in the samples.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import replaces
from tailcut.profiler.recording.tracing import LEAVES, current, open_timed, open_under, tracer
from tailcut.profiler.records import Stage

# A tuple: members of an enumeration hash in Python, and this is tested in every request.
_WAITS = (*LEAVES, Stage.WAIT, Stage.LOCK)


class _TracedLock:
    """A lock, or a reentrant one, whose waits are spans."""

    __slots__ = ("__weakref__", "_label", "_lock", "_try", "release")

    def __init__(self, lock: Any, label: str) -> None:
        self._lock = lock
        self._label = label
        self._try = lock.acquire
        self.release = lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._try(False):
            return True
        parent = current.get() if blocking else None
        if parent is None or parent.trace.over:
            return bool(self._lock.acquire(blocking, timeout))
        with open_timed(parent, Stage.LOCK, self._label, *tracer.places.spot(sys._getframe(1))):
            return bool(self._lock.acquire(blocking, timeout))

    def __enter__(self) -> bool:
        return self._try(False) or self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        return repr(self._lock)


def _replaced(original: Any, name: str) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        lock = original(*args, **kwargs)
        if not tracer.places.is_user(frame.f_code.co_filename):
            return lock
        place = f"{tracer.places.name(frame.f_code.co_filename)}:{frame.f_lineno}"
        return _TracedLock(lock, f"threading.{name} of {place}")

    if not isinstance(original, type):
        return functools.wraps(original)(make)

    # Where Lock is a class, code may ask isinstance(x, threading.Lock).
    class Made(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(getattr(instance, "_lock", instance), original)

    return Made(name, (), {})


def _hook_threading(module: ModuleType) -> None:
    for name in ("Lock", "RLock"):
        setattr(module, name, _replaced(getattr(module, name), name))
    module.Semaphore.acquire = module.Semaphore.__enter__ = _trying(module.Semaphore.acquire, "threading.Semaphore")
    module.Condition.wait = _waiting(module.Condition.wait, Stage.WAIT, "another thread")
    # As an executor does at the end of its ``with``.
    module.Thread.join = _waiting(module.Thread.join, Stage.WAIT, "another thread")


def _trying(function: Callable[..., Any], label: str) -> Any:
    """A semaphore's acquire: one that is free makes no span."""
    wait = _waiting(function, Stage.LOCK, label)

    @functools.wraps(function)
    def acquire(self: Any, blocking: bool = True, timeout: float | None = None) -> bool:
        if current.get() is None or not blocking or timeout == 0:
            return bool(function(self, blocking, timeout))
        return bool(function(self, False) or wait(self, True, timeout))

    return acquire


def _waiting(function: Callable[..., Any], stage: Stage, label: str) -> Any:
    @functools.wraps(function)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage in _WAITS or parent.trace.over:
            return function(self, *args, **kwargs)
        with open_timed(parent, stage, label, *tracer.places.spot(sys._getframe(1))):
            return function(self, *args, **kwargs)

    return traced


def _hook_asyncio(module: ModuleType) -> None:
    _await_in(module.Lock, "acquire", Stage.LOCK, "asyncio.Lock", lambda lock: not (lock._locked or lock._waiters))
    _await_in(module.Semaphore, "acquire", Stage.LOCK, "asyncio.Semaphore", lambda one: not one.locked())
    _await_in(module.Event, "wait", Stage.WAIT, "asyncio.Event", lambda one: one.is_set(), users_only=True)
    _await_in(module.Condition, "wait", Stage.WAIT, "asyncio.Condition", lambda _: False, users_only=True)


def _hook_queues(module: ModuleType) -> None:
    _await_in(module.Queue, "get", Stage.WAIT, "asyncio.Queue", lambda one: not one.empty(), users_only=True)


def _hook_anyio(module: ModuleType) -> None:
    _await_in(module.Lock, "acquire", Stage.LOCK, "anyio.Lock", lambda lock: not lock.locked())
    _await_in(module.Semaphore, "acquire", Stage.LOCK, "anyio.Semaphore", lambda one: one.value > 0)


def _await_in(
    owner: Any, name: str, stage: Stage, label: str, free: Callable[[Any], bool], *, users_only: bool = False
) -> None:
    """Replace ``owner.name`` by the same with a span around each call that has to wait.

    Args:
        owner: a class.
        name: of a coroutine function in it.
        stage, label: of the spans.
        free: whether it need not wait; then the call is the plain one, without a coroutine more.
        users_only: only what the user's own modules call.
    """
    original = getattr(owner, name)

    async def in_span(self: Any, args: Any, kwargs: Any, place: str | CodeType, at: int) -> Any:
        # Read here: the coroutine may be awaited in a task of its own.
        parent = current.get()
        if parent is None or parent.trace.over:
            return await original(self, *args, **kwargs)
        with open_under(parent, stage, label, place, at):
            return await original(self, *args, **kwargs)

    @replaces(owner, name)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage in _WAITS or parent.trace.over or free(self):
            return original(self, *args, **kwargs)
        frame = sys._getframe(1)
        if users_only and not tracer.places.is_user(frame.f_code.co_filename):
            return original(self, *args, **kwargs)
        return in_span(self, args, kwargs, *tracer.places.spot(frame))


HOOKS: dict[str, Hook] = {
    "threading": _hook_threading,
    "asyncio.locks": _hook_asyncio,
    "asyncio.queues": _hook_queues,
    "anyio._backends._asyncio": _hook_anyio,
}
