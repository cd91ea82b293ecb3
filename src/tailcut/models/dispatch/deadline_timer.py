"""One timer for all deadlines of a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

NEVER_NS = 2**63 - 1
"""Later than every deadline."""


class DeadlineTimer:
    """Wakes no later than the earliest deadline of what waits or runs, at the cost of one comparison per request.

    Args:
        clock_ns: monotonic nanoseconds.
        wake: called when the timer fires; no timer is set then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int], wake: Callable[[], None]) -> None:
        self._loop = loop
        self._clock_ns = clock_ns
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS
        self._noted_ns = NEVER_NS

    def note(self, deadline_ns: int) -> None:
        """Record one more deadline; ``arm`` acts on it."""
        self._noted_ns = min(self._noted_ns, deadline_ns)

    def arm(self, earliest_ns: Callable[[], int]) -> None:
        """Make sure that the timer is set early enough.

        Args:
            earliest_ns: looks at everything; called only where no timer is set (about once per time-out). While one
                is set, only deadlines noted since can be earlier than it.
        """
        if self._timer is None:
            wake_ns = earliest_ns()
        elif self._noted_ns < self._timer_ns:
            wake_ns = self._noted_ns
            self._timer.cancel()
        else:
            return
        self._noted_ns = NEVER_NS
        if wake_ns == NEVER_NS:
            return
        self._timer_ns = wake_ns
        self._timer = self._loop.call_later(max(wake_ns - self._clock_ns(), 0) / 1e9, self._fire)

    def cancel(self) -> None:
        """Set no timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._wake()
