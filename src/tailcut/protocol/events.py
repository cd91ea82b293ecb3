"""An answer in parts as server-sent events, and the one end of its request.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html ("data: " and a line, then an empty line).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from time import perf_counter_ns

import msgspec

from tailcut.errors import ClientGone, TooLarge
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.operator_log import told
from tailcut.serving.engine import Engine

EVENT_STREAM = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),  # or nginx would send it in one piece
)


class Events:
    """Yields each part of an answer as an event; see ``http.Chunks``."""

    def __init__(self, engine: Engine, context: RequestContext, parts: AsyncGenerator[bytes, None]) -> None:
        self._engine = engine
        self._call = context
        self._parts = parts
        self._first: bytes | None = None
        self._is_ended = False
        self.failure: dict[str, str] | None = None

    async def begin(self) -> None:
        """Make the first part; raises what that raises. From then on the request ends with the stream."""
        self._first = await anext(self._parts, None)
        self._call.is_streamed = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events()

    def left_s(self) -> float:
        """Return the seconds until the request's deadline; 0 where all streams end now."""
        return 0.0 if self._engine.streams.are_stopping else (self._call.deadline_ns - perf_counter_ns()) / 1e9

    async def aclose(self) -> None:
        """End the request; as one whose client left, where it was not at its end."""
        await self.end(ClientGone.code)

    async def end(self, outcome: str, incident: str = "") -> None:
        """Count the request's one end, and let what makes the parts stop."""
        if self._is_ended:
            return
        self._is_ended = True
        if outcome != "ok":
            self.failure = {"code": outcome, "incident": incident} if incident else {"code": outcome}
        try:
            await self._parts.aclose()
        finally:
            self._engine.end(self._call, outcome)

    async def _events(self) -> AsyncIterator[bytes]:
        part = self._first
        size, most = 0, int(self._engine.deployment.server.max_stream_bytes)
        try:
            while part is not None:
                size += len(part)
                if size > most:
                    raise TooLarge(
                        f"the answer is over the limit of {most} bytes of a stream",
                        hint="ask for less, or raise server.max_stream",
                    )
                yield _event(part)
                part = await anext(self._parts, None)
            await self.end("ok")
        except asyncio.CancelledError:
            await self.end(ClientGone.code)
            if not self._call.gone:
                raise
        except Exception as error:
            yield await self._failed(error)

    async def _failed(self, error: Exception) -> bytes:
        told_error, incident = told(self._engine.failures, self._call, error, perf_counter_ns())
        await self.end(told_error.code, incident)
        said = {"error": told_error.message, "code": told_error.code, "hint": told_error.hint}
        return _event(msgspec.json.encode({**said, "incident": incident} if incident else said))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
