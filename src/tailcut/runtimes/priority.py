"""How a thread that loads a model gives way to those that serve: by its priority, and by short turns with the GIL."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 10
"""Priority of a loading thread. Not the lowest, 19: where it runs Python it holds the lock that the event loop waits
for, and on a busy machine a thread of the lowest priority holds it for long."""

_GIL_INTERVAL_S = 0.0005
"""How long a loading thread that runs Python may keep the event loop waiting; Python's own default is 5 ms."""

LOADERS: set[int] = set()
"""Threads, by ``threading.get_ident()``, that load and may be taken aside: see ``aside``. Empty nearly always, so that
who runs batches looks here first."""


@contextmanager
def low_priority() -> Iterator[None]:
    """Let this thread give way to all others of the process while it runs the block.

    Threads inherit a priority from the thread that starts them, so those that a runtime starts inside are put back
    at the end. Where that is not permitted (nobody may raise a priority again without CAP_SYS_NICE or RLIMIT_NICE)
    this thread keeps its own: a pool that stayed slow for good would be worse than a disturbance of seconds. See
    ``lower_priority`` for where no pool is started.
    """
    before = _threads()
    usual = _priority()
    restores = _may_raise()
    if restores:
        lower_priority()
        LOADERS.add(threading.get_ident())
    try:
        with short_turns():
            yield
    finally:
        if restores:
            LOADERS.discard(threading.get_ident())
            for thread in _threads() - before | {threading.get_native_id()}:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, thread, usual)


def aside(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do work without the GIL; where this thread is one of ``LOADERS``, only while nobody else wants the processor.

    For native code that runs for milliseconds and holds the GIL for next to none of them: Linux's SCHED_IDLE, under
    which a thread never takes the turn of one that serves, as one of low priority does now and then. Three kinds of
    reloads in turns (MiniLM INT8 at half of capacity on one core, 25 of each): requests that came meanwhile had 0.96
    (0.86 to 1.07) of the p99 before with it, 1.26 (1.10 to 1.36) without, 0.99 (0.85 to 1.30) where none was reloaded.
    With the GIL such a thread could keep the event loop waiting for others who compute, so that the rest of the loading
    runs under ``low_priority`` alone. Threads that are started inside inherit it, and are put back.
    """
    if threading.get_ident() not in LOADERS:
        return work(*args, **options)
    me, before = threading.get_native_id(), _threads()
    usual = os.sched_getscheduler(me)
    _schedule({me}, os.SCHED_IDLE)
    try:
        return work(*args, **options)
    finally:
        _schedule({me}, usual)
        _schedule(_threads() - before, usual)


def _schedule(threads: set[int], policy: int) -> None:
    for thread in threads:
        with suppress(OSError):  # it has ended
            os.sched_setscheduler(thread, policy, os.sched_param(0))


@contextmanager
def short_turns() -> Iterator[None]:
    """Let no thread hold the GIL for long while the block runs; blocks may overlap, the last one puts it back."""
    with _TURNS.lock:
        if not _TURNS.blocks:
            _TURNS.usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_TURNS.usual_s, _GIL_INTERVAL_S))
        _TURNS.blocks += 1
    try:
        yield
    finally:
        with _TURNS.lock:
            _TURNS.blocks -= 1
            if not _TURNS.blocks:
                sys.setswitchinterval(_TURNS.usual_s)


class _Turns:
    """The process has one interval, so that this is the process's too."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        self.usual_s = 0.0


_TURNS = _Turns()


def is_loading() -> bool:
    """Whether something is being opened in the background."""
    return _TURNS.blocks > 0


def lower_priority() -> None:
    """Let this thread, and those that it starts from now on, give way to all others of the process; Linux only."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICENESS, _priority()))


def _priority() -> int:
    # On Linux PRIO_PROCESS with a thread's id means that thread alone.
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


def _may_raise() -> bool:
    """Try in a thread that ends afterwards: where it is not permitted, what was tried cannot be taken back."""
    permitted = []

    def trial() -> None:
        me, usual = threading.get_native_id(), _priority()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, usual + 1)
            os.setpriority(os.PRIO_PROCESS, me, usual)
            permitted.append(True)

    if sys.platform == "linux":
        thread = threading.Thread(target=trial, name="tailcut-trial", daemon=True)
        thread.start()
        thread.join()
    return bool(permitted)


def _threads() -> set[int]:
    with suppress(OSError):
        return {int(name) for name in os.listdir("/proc/self/task")}
    return set()
