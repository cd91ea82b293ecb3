"""SCHED_BATCH for all threads of the server: one that wakes waits until the other has nothing left to do.

Source: sched(7), "SCHED_BATCH".
"""

from __future__ import annotations

import os
from contextlib import suppress

_TASKS = "/proc/self/task"


def run_as_batch() -> None:
    """Set the policy of all threads of this process, also those that Python did not begin.

    A policy that somebody gave the process or a thread (chrt, systemd) stays; threads begin with that of the one that
    begins them.
    """
    with suppress(OSError):
        for task in map(int, os.listdir(_TASKS)):
            with suppress(OSError):  # it has ended, or this is not allowed here
                if os.sched_getscheduler(task) == os.SCHED_OTHER:
                    os.sched_setscheduler(task, os.SCHED_BATCH, os.sched_param(0))
