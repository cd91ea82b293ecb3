"""Longer turns on a core for the threads that run models, while more is asked than they can answer.

Each request that comes wakes the event loop in the middle of a batch, to be refused mostly; the loop finds cold caches,
and so does the model after it. With a longer slice the kernel lets the batch go on, and the loop refuses several at a
time.

Source: sched_setattr(2); Linux 6.12, "sched/eevdf: Use sched_attr::sched_runtime to set request/slice suggestion": of
SCHED_OTHER and SCHED_BATCH, 0.1 to 100 ms, no privilege needed. An older kernel takes the call and changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Collection
from contextlib import suppress

_NUMBERS = {"x86_64": 314, "aarch64": 274}
"""Of the system call, which glibc has no function for before 2.41."""
_ATTR = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, its first version: size, policy, flags, nice, priority, runtime, deadline, period."""


def set_slice(task: int, slice_ns: int) -> None:
    """Set for how long a thread may compute before others that are ready go on.

    Args:
        task: its id.
        slice_ns: 0: the kernel's own.

    Raises:
        OSError: it has ended, its policy has no slices, or this is not allowed or not known here.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError("this machine's number of sched_setattr is not known")
    policy, nice = os.sched_getscheduler(task), os.getpriority(os.PRIO_PROCESS, task)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        raise OSError(f"a thread of policy {policy} has no slice")
    attr = _ATTR.pack(_ATTR.size, policy, 0, nice, 0, slice_ns, 0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(number, task, attr, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Slices:
    """Gives threads longer slices and takes them back.

    Args:
        slice_ns: the longer one.
        set_one: see ``set_slice``.
    """

    def __init__(self, slice_ns: int, set_one: Callable[[int, int], None] = set_slice) -> None:
        self._slice_ns = slice_ns
        self._set_one = set_one
        self._longer: set[int] = set()

    @property
    def longer(self) -> bool:
        """Whether any thread has one."""
        return bool(self._longer)

    def give(self, tasks: Collection[int]) -> None:
        """Let these threads, and no others, have longer ones."""
        for task in self._longer - set(tasks):
            with suppress(OSError):  # it has ended
                self._set_one(task, 0)
        given = set()
        for task in tasks:
            with suppress(OSError):
                if task not in self._longer:
                    self._set_one(task, self._slice_ns)
                given.add(task)
        self._longer = given
