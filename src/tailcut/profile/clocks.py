"""A thread's CPU time and its waits for a core, read as seldom as they can be known. Runs in the profiled process.

The clock of CPU time is a system call, several times dearer than the monotonic clock; a request of a dozen queries
would ask for it dozens of times. So a span too short for its thread to have been anywhere else counts as CPU time, and
of two spans close to each other the second one begins where the first one ended.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from itertools import count

now = time.perf_counter_ns
thread_time_ns = time.thread_time_ns
SHORT_NS = 30_000
"""A span of less is taken as CPU time: at worst, what it waited in so short a time."""
_GAP_NS = 20_000
_STALE_NS = 200_000
"""Times that are not read but added up are believed for so long; then an error of one gap more would show."""
_BETWEEN_NS = 10_000
"""What an event loop computes between two callbacks, at most; beyond that it sleeps."""
_OFF_NS = 50_000
_SCHEDULE_BYTES = 64
_pread = ctypes.PyDLL(None).pread
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong)
_pread.restype = ctypes.c_ssize_t
_numbers = count(1)


class ThreadClock:
    """CPU time and waits for a core of the thread that makes it; only that thread may ask.

    What the kernel's scheduler counts of a thread is read by C's pread without giving the interpreter's lock up, as
    Python's own would: a thread that gives it up a dozen times in a request waits for it a dozen times, and the
    profile would show little else. The file is open as long as the thread lives.
    """

    __slots__ = ("_at_ns", "_buffer", "_cpu_ns", "_file", "_read_ns", "delay_ns", "number")

    def __init__(self) -> None:
        # The event loop's is the main thread; others count in the order in which they are first seen.
        self.number = 0 if threading.current_thread() is threading.main_thread() else next(_numbers)
        self._cpu_ns = self._at_ns = 0
        self._read_ns = -_STALE_NS
        self._buffer = ctypes.create_string_buffer(_SCHEDULE_BYTES)
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self.delay_ns = -1
        """How long the thread was ready to run and had no core when that was last read; -1 where Linux does not say."""
        self.read_delay()

    def cpu_at(self, at_ns: int) -> int:
        """Say how much CPU time the thread has had, ``at_ns`` being now."""
        gap_ns = at_ns - self._at_ns
        if gap_ns < _GAP_NS and at_ns - self._read_ns < _STALE_NS:
            return self._cpu_ns + gap_ns
        self._at_ns = self._read_ns = at_ns
        self._cpu_ns = cpu_ns = thread_time_ns()
        return cpu_ns

    def cpu_at_callback(self, at_ns: int) -> int:
        """Say the same for an event loop that begins a callback: it computed nothing to speak of since the last one."""
        gap_ns = at_ns - self._at_ns
        return self._cpu_ns + (gap_ns if gap_ns < _BETWEEN_NS else _BETWEEN_NS)

    def cpu_since(self, start_ns: int, cpu_ns: int, end_ns: int) -> int:
        """Say how much CPU time the thread has had since ``start_ns``, when it was ``cpu_ns``; ``end_ns`` is now."""
        took_ns = end_ns - start_ns
        self._at_ns = end_ns
        if took_ns < SHORT_NS:
            self._cpu_ns = cpu_ns + took_ns
            return took_ns
        self._read_ns = end_ns
        self._cpu_ns = read_ns = thread_time_ns()
        spent_ns = read_ns - cpu_ns
        if spent_ns > took_ns:
            return took_ns
        return spent_ns if spent_ns > 0 else 0

    def delay_since(self, before_ns: int, off_ns: int) -> int:
        """Say how long of ``off_ns`` off its core the thread would have run; -1 where that is not known.

        The kernel's count is dear to read. Where the thread was hardly off its core it is not read at all; where it
        was, the wait counts from the last time that it was read in this thread, which ``before_ns`` is of.
        """
        if off_ns < _OFF_NS:
            return 0
        if before_ns < 0:
            return -1
        waited_ns = self.read_delay() - before_ns
        return waited_ns if waited_ns < off_ns else off_ns

    def read_delay(self) -> int:
        """Bring ``delay_ns`` up to date."""
        if self._file >= 0 and _pread(self._file, self._buffer, _SCHEDULE_BYTES, 0) > 0:
            self.delay_ns = int(self._buffer.value.split(None, 2)[1])
        return self.delay_ns

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:
            close(self._file)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.clock = ThreadClock()


of_thread = _OfThread()
"""``of_thread.clock`` is the calling thread's."""
