"""Begins traces and continues those of callers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from tailcut.observe.traces.trace_context import (
    RANDOM,
    SAMPLED,
    CallerSpan,
    Parent,
    RequestTrace,
    parse_traceparent,
    parse_tracestate,
)

_LOW_BITS = 56


class RequestHeaders(Protocol):
    """Headers of a request by lower-case name; ``get_all`` where one may have been sent more than once."""

    def get(self, key: str, /) -> str | None:
        """Return a value; None where there is none."""
        ...


class TraceOrigin:
    """Finds a request's place in its trace when it is first asked for; it does not know the request.

    Attributes:
        trace: the place; None until it is first needed.
    """

    __slots__ = ("_headers", "_tracer", "trace")

    def __init__(self, tracer: Tracer, headers: RequestHeaders | None, trace: RequestTrace | None = None) -> None:
        self._tracer = tracer
        self._headers = headers
        self.trace = trace

    def __call__(self) -> RequestTrace:
        """Return the place."""
        if self.trace is None:
            self.trace = self._tracer.begin(self._headers)
        return self.trace


class Tracer:
    """Gives requests their place in a trace.

    Args:
        share: of new traces that are sampled. By the trace id, so that whoever samples by it decides alike.
        random: source of ids.
    """

    def __init__(self, share: float, random: Random | None = None) -> None:
        random = random or Random()
        self.share = share
        self.draw: Callable[[], float] = random.random
        self._bits = random.getrandbits

    def begin(self, headers: RequestHeaders | None, draw: float | None = None) -> RequestTrace:
        """Continue the trace of a request's caller, or begin one.

        Args:
            draw: evenly from 0 to 1; a new trace is sampled where it is below the share. By default it is drawn.
        """
        parent = parent_of(headers)
        if parent is not None:
            state = ",".join(_values(headers, "tracestate"))
            found = RequestTrace(parent.trace_id, self._id(64), parent.span_id, parent.flags)
            found.state = parse_tracestate(state) if state else ""
            return found
        draw = self.draw() if draw is None else draw
        # OpenTelemetry's consistent sampling: sampled where the low 56 bits are at least those of 1 - share.
        low = min(int((1.0 - draw) * (1 << _LOW_BITS)), (1 << _LOW_BITS) - 1)
        flags = RANDOM | (SAMPLED if draw < self.share else 0)
        return RequestTrace(self._id(72) << _LOW_BITS | low, self._id(64), 0, flags)

    def called(self, caller: CallerSpan) -> RequestTrace:
        """Return the place of a request that another one of this server sends."""
        trace = caller.trace
        return RequestTrace(trace.trace_id, self._id(64), caller.span_id, trace.flags, trace.state, trace)

    def _id(self, bits: int) -> int:
        return self._bits(bits) or 1


def parent_of(headers: RequestHeaders | None) -> Parent | None:
    """Return the span that a request comes from; None where it says none, or not in the W3C's form."""
    text = headers.get("traceparent") if headers is not None else None
    if text is None or len(_values(headers, "traceparent")) > 1:
        return None
    return parse_traceparent(text)


def _values(headers: RequestHeaders | None, name: str) -> list[str]:
    get_all = getattr(headers, "get_all", None)
    if get_all is not None:
        found: list[str] = get_all(name)
        return found
    value = headers.get(name) if headers is not None else None
    return [] if value is None else [value]
