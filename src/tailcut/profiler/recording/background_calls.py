"""Calls of models, databases, caches and services that no request is known to wait for. Runs in the profiled process.

A pilot that batches by itself hands its requests to a worker by a queue: the model then runs in the worker's context,
which belongs to no request, or to the one that once started it and is long over. Such calls are counted, so that nobody
takes them for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.spans import one_line
from tailcut.profiler.recording.tracing import OpenSpan, Trace, current
from tailcut.profiler.records import BackgroundCall, Stage

_MOST = 500
"""Different ones that are told apart: a statement may hold values."""
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

    def call(
        self, stage: Stage, label: str | bytes, function: Callable[..., Any], args: Any, kwargs: Any, more: bool = False
    ) -> Any:
        """Call it, and count that. ``more``: of a call that is counted already."""
        before = current.get()
        span = self._begin(stage, label, more)
        try:
            return function(*args, **kwargs)
        finally:
            self._end(span, before)

    async def await_(
        self, stage: Stage, label: str | bytes, function: Callable[..., Any], args: Any, kwargs: Any, more: bool = False
    ) -> Any:
        """Call it, await what it returns, and count that."""
        before = current.get()
        span = self._begin(stage, label, more)
        try:
            return await function(*args, **kwargs)
        finally:
            self._end(span, before)

    def found(self) -> tuple[BackgroundCall, ...]:
        """Hand out what was counted."""
        return tuple(
            BackgroundCall(stage=stage, label=one_line(label), calls=calls, took_ns=took_ns)
            for (stage, label), (calls, took_ns) in list(self._found.items())
        )

    def _begin(self, stage: Stage, label: str | bytes, more: bool) -> OpenSpan:
        # What it calls itself sees a span of the same stage, as in a request, and is not counted beside it.
        span = OpenSpan(Trace(-1, "", "", 0, _NOTHING), None, stage, label, "", 0, -1, now(), more=more)
        current.set(span)
        return span

    def _end(self, span: OpenSpan, before: OpenSpan | None) -> None:
        took_ns = now() - span.start_ns
        current.set(before)
        span.trace.over = True
        found, key = self._found, (span.stage, span.label)
        if key not in found and len(found) >= _MOST:
            key = (span.stage, _OTHERS)
        one = found.setdefault(key, [0, 0])
        # Two threads may do so at once: a call too few in many is no harm.
        one[0] += not span.more
        one[1] += took_ns


background_calls = BackgroundCalls()
