"""Locks that a request waits for. One that is free costs one call more than before; only waiting makes a span.

``threading.Lock`` is C's. Those that the user's own modules make are replaced by a class that tries without waiting
first; those of libraries stay as they are and show up in the samples.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.hooks.imports import Hook
from tailcut.profile.tracing import LEAVES, close_span, close_timed, current, open_timed, open_under, tracer

# A tuple: the members' hash is Python's, and is asked for in every request.
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
        if parent is None:
            return bool(self._lock.acquire(blocking, timeout))
        place, at = tracer.places.spot(sys._getframe(1))
        span = open_timed(parent, Stage.LOCK, self._label, place, at)
        try:
            return bool(self._lock.acquire(blocking, timeout))
        finally:
            close_timed(span)

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
    module.Semaphore.acquire = _waiting(module.Semaphore.acquire, Stage.LOCK, "threading.Semaphore")
    module.Condition.wait = _waiting(module.Condition.wait, Stage.WAIT, "another thread")


def _waiting(function: Callable[..., Any], stage: Stage, label: str) -> Any:
    @functools.wraps(function)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage in _WAITS:
            return function(self, *args, **kwargs)
        place, at = tracer.places.spot(sys._getframe(1))
        span = open_timed(parent, stage, label, place, at)
        try:
            return function(self, *args, **kwargs)
        finally:
            close_timed(span)

    return traced


def _hook_asyncio(module: ModuleType) -> None:
    for name in ("Lock", "Semaphore"):
        owner = getattr(module, name)
        owner.acquire = _awaiting(owner.acquire, Stage.LOCK, f"asyncio.{name}", users_only=False)
    for name in ("Event", "Condition"):
        owner = getattr(module, name)
        owner.wait = _awaiting(owner.wait, Stage.WAIT, f"asyncio.{name}", users_only=True)


def _hook_queues(module: ModuleType) -> None:
    module.Queue.get = _awaiting(module.Queue.get, Stage.WAIT, "asyncio.Queue", users_only=True)


def _hook_anyio(module: ModuleType) -> None:
    for name in ("Lock", "Semaphore"):
        owner = getattr(module, name)
        owner.acquire = _awaiting(owner.acquire, Stage.LOCK, f"anyio.{name}", users_only=False)


def _awaiting(function: Callable[..., Any], stage: Stage, label: str, *, users_only: bool) -> Any:
    @functools.wraps(function)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        frame = sys._getframe(1)
        if parent is None or parent.stage in _WAITS:
            return await function(self, *args, **kwargs)
        if users_only and not tracer.places.is_user(frame.f_code.co_filename):
            return await function(self, *args, **kwargs)
        place, at = tracer.places.spot(frame)
        span = open_under(parent, stage, label, place, at)
        try:
            return await function(self, *args, **kwargs)
        finally:
            close_span(span)

    return traced


HOOKS: dict[str, Hook] = {
    "threading": _hook_threading,
    "asyncio.locks": _hook_asyncio,
    "asyncio.queues": _hook_queues,
    "anyio._backends._asyncio": _hook_anyio,
}
