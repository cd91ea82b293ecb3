"""Replies that the user's asynchronous generators make piece by piece while they are sent: each piece is code.

Others are asked for their pieces in threads (``threads``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import FunctionType
from typing import Any

from tailcut.profiler.recording.tracing import CODE, DROPPED_NS, close_span, current, open_under, tracer


def streamed(content: Any) -> Any:
    """An asynchronous iterator of the user's with a span around each piece; anything else as it is."""
    if current.get() is None or not hasattr(content, "__aiter__"):
        return content
    method = getattr(type(content), "__anext__", None)
    label, place, own = tracer.places.describe(method if isinstance(method, FunctionType) else content)
    return _Pieces(content, label, place) if own else content


class _Pieces:
    def __init__(self, content: Any, label: str, place: str) -> None:
        self._content = content
        self._name = label, place

    def __aiter__(self) -> AsyncIterator[Any]:
        pieces = self._content.__aiter__()
        # What makes a new iterator each time can be read again, and stays so.
        return self if pieces is self._content else _Pieces(pieces, *self._name)

    async def __anext__(self) -> Any:
        parent = current.get()
        if parent is None:
            return await self._content.__anext__()
        span = open_under(parent, CODE, *self._name)
        try:
            return await self._content.__anext__()
        finally:
            close_span(span)
            spans = span.trace.spans
            # A reply has many pieces, and a request may have only so many spans.
            if spans and spans[-1] is span and span.end_ns - span.start_ns < DROPPED_NS:
                spans.pop()

    def __getattr__(self, name: str) -> Any:
        if name == "_content":
            raise AttributeError(name)
        return getattr(self._content, name)
