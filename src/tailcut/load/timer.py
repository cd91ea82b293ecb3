"""Wake the event loop at an exact time.

Event loops round timers to a millisecond, which would show up as send lag. Linux's timerfd wakes within tens of
microseconds and costs no spinning; elsewhere the loop's own timer is used and the lag report tells the difference.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o2004000
_TFD_TIMER_ABSTIME = 1


class Timer(Protocol):
    """Calls back once, at or after a time of ``time.monotonic_ns``."""

    def arm(self, at_ns: int) -> None:
        """Set the time of the next call; replaces an earlier one."""
        ...

    def close(self) -> None:
        """Stop and free the timer."""
        ...


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_int64), ("tv_nsec", ctypes.c_int64))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class FdTimer:
    """A Linux timerfd watched by the event loop."""

    def __init__(self, loop: AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = loop
        self._spec = _Itimerspec()
        self._spec_ref = ctypes.byref(self._spec)
        self._callback = callback
        self._armed = False
        loop.add_reader(self._fd, self._on_ready)

    def arm(self, at_ns: int) -> None:
        """Set the time of the next call. Setting the timer also clears a pending expiry, so it is never read."""
        self._armed = True
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(at_ns, 1), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_ref, None)

    def close(self) -> None:
        """Stop and free the timer."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_ready(self) -> None:
        self._armed = False
        self._callback()
        if not self._armed and self._fd >= 0:
            # The expiry stays readable until it is read or the timer is set: a loop would spin on it.
            self._spec.it_value.tv_sec = self._spec.it_value.tv_nsec = 0
            self._libc.timerfd_settime(self._fd, 0, self._spec_ref, None)


class LoopTimer:
    """The event loop's own timer, about a millisecond exact."""

    def __init__(self, loop: AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: TimerHandle | None = None

    def arm(self, at_ns: int) -> None:
        """Set the time of the next call."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._callback)

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()


def make_timer(loop: AbstractEventLoop, callback: Callable[[], None]) -> Timer:
    """Make the most exact timer that this system has."""
    return FdTimer(loop, callback) if sys.platform == "linux" else LoopTimer(loop, callback)
