"""Spans of the requests that are in flight. Runs in the profiled process, on the event loop and in threads.

Which request a piece of code works for is kept in a context variable, which tasks and (with the hooks of ``threads``)
threads inherit. What a hook does is paid by every request, so it only keeps what it has in its hands: a span is one
object that the garbage collector does not see, its place the code and the instruction, its label the query as it was
given. What a reader wants of these is made when the recording is over (``requests``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any

import msgspec

from tailcut.profiler.recording.clocks import now, of_thread
from tailcut.profiler.recording.places import Places
from tailcut.profiler.records import Moment, Stage

LEAVES = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.PREPROCESS, Stage.MODEL})
"""What calls itself: of two spans of such a stage, one inside the other, only the outer one is kept.

A span of which ``OpenSpan.parts`` is set keeps the calls that it is put together from as well."""
_MAX_TRACES = 100_000
_MAX_SPANS = 2_000
_MAX_MOMENTS = 100_000
DROPPED_NS = 3_000
"""A span without children that took less is no news, and records cost memory."""


class Trace(msgspec.Struct, gc=False, eq=False):
    """One request on its way.

    Objects that stay would be looked at by each of the application's garbage collections, and make more of them.
    """

    number: int
    method: str
    path: str
    entered_ns: int
    spans: list[OpenSpan]
    endpoint: tuple[str, str] | None = None
    left_ns: int = -1
    status: int = 0
    task: int = 0
    """Identity of the task that the server runs it in."""
    steps: list[tuple[Any, int, Moment]] = []
    """Long steps of other tasks that it began: the task, the moment's place and the moment."""
    over: bool = False
    """It is finished; what a task that it began does later is no part of it."""


class OpenSpan(msgspec.Struct, gc=False, eq=False):
    """A span that may still be open.

    Args:
        label: as it was given; ``requests`` makes it one line.
        place: "file.py:line", or the code in which instruction ``at`` is meant.
        thread: number of its thread.
        cpu_ns: until the end, what the clock showed at the beginning; -1: not timed.
        before, after: its thread's schedule at the beginning and the end.
        more: of a query that has a span already.
        parts: models and preprocessing that it calls itself have spans of their own.
    """

    trace: Trace
    parent: OpenSpan | None
    stage: Stage
    label: str | bytes
    place: str | CodeType
    at: int
    thread: int
    start_ns: int
    end_ns: int = -1
    cpu_ns: int = -1
    before: bytes = b""
    after: bytes = b""
    more: bool = False
    parts: bool = False

    def __enter__(self) -> OpenSpan:
        return self

    def __exit__(self, *_: object) -> None:
        if self.cpu_ns < 0:
            close_span(self)
        else:
            close_timed(self)


current: ContextVar[OpenSpan | None] = ContextVar("tailcut_span", default=None)
"""The innermost open span of whatever runs; None outside of the load's requests."""
_set_current = current.set
# Looking a member up in its enumeration costs as much as making a span.
CODE, WAIT, PREPROCESS, MODEL, SQL = Stage.CODE, Stage.WAIT, Stage.PREPROCESS, Stage.MODEL, Stage.SQL


class SpanRecorder:
    """All that was recorded since it was last emptied."""

    def __init__(self) -> None:
        self.places = Places(os.getcwd())
        self.traces: list[Trace] = []
        self.moments: list[Moment] = []
        self.notes: list[str] = []
        self.hooked: list[str] = []
        self.failures: list[str] = []
        self.dropped = 0
        self.touched: Trace | None = None
        """The request that was last taken in or finished, at ``touched_ns``."""
        self.touched_ns = 0

    def clear(self) -> None:
        """Forget what was recorded."""
        traces, self.traces = self.traces, []
        for one in traces:
            # A trace and its spans hold each other, and the garbage collector does not track them.
            one.spans.clear()
        self.moments = []
        self.failures = []
        self.dropped = 0

    def note(self, text: str) -> None:
        """Keep what the reader should know, once."""
        if text not in self.notes:
            self.notes.append(text)

    def lost(self) -> tuple[str, ...]:
        """Say what was more than is kept since it was last emptied."""
        notes = []
        if self.dropped:
            notes.append(f"{self.dropped} requests exceeded the size of a recording and were dropped")
        full = sum(len(one.spans) >= _MAX_SPANS for one in list(self.traces))
        if full:
            notes.append(
                f"{full} requests made {_MAX_SPANS:,} calls or more that are timed: what they called after that counts"
                " as the code that called it"
            )
        if len(self.moments) >= _MAX_MOMENTS:
            notes.append(f"the process was held up {_MAX_MOMENTS:,} times and more; later causes are not recorded")
        return tuple(notes)

    def enter(self, number: int, method: str, path: str) -> Trace | None:
        """Take a request in; None where there are too many already."""
        if len(self.traces) >= _MAX_TRACES:
            self.dropped += 1
            return None
        trace = Trace(number, method, path, now(), [])
        self.traces.append(trace)
        return trace

    def moment(self, stage: Stage, start_ns: int, end_ns: int, label: str, place: str, request: int) -> None:
        """Keep what happened to the process."""
        if len(self.moments) < _MAX_MOMENTS:
            self.moments.append(
                Moment(stage=stage, start_ns=start_ns, end_ns=end_ns, label=label, place=place, request=request)
            )


