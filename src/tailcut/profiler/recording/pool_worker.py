"""A call in a worker process: its times, CPU time and spans go back to the service with its result.

The worker imports this module to unpickle the call, so it imports nothing of tailcut. Hooks are there where the worker
was forked from the service: then the spans inside the call (a model's, a query's) are kept as well.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """A call that a worker has made.

    Attributes:
        value: what the function returned.
        token: of the call.
        pid: the worker.
        start_ns, end_ns: of the function; the monotonic clock is the same in all processes of a machine.
        cpu_ns: CPU time of its thread.
        delay_ns: for how long its thread was ready to run and had no core; -1: not known.
        spans: spans inside it (``profiler.records.Span``), parents first; -1 as a parent means the call.
        libraries: what the models of these spans run on, by label.
    """

    value: Any
    token: int
    pid: int
    start_ns: int
    end_ns: int
    cpu_ns: int
    delay_ns: int
    spans: tuple[Any, ...]
    libraries: dict[str, str]


class Timed:
    """A function on its way to a worker process: called there, it returns ``Ran``.

    Args:
        function: it, as it was given.
        token: by which the service finds the call again.
    """

    def __init__(self, function: Callable[..., Any], token: int) -> None:
        self.function = function
        self.token = token

    def __call__(self, *args: Any, **kwargs: Any) -> Ran:
        """Call it in the worker."""
        keep = _spans_kept()
        before_ns, cpu_ns, start_ns = _delayed_ns(), time.thread_time_ns(), time.perf_counter_ns()
        try:
            value = self.function(*args, **kwargs)
        finally:
            # A span of the request that the service forked for would else stay open here for ever.
            spans, libraries = keep() if keep is not None else ((), {})
        end_ns, cpu_ns, after_ns = time.perf_counter_ns(), time.thread_time_ns() - cpu_ns, _delayed_ns()
        delay_ns = after_ns - before_ns if before_ns >= 0 and after_ns >= 0 else -1
        return Ran(value, self.token, os.getpid(), start_ns, end_ns, cpu_ns, delay_ns, spans, libraries)


def _spans_kept() -> Callable[[], tuple[tuple[Any, ...], dict[str, str]]] | None:
    """Begin to keep spans, where the hooks are there; what is returned ends that and hands them out."""
    hooks = sys.modules.get("tailcut.profiler.hooks.processes")
    return hooks.keep_spans() if hooks is not None else None


def _delayed_ns() -> int:
    """For how long this thread has been ready to run without a core; -1: the kernel does not say."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return -1
