"""Spans of the requests that are in flight. Runs in the profiled process, on the event loop and in threads.

Which request a piece of code works for is kept in a context variable, which tasks and (with the hooks of ``threads``)
threads inherit. A span is one object that its opener closes; nothing is looked up or formatted on the way.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextvars import ContextVar

from tailcut.core.profiling.records import Moment, Request, Span, Stage
from tailcut.profile.places import Places

now = time.perf_counter_ns
get_ident = threading.get_ident
thread_time_ns = time.thread_time_ns
LEAVES = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.MODEL})
"""What calls itself: of two spans of such a stage, one inside the other, only the outer one is kept."""
_MAX_TRACES = 100_000
_MAX_SPANS = 2_000
_MAX_MOMENTS = 100_000
_OFF_NS = 50_000
DROPPED_NS = 3_000
"""A span without children that took less is no news, and spans cost memory."""


class Trace:
    """One request on its way."""

    __slots__ = (
        "began_cpu_ns", "cpu_ns", "endpoint", "entered_ns", "left_ns", "method", "number", "path", "spans", "status",
    )  # fmt: skip

    def __init__(self, number: int, method: str, path: str) -> None:
        self.number = number
        self.method = method
        self.path = path
        self.endpoint = ""
        self.entered_ns = now()
        self.left_ns = -1
        self.status = 0
        self.cpu_ns = 0
        self.began_cpu_ns = thread_time_ns()
        self.spans: list[Open] = []


class Open:
    """A span that may still be open."""

    __slots__ = ("cpu_ns", "delay_ns", "end_ns", "label", "parent", "place", "stage", "start_ns", "thread", "trace")

    def __init__(self, trace: Trace, stage: Stage, label: str, place: str, parent: Open | None) -> None:
        self.trace = trace
        self.stage = stage
        self.label = label
        self.place = place
        self.parent = parent
        self.thread = get_ident()
        self.cpu_ns = self.delay_ns = self.end_ns = -1
        self.start_ns = now()


current: ContextVar[Open | None] = ContextVar("tailcut_span", default=None)
"""The innermost open span of whatever runs; None outside of the load's requests."""
_threads: dict[int, int] = {}
_of_thread = threading.local()
_SCHEDULE_BYTES = 64
_pread = ctypes.PyDLL(None).pread
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong)
_pread.restype = ctypes.c_ssize_t


class Tracer:
    """All that was recorded since it was last emptied."""

    def __init__(self) -> None:
        self.places = Places(os.getcwd())
        self.traces: list[Trace] = []
        self.moments: list[Moment] = []
        self.notes: list[str] = []
        self.hooked: list[str] = []
        self.failures: list[str] = []
        self.dropped = 0
        self.times_loop = False
        """Whether callbacks of the event loop are timed: else nobody knows a request's CPU time."""
        self.entered: Trace | None = None
        """The request that the running callback of the event loop took in."""

    def clear(self) -> None:
        """Forget what was recorded."""
        self.traces = []
        self.moments = []
        self.failures = []
        self.dropped = 0

    def note(self, text: str) -> None:
        """Keep what the reader should know, once."""
        if text not in self.notes:
            self.notes.append(text)

    def enter(self, trace: Trace) -> None:
        """Take a request in."""
        if len(self.traces) < _MAX_TRACES:
            self.traces.append(trace)
        else:
            self.dropped += 1

    def moment(self, stage: Stage, start_ns: int, end_ns: int, label: str, place: str, request: int) -> None:
        """Keep what happened to the process."""
        if len(self.moments) < _MAX_MOMENTS:
            self.moments.append(
                Moment(stage=stage, start_ns=start_ns, end_ns=end_ns, label=label, place=place, request=request)
            )

    def requests(self) -> tuple[Request, ...]:
        """Hand out what the server's side knows of each request; the client's times are added by who has them."""
        end_ns = now()
        return tuple(_request(trace, end_ns, known=self.times_loop) for trace in list(self.traces))


tracer = Tracer()


def open_span(stage: Stage, label: str, place: str = "") -> Open | None:
    """Begin a span of the request that this code works for; None where there is none."""
    parent = current.get()
    if parent is None:
        return None
    trace = parent.trace
    span = Open(trace, stage, label, place, parent)
    if len(trace.spans) < _MAX_SPANS:
        trace.spans.append(span)
    current.set(span)
    return span


