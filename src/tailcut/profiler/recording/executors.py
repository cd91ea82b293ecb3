"""Executors that run work of requests, and how many threads or processes each has. Runs in the profiled process.

Each is named by the line that made it. Where one line makes several (one per request, per model), nobody knows which of
them a request waits for: of those it is not told.
"""

from __future__ import annotations

import math
import os
from types import FrameType
from typing import Any

from tailcut.profiler.recording.places import PROFILE
from tailcut.profiler.recording.tracing import tracer
from tailcut.profiler.records import EXECUTOR

_LABEL = "_tailcut_label"
_ASYNCIO = "asyncio"
"""What the threads' names begin with of the executor that asyncio's loop makes for itself."""
_HOOK = os.path.join(PROFILE, "hooks", "threads.py")
"""What seems to make the executor of uvloop's: the loop is C's, and has no frame."""


class Executors:
    """By the labels of the waits for them, how many threads or processes they have."""

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}

    def made(self, executor: Any, maker: FrameType, kind: str = EXECUTOR) -> None:
        """Know one that was made. What a library makes stays without a name: it may make as many as it likes.

        Args:
            executor: of threads or processes.
            maker: what made it.
            kind: what waits for it are called, but for the place.
        """
        if tracer.places.is_user(maker.f_code.co_filename):
            label = f"{kind} of {tracer.places.name(maker.f_code.co_filename)}:{maker.f_lineno}"
        elif getattr(executor, "_thread_name_prefix", "") == _ASYNCIO or maker.f_code.co_filename == _HOOK:
            label = f"{kind} of asyncio"
        else:
            return
        # A class of the user's may have an own way of setting attributes, and of asking for them.
        object.__setattr__(executor, _LABEL, label)
        self._threads[label] = 0 if label in self._threads else _threads_of(executor)

    def found(self) -> dict[str, int]:
        """Hand out those that are the only one of their name."""
        return {label: threads for label, threads in dict(self._threads).items() if threads}


def label_of(executor: Any, kind: str = EXECUTOR) -> str:
    """What a wait for one of its threads or processes is called; of one without a name, ``kind``."""
    try:
        return str(object.__getattribute__(executor, _LABEL))
    except AttributeError:
        return kind


def _threads_of(executor: Any) -> int:
    """How many it may have; 0 where that is no number, as infinity. Half the cores may be one and a half: 2."""
    try:
        many: float = executor._max_workers if hasattr(executor, "_max_workers") else executor._processes
        return math.ceil(many)
    except Exception:  # a class of the user's may have put anything there
        return 0


executors = Executors()
