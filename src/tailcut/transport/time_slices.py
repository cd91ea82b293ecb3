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
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

_SET = {"x86_64": 314, "aarch64": 274}
_GET = {"x86_64": 315, "aarch64": 275}
"""Of the system calls, which glibc has no functions for before 2.41."""
_ATTR = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, its first version: size, policy, flags, nice, priority, runtime, deadline, period."""
_TASKS = "/proc/self/task"


def set_slice(task: int, slice_ns: int) -> None:
    """Set for how long a thread may compute before others that are ready go on.

    Args:
        task: its id.
        slice_ns: 0: the kernel's own.

    Raises:
        OSError: it has ended, its policy has no slices, or this is not allowed, not known here, or without effect.
    """
    policy, nice = os.sched_getscheduler(task), os.getpriority(os.PRIO_PROCESS, task)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        raise OSError(f"a thread of policy {policy} has no slice")
    _call(_SET, task, _ATTR.pack(_ATTR.size, policy, 0, nice, 0, slice_ns, 0, 0), 0)
    if slice_ns and get_slice(task) != slice_ns:
        raise OSError("this kernel sets no slices")


def get_slice(task: int) -> int:
    """Return a thread's slice in nanoseconds.

    Raises:
        OSError: it has ended, or this is not allowed or not known here.
    """
    attr = ctypes.create_string_buffer(_ATTR.size)
    _call(_GET, task, attr, _ATTR.size, 0)
    return int(_ATTR.unpack(attr.raw)[5])


def _call(numbers: Mapping[str, int], task: int, *arguments: Any) -> None:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(f"the numbers of {platform.machine()}'s system calls are not known")
    if ctypes.CDLL(None, use_errno=True).syscall(number, task, *arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Slices:
    """Gives threads of this process longer slices and takes them back."""

    def __init__(self) -> None:
        self._slice_ns = 0
        self._longer: set[int] = set()

    @property
    def longer(self) -> bool:
        """Whether any thread has one."""
        return bool(self._longer)

    def give(self, tasks: Collection[int], slice_ns: int = 0) -> None:
        """Let these threads, and no others, have longer ones.

        Args:
            slice_ns: how long, where there are any.
        """
        kept = tasks if slice_ns == self._slice_ns else ()
        if self._longer - set(kept):
            self._take_back(kept)
        self._slice_ns = slice_ns
        self._longer = {task for task in tasks if task in self._longer.intersection(kept) or self._given(task)}

    def _given(self, task: int) -> bool:
        try:
            set_slice(task, self._slice_ns)
        except OSError:
            return False
        return True

    def _take_back(self, kept: Collection[int]) -> None:
        """From all others: what a thread begins has its slice, too."""
        with suppress(OSError):
            for task in map(int, os.listdir(_TASKS)):
                with suppress(OSError):  # it has ended
                    if task not in kept and get_slice(task) == self._slice_ns:
                        set_slice(task, 0)
