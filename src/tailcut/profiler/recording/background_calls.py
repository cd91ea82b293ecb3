"""Calls of models, databases, caches and services that no request is known to wait for. Runs in the profiled process.

A pilot that batches by itself hands its requests to a worker by a queue: the model then runs in the worker's context,
which belongs to no request, or to the one that once started it and is long over. Such calls are counted, so that nobody
takes them for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.spans import one_line
from tailcut.profiler.recording.tracing import OpenSpan, Trace, current
from tailcut.profiler.records import BackgroundCall, Stage

_MOST = 500
"""Most different calls that are counted apart: a statement may hold values."""
_OTHERS = "others"


class _Nothing(list[OpenSpan]):
    """Spans of no request: they are not kept."""

    def append(self, _: OpenSpan) -> None:
        """Forget it."""


_NOTHING = _Nothing()


class BackgroundCalls:
    """How often and how long they were called since it was last emptied."""

    def __init__(self) -> None:
        self._found: dict[tuple[Stage, str | bytes], list[int]] = {}

    def clear(self) -> None:
        """Forget them."""
        self._found = {}

    @contextmanager
    def counted(self, stage: Stage, label: str | bytes, *, more: bool = False) -> Iterator[None]:
        """Count a call that is made inside. ``more``: it is part of one that is counted already."""
        before, start_ns = current.get(), now()
        # Calls inside see a span of the same stage, as in a request, and are not counted again.
        trace = Trace(-1, "", "", 0, _NOTHING)
        current.set(OpenSpan(trace, None, stage, label, "", 0, -1, start_ns))
        try:
            yield
        finally:
            took_ns = now() - start_ns
            current.set(before)
            trace.over = True
            key = stage, label
            if key not in self._found and len(self._found) >= _MOST:
                key = stage, _OTHERS
            one = self._found.setdefault(key, [0, 0])
            # Two threads may do so at once: a call too few in many is no harm.
            one[0] += not more
            one[1] += took_ns

    def found(self) -> tuple[BackgroundCall, ...]:
        """Hand out what was counted."""
        return tuple(
            BackgroundCall(stage=stage, label=one_line(label), calls=calls, took_ns=took_ns)
            for (stage, label), (calls, took_ns) in list(self._found.items())
        )


background_calls = BackgroundCalls()
