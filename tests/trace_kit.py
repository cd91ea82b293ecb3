"""What the tests of traces share: requests that have ended, and a sink with a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from tests import observe_kit

from tailcut.common.timings import Stage, Timings
from tailcut.observe.traces.kept import Span
from tailcut.observe.traces.sink import TraceSink
from tailcut.observe.traces.trace_context import RequestTrace, TraceOrigin, Tracer, format_traceparent

MS = 1_000_000
SLOW_MS = 50
WALL_NS = 1_700_000_000 * 10**9


@dataclass
class Ended(observe_kit.Ended):
    """A request as sinks receive it, with what traces need."""

    request_id: str = ""
    headers: Any = field(default_factory=dict)
    origin: TraceOrigin | None = None
    groups: Sequence[Any] = ()
    batches: Sequence[tuple[int, ...]] = ()


@dataclass
class Clock:
    """Clocks that stand still."""

    now_ns: int = 10**12
    wall_ns: int = WALL_NS

    def sink(self, share: float = 0.0, size: int = 512) -> TraceSink:
        """A sink by these clocks, to which a request of more than ``SLOW_MS`` is slow."""
        return TraceSink(
            lambda model: SLOW_MS * MS,
            share=share,
            size=size,
            random=Random(7),
            clock_ns=lambda: self.now_ns,
            wall_ns=lambda: self.wall_ns,
        )


def timings(start_ns: int = 10**12, **stages_ms: float) -> Timings:
    """Timings of a request that began at ``start_ns``."""
    found = Timings(start_ns)
    for name, ms in stages_ms.items():
        found.lap(Stage[name.upper()], found.last_ns + round(ms * MS))
    return found


def ended(
    ms: float = 1.0,
    *,
    parent: str = "",
    start_ns: int = 10**12,
    trace: RequestTrace | None = None,
    **attributes: Any,
) -> Ended:
    """A request that took so long; ``trace`` where its place in a trace was asked for."""
    if trace is not None:
        attributes["origin"] = TraceOrigin(Tracer(0.0), None, trace)
    found = Ended(timings(start_ns, receive=ms / 4, infer=ms / 2, encode=ms / 4), **attributes)
    if parent:
        found.headers = {"traceparent": parent}
    return found


def parent(trace_id: int = 0xABC, flags: int = 1) -> str:
    """A caller's header."""
    return format_traceparent(trace_id, 0xDEF, flags)


def check_nesting(spans: Sequence[Span]) -> None:
    """Every span but the roots lies within its parent, and the direct stages of each request sum to it."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), "ids differ"
    for span in spans:
        above = by_id.get(span.parent_id)
        if above is not None:
            assert above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns, (span, above)
    for own in spans:
        if "tailcut.route" in own.attributes:
            parts = [span for span in spans if span.parent_id == own.span_id]
            assert abs(sum(span.duration_ns for span in parts) - own.duration_ns) <= 0.05 * own.duration_ns
            parts.sort(key=lambda span: span.start_ns)
            for before, after in pairwise(parts):
                assert before.end_ns <= after.start_ns, "stages do not overlap"
