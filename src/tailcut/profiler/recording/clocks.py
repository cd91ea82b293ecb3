"""A thread's CPU time and its waits for a core, read as seldom as they can be known. Runs in the profiled process.

Both are system calls, and dear ones where the machine is busy with something else in between: a request of a dozen
queries would make dozens of them. So a span too short for its thread to have been anywhere else counts as CPU time; of
two spans close to each other the second one begins where the first one ended; and how long the thread waited for a core
is asked for once per request, and for each query in it only as long as there are such waits to be divided.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import ClassVar

now = time.perf_counter_ns
thread_time_ns = time.thread_time_ns
SHORT_NS = 50_000
"""Shorter spans count as CPU time; the error is at most the wait in so short a time."""
_ADDED_NS = 500_000
"""Times that are not read but added up are believed for so long; then their errors would show."""
_FRESH_NS = 1_000_000
_NOTED = 0.02
"""Waits for a core of more than this share are worth dividing: for so long each span asks for its own."""
_NOTED_NS = 1_000_000_000
_SCHEDULE_BYTES = 64
# Without types of its arguments, of which ctypes would make an object each.
_pread = ctypes.PyDLL(None).pread
_numbers = count(1)


class ThreadClock:
    """CPU time and waits for a core of the thread that makes it; only that thread may ask.

    What the kernel's scheduler counts of a thread is read by C's pread without giving the interpreter's lock up, as
    Python's own would: a thread that gives it up a dozen times in a request waits for it a dozen times, and the
    profile would show little else. The file is open as long as the thread lives.

    Attributes:
        number: of the thread: 0 is the event loop's, the main one; others count in the order in which they are seen.
        schedule: what the kernel counts, as it says it (``delay_between`` reads it); empty where Linux does not say.
        sure_ns: when waits were last counted that nobody had asked for when they were over. Of a span inside another
            that began before, its own waits are not known, and stay with the outer one.
    """

    __slots__ = (
        "_at_ns", "_behind", "_buffer", "_cpu_ns", "_file", "_looked_ns", "_pointer", "_read_ns", "number", "schedule",
        "sure_ns",
    )  # fmt: skip

    noted_until_ns: ClassVar[int] = 0
    """Until then each span asks for its own waits: some thread of the process had some that were worth it."""

    def __init__(self) -> None:
        self.number = 0 if threading.current_thread() is threading.main_thread() else next(_numbers)
        self.schedule = b""
        self._at_ns = self._cpu_ns = self.sure_ns = 0
        self._behind = False
        self._read_ns = self._looked_ns = -_FRESH_NS
        self._buffer = ctypes.create_string_buffer(_SCHEDULE_BYTES)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._buffer))
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def cpu_at(self, at_ns: int) -> int:
        """Say how much CPU time the thread has had, ``at_ns`` being now."""
        gap_ns = at_ns - self._at_ns
        if gap_ns < SHORT_NS and at_ns - self._read_ns < _ADDED_NS:
            return self._cpu_ns + gap_ns
        cpu_ns = thread_time_ns()
        off = gap_ns - (cpu_ns - self._cpu_ns) >= SHORT_NS
        if off or self._behind:
            if at_ns < ThreadClock.noted_until_ns:
                self._look(at_ns)
            else:
                self._behind = True
        self._at_ns = self._read_ns = at_ns
        self._cpu_ns = cpu_ns
        return cpu_ns

    def cpu_since(self, start_ns: int, cpu_ns: int, end_ns: int) -> int:
        """Say how much CPU time the thread has had since ``start_ns``, when it was ``cpu_ns``; ``end_ns`` is now."""
        took_ns = end_ns - start_ns
        if took_ns < SHORT_NS:
            self._cpu_ns = cpu_ns + took_ns
            self._at_ns = end_ns
            return took_ns
        spent_ns = self.cpu_at(end_ns) - cpu_ns
        return took_ns if spent_ns > took_ns else spent_ns if spent_ns > 0 else 0

    def look(self, at_ns: int) -> bytes:
        """Bring ``schedule`` up to date at the beginning of an outermost span, unless it was a moment ago."""
        if at_ns - self._looked_ns >= _FRESH_NS:
            self._look(at_ns)
        return self.schedule

    def look_since(self, before: bytes, start_ns: int, cpu_ns: int, end_ns: int) -> bytes:
        """Bring ``schedule`` up to date at its end, and see whether there were waits that are worth dividing."""
        took_ns = end_ns - start_ns
        if took_ns - cpu_ns >= SHORT_NS:
            self._look(end_ns)
            if delay_between(before, self.schedule) > took_ns * _NOTED:
                ThreadClock.noted_until_ns = end_ns + _NOTED_NS
        return self.schedule

    def _look(self, at_ns: int) -> None:
        self._looked_ns = at_ns
        if self._behind:
            self._behind = False
            self.sure_ns = at_ns
        if self._file >= 0 and _pread(self._file, self._pointer, _SCHEDULE_BYTES, 0) > 0:
            self.schedule = self._buffer.value

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:
            close(self._file)


def delay_between(before: bytes, after: bytes) -> int:
    """Say how long a thread was ready to run and had no core between two readings of its schedule; -1: not known.

    The kernel says: time on a core, time waiting for one, time slices (Documentation/scheduler/sched-stats.rst).
    """
    if before is after:
        return 0 if before else -1
    return int(after.split(None, 2)[1]) - int(before.split(None, 2)[1]) if before and after else -1


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.clock = ThreadClock()


of_thread = _OfThread()
"""``of_thread.clock`` is the calling thread's."""
