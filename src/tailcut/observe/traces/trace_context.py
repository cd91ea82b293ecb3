"""Trace identity as services hand it on: the headers ``traceparent`` and ``tracestate``.

Source: W3C Trace Context (https://www.w3.org/TR/trace-context/), sections 3.2 and 3.3; the random part of a trace id
after Level 2, section 4. Pure: random numbers come in as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

SAMPLED = 0x01
RANDOM = 0x02
"""Flag of Level 2: the last 56 bits of the trace id are random."""

MASK_64 = (1 << 64) - 1
_VERSION_00_LENGTH = 55
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL
)
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=([ -+\--<>-~]{0,255}[!-+\--<>-~])")
_MOST_MEMBERS = 32
_LONGEST_STATE = 512
_LONG_MEMBER = 128


class Parent(NamedTuple):
    """The span that a request comes from.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        flags: 8 bits, of which ``SAMPLED`` and ``RANDOM`` have a meaning.
    """

    trace_id: int
    span_id: int
    flags: int


def parse_traceparent(text: str) -> Parent | None:
    """Read a ``traceparent``; None where it is not valid, after which a new trace begins.

    A version above 00 is read as far as version 00 goes.
    """
    found = _PARENT.fullmatch(text)
    if found is None or (len(text) != _VERSION_00_LENGTH and text[:2] == "00"):
        return None
    trace_id, span_id, flags = found.groups()
    return Parent(int(trace_id, 16), int(span_id, 16), int(flags, 16))


def format_traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Write a ``traceparent`` of version 00, with the flags that it knows."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags & (SAMPLED | RANDOM):02x}"


def parse_tracestate(text: str) -> str:
    """Return a ``tracestate`` in its normal form; empty where it is not valid.

    Args:
        text: all values of the header, in order, joined with commas.

    Returns:
        at most 512 characters: of a longer one members above 128 characters are left out first, then the last ones.
    """
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    if len(members) > _MOST_MEMBERS or not all(found):
        return ""
    if len({match[1] for match in found if match is not None}) < len(members):
        return ""  # a key may be there once
    if len(",".join(members)) > _LONGEST_STATE:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while len(state := ",".join(members)) > _LONGEST_STATE:
        members.pop()
    return state


def derived_id(seed: int, number: int) -> int:
    """Return the 64-bit id, not 0, that belongs to a seed and a number: the same one whenever it is asked for.

    Source: SplitMix64 (Steele, Lea, Flood 2014), whose output function is a bijection of 64 bits.
    """
    mixed = (seed + number * 0x9E3779B97F4A7C15) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return (mixed ^ (mixed >> 31)) or 1


class RequestTrace:
    """The place of one request in its trace.

    Attributes:
        span_id: of the request's own span.
        parent_id: span that the request comes from; 0 where it begins the trace.
        flags: see ``Parent``.
        state: ``tracestate``, in its normal form.
        calls: requests to other models of this server that were sent in the course of this one, with the models' names.
        caller: request of this server that sent it; None where it came from outside.
        is_closed: whether it was decided on this request whether it is kept.
        asked_for: why the caller's trace must be kept for this one's sake; empty where it need not.
    """

    __slots__ = ("asked_for", "caller", "calls", "flags", "is_closed", "parent_id", "span_id", "state", "trace_id")

    def __init__(
        self,
        trace_id: int,
        span_id: int,
        parent_id: int,
        flags: int,
        state: str = "",
        caller: RequestTrace | None = None,
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.flags = flags
        self.state = state
        self.caller = caller
        self.calls: list[tuple[str, Any]] = []
        self.is_closed = False
        self.asked_for = ""


class CallerSpan:
    """A span of a request, from which something else is asked: a feature function, or another model.

    Args:
        identify: returns the place of the request in its trace, which few ask for.
        number: from which the id of the span is derived.
    """

    __slots__ = ("_identify", "_number")

    def __init__(self, identify: Callable[[], RequestTrace], number: int) -> None:
        self._identify = identify
        self._number = number

    @property
    def trace(self) -> RequestTrace:
        """The place of the request in its trace."""
        return self._identify()

    @property
    def span_id(self) -> int:
        """The span's own id."""
        return derived_id(self._identify().span_id, self._number)

    @property
    def traceparent(self) -> str:
        """The header to send with what is asked."""
        return format_traceparent(self.trace.trace_id, self.span_id, self.trace.flags)

    @property
    def tracestate(self) -> str:
        """The header to send with what is asked; empty where there is none to send."""
        return self.trace.state


# -- Tracers -----------------------------------------------------------------------------------------------------------


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
