"""What was traced, as records to keep: made when the recording is over, so that no request pays for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType

from tailcut.profiler.recording.clocks import delay_between, now
from tailcut.profiler.recording.tracing import DROPPED_NS, OpenSpan, SpanRecorder, Trace
from tailcut.profiler.records import RecordedRequest, RecordedSpan

_LABEL_CHARS = 2_000

NameOf = Callable[[str | CodeType, int], str]
"""Names the place of a span."""


def requests_of(tracer: SpanRecorder) -> tuple[RecordedRequest, ...]:
    """Return the server's record of each request; the client's times are added later."""
    end_ns = now()
    # By identity: code that does the same in another file is equal. The spans keep it alive.
    known: dict[tuple[int, int], str] = {}

    def name(place: str | CodeType, at: int) -> str:
        if isinstance(place, str):
            return place
        if (id(place), at) not in known:
            known[id(place), at] = tracer.places.at(place, at)
        return known[id(place), at]

    return tuple(_request(trace, end_ns, name) for trace in list(tracer.traces))


@functools.lru_cache(maxsize=4096)
def one_line(label: str | bytes) -> str:
    """A label as text, in one line; in several where a statement has comments that end with theirs."""
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else label
    lines = text.split("\n") if "--" in text else (text,)
    return "\n".join(line for one in lines if (line := " ".join(one.split())))[:_LABEL_CHARS]


def _request(trace: Trace, end_ns: int, name: NameOf) -> RecordedRequest:
    spans, cpu_ns = _spans(_awaited(list(trace.spans), trace.left_ns), end_ns, name)
    return RecordedRequest(
        number=trace.number,
        intended_ns=-1,
        sent_ns=-1,
        done_ns=-1,
        entered_ns=trace.entered_ns,
        left_ns=trace.left_ns,
        status=trace.status,
        cpu_ns=cpu_ns,
        method=trace.method,
        path=trace.path,
        endpoint=f"{trace.endpoint[0]} ({trace.endpoint[1]})" if trace.endpoint is not None else "",
        spans=spans,
    )


def _awaited(spans: list[OpenSpan], left_ns: int) -> list[OpenSpan]:
    """Leave out what ran in another thread and was not over when the reply was: the request did not wait for it."""
    left: set[int] = set()
    begun: set[tuple[int, int, int]] = set()
    for span in spans:
        parent = span.parent
        if parent is None or left_ns < 0:
            continue
        outlives = span.start_ns < left_ns and not 0 <= span.end_ns <= left_ns
        if id(parent) in left or (span.thread != parent.thread and outlives):
            left.add(id(span))
            begun.add((id(parent), span.thread, span.start_ns))
    return [one for one in spans if id(one) not in left and (id(one.parent), one.thread, one.end_ns) not in begun]


def _spans(spans: Sequence[OpenSpan], end_ns: int, name: NameOf) -> tuple[tuple[RecordedSpan, ...], int]:
    """Records of the spans, parents first, and the CPU time of those that have it; -1: none has."""
    kept: list[RecordedSpan] = []
    index: dict[int, int] = {}
    total_ns = -1
    parents = {id(span.parent) for span in spans}
    for span in sorted(spans, key=lambda one: (one.start_ns, -(one.end_ns if one.end_ns >= 0 else end_ns))):
        closed_ns = span.end_ns if span.end_ns >= 0 else end_ns
        cpu_ns, delay_ns = _times(span)
        parent = span.parent
        within_timed = parent is not None and parent.thread == span.thread and parent.cpu_ns >= 0
        if cpu_ns >= 0 and not within_timed:
            total_ns = max(total_ns, 0) + cpu_ns
        if closed_ns - span.start_ns < DROPPED_NS and id(span) not in parents:
            continue
        index[id(span)] = len(kept)
        kept.append(
            RecordedSpan(
                stage=span.stage,
                label=one_line(span.label),
                place=name(span.place, span.at),
                start_ns=span.start_ns,
                end_ns=closed_ns,
                parent=index.get(id(span.parent), -1),
                thread=span.thread,
                cpu_ns=cpu_ns,
                delay_ns=delay_ns,
                more=span.more,
            )
        )
    return tuple(kept), total_ns


def _times(span: OpenSpan) -> tuple[int, int]:
    """CPU time and delay of a span; -1: not known."""
    if span.end_ns < 0 or span.cpu_ns < 0:
        return -1, -1
    off_ns = span.end_ns - span.start_ns - span.cpu_ns
    return span.cpu_ns, min(delay_between(span.before, span.after), off_ns)