tracer = SpanRecorder()


def open_root(trace: Trace, stage: Stage, label: str, place: str) -> OpenSpan:
    """Begin the span of the request as a whole."""
    span = OpenSpan(trace, None, stage, label, place, 0, of_thread.clock.number, trace.entered_ns)
    trace.spans.append(span)
    _set_current(span)
    return span


def open_under(parent: OpenSpan, stage: Stage, label: str | bytes, place: str | CodeType = "", at: int = 0) -> OpenSpan:
    """Begin a span inside of ``parent``, the current one."""
    trace = parent.trace
    span = OpenSpan(trace, parent, stage, label, place, at, of_thread.clock.number, now())
    spans = trace.spans
    if len(spans) < _MAX_SPANS:
        spans.append(span)
    _set_current(span)
    return span


def close_span(span: OpenSpan) -> None:
    """End a span; what encloses it goes on."""
    span.end_ns = now()
    _set_current(span.parent)


@contextmanager
def working_for(parent: OpenSpan) -> Iterator[None]:
    """Let what runs inside belong to a span, in a thread whose context does not know it."""
    before = current.get()
    _set_current(parent)
    try:
        yield
    finally:
        _set_current(before)  # the thread is somebody else's next


def add_span(
    parent: OpenSpan,
    stage: Stage,
    label: str | bytes,
    start_ns: int,
    end_ns: int,
    place: str | CodeType = "",
    at: int = 0,
    cpu_ns: int = -1,
    before: bytes = b"",
    after: bytes = b"",
) -> OpenSpan:
    """Keep a span that is over."""
    trace = parent.trace
    span = OpenSpan(
        trace, parent, stage, label, place, at, of_thread.clock.number, start_ns, end_ns, cpu_ns, before, after
    )  # fmt: skip
    spans = trace.spans
    if len(spans) < _MAX_SPANS:
        spans.append(span)
    return span


def open_timed(
    parent: OpenSpan,
    stage: Stage,
    label: str | bytes,
    place: str | CodeType = "",
    at: int = 0,
    start_ns: int | None = None,
) -> OpenSpan:
    """Begin a span that does not await inside of ``parent``, the current one, with its thread's CPU time.

    Args:
        start_ns: now, where the caller has read the clock already.
    """
    clock = of_thread.clock
    trace = parent.trace
    if start_ns is None:
        start_ns = now()
    cpu_ns = clock.cpu_at(start_ns)
    number = clock.number
    before = clock.schedule if parent.cpu_ns >= 0 and parent.thread == number else clock.look(start_ns)
    span = OpenSpan(trace, parent, stage, label, place, at, number, start_ns, -1, cpu_ns, before)
    spans = trace.spans
    if len(spans) < _MAX_SPANS:
        spans.append(span)
    _set_current(span)
    return span


def open_handed(parent: OpenSpan, pool: str, asked_ns: int, label: str, place: str) -> OpenSpan:
    """Begin a span of code in a thread of ``pool``, as ``open_timed`` does, after one of the wait for it."""
    start_ns = now()
    add_span(parent, WAIT, pool, asked_ns, start_ns)
    return open_timed(parent, CODE, label, place, start_ns=start_ns)


def close_timed(span: OpenSpan) -> None:
    """End what ``open_timed`` began, with how long the thread computed, and waited for a core."""
    end_ns = now()
    clock, parent, start_ns = of_thread.clock, span.parent, span.start_ns
    _set_current(parent)
    span.cpu_ns = cpu_ns = clock.cpu_since(start_ns, span.cpu_ns, end_ns)
    if parent is not None and parent.cpu_ns >= 0 and parent.thread == span.thread:
        span.after = clock.schedule if start_ns >= clock.sure_ns else span.before
    else:
        span.after = clock.look_since(span.before, start_ns, cpu_ns, end_ns)
    # Last: a reader that finds it set may read the others.
    span.end_ns = end_ns