def close_span(span: Open | None) -> None:
    """End a span; what encloses it goes on."""
    if span is not None:
        span.end_ns = now()
        current.set(span.parent)


def add_span(parent: Open, stage: Stage, label: str, start_ns: int, end_ns: int, place: str = "") -> Open:
    """Keep a span that is over."""
    span = Open(parent.trace, stage, label, place, parent)
    span.start_ns, span.end_ns = start_ns, end_ns
    if len(parent.trace.spans) < _MAX_SPANS:
        parent.trace.spans.append(span)
    return span


Timed = tuple["Open", int, int]


def open_timed(stage: Stage, label: str, place: str = "") -> Timed | None:
    """Begin a span that does not await, with its thread's CPU time."""
    span = open_span(stage, label, place)
    return (span, thread_time_ns(), _schedule().last_ns) if span is not None else None


def close_timed(opened: Timed | None) -> None:
    """End what ``open_timed`` began, and look how long the thread waited for a core where it may have.

    The kernel's count is dear to read. Where the thread was hardly ever off its core it is not read at all; where it
    is, the wait counts from the last time that it was read in this thread, and is at most the span's time off its core.
    """
    if opened is None:
        return
    span, cpu_ns, before_ns = opened
    span.cpu_ns = thread_time_ns() - cpu_ns
    close_span(span)
    off_ns = span.end_ns - span.start_ns - span.cpu_ns
    if off_ns < _OFF_NS:
        span.delay_ns = 0
    elif before_ns >= 0:
        span.delay_ns = min(delay_ns() - before_ns, off_ns)


def thread_number(ident: int) -> int:
    """Number a thread: 0 is the event loop's, others in the order in which they are asked for."""
    if ident not in _threads:
        _threads[ident] = 0 if ident == threading.main_thread().ident else max(_threads.values(), default=0) + 1
    return _threads[ident]


def delay_ns() -> int:
    """How long this thread was ready to run and had no core, since it began; -1 where Linux does not say."""
    schedule = _schedule()
    schedule.read()
    return schedule.last_ns


def _schedule() -> _Schedule:
    schedule: _Schedule | None = getattr(_of_thread, "schedule", None)
    if schedule is None:
        schedule = _of_thread.schedule = _Schedule()
    return schedule


class _Schedule:
    """What the kernel's scheduler counts of this thread; the file is open as long as the thread lives.

    It is read by C's pread without giving the interpreter's lock up, as Python's own would: a thread that gives it up
    a dozen times in a request waits for it a dozen times, and the profile would show little else.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SCHEDULE_BYTES)
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self.last_ns = -1
        self.read()

    def read(self) -> None:
        """Bring ``last_ns`` up to date."""
        read = _pread(self._file, self._buffer, _SCHEDULE_BYTES, 0) if self._file >= 0 else 0
        if read > 0:
            self.last_ns = int(self._buffer.raw[:read].split(b" ", 2)[1])

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _request(trace: Trace, end_ns: int, *, known: bool) -> Request:
    kept: list[Span] = []
    index: dict[int, int] = {}
    parents = {id(span.parent) for span in trace.spans}
    for span in sorted(trace.spans, key=lambda one: (one.start_ns, -(one.end_ns if one.end_ns >= 0 else end_ns))):
        closed_ns = span.end_ns if span.end_ns >= 0 else end_ns
        if closed_ns - span.start_ns < DROPPED_NS and id(span) not in parents:
            continue
        index[id(span)] = len(kept)
        kept.append(
            Span(
                stage=span.stage,
                label=span.label,
                place=span.place,
                start_ns=span.start_ns,
                end_ns=closed_ns,
                parent=index.get(id(span.parent), -1),
                thread=thread_number(span.thread),
                cpu_ns=span.cpu_ns,
                delay_ns=span.delay_ns,
            )
        )
    return Request(
        number=trace.number,
        intended_ns=-1,
        sent_ns=-1,
        done_ns=-1,
        entered_ns=trace.entered_ns,
        left_ns=trace.left_ns,
        status=trace.status,
        cpu_ns=trace.cpu_ns if known else -1,
        method=trace.method,
        path=trace.path,
        endpoint=trace.endpoint,
        spans=tuple(kept),
    )
