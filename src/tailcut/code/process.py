"""When this process started."""

from __future__ import annotations

import os
import time
from functools import cache


@cache
def started_s() -> float:
    """Return when this process started, in seconds since the epoch; where the system does not tell, when it was asked.

    That of a process that was forked is the time of the fork.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return time.time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
