"""Executors that run work of requests, named by the line that made them. Runs in the profiled process."""

from __future__ import annotations

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


def name_executor(executor: Any, maker: FrameType, kind: str = EXECUTOR) -> None:
    """Name one that was made. What a library makes stays without a name: it may make as many as it likes.

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


def label_of(executor: Any, kind: str = EXECUTOR) -> str:
    """What a wait for one of its threads or processes is called; of one without a name, ``kind``."""
    try:
        return str(object.__getattribute__(executor, _LABEL))
    except AttributeError:
        return kind
