"""Runs one request for predictions from its first byte to its encoded reply, and counts its one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import perf_counter_ns

from tailcut.common.timings import Stage
from tailcut.errors import ClientGone, RequestTimeout, Shed, TailcutError
from tailcut.pipeline.pipeline import RequestContext
from tailcut.protocol.auth import Guard
from tailcut.protocol.bodies import Bodies
from tailcut.protocol.encodings import decoded
from tailcut.protocol.events import EVENT_STREAM, Events
from tailcut.protocol.failed_stage import unfinished_stage
from tailcut.protocol.http import (
    JSON,
    REQUEST_ID,
    Body,
    HeaderMap,
    Headers,
    Reply,
    deadline_ns,
    error_reply,
    new_request_id,
    request_id,
    tenant,
    timeout_ns,
    traceparent,
)
from tailcut.protocol.open_inference.codec import BinaryReply
from tailcut.protocol.operator_log import note
from tailcut.serving.deployment import Engine

_MOST_TOLD = 64
"""Variants by cache outcome and version: their headers are the same for each request."""

Work = Callable[[RequestContext, HeaderMap, bytes], Awaitable[bytes | BinaryReply]]
Parts = Callable[[RequestContext, HeaderMap, bytes], AsyncGenerator[bytes, None]]


class InferenceHandler:
    """What every route that answers with predictions shares.

    Args:
        guard: lets requests pass; the tenant of a token goes before the header's.
        bodies: of all requests that are arriving, to any model.
    """

    def __init__(self, engine: Engine, guard: Guard, bodies: Bodies) -> None:
        self.engine = engine
        self._guard = guard if guard.asks else None
        server = engine.deployment.server
        self._bodies = bodies
        self._max_timeout_ns = int(server.max_timeout_s * 1e9)
        self._tenant_header = server.tenant_header.lower()
        self._alike = True
        self._known_told: dict[tuple[str, str, str | None], Headers] = {}

    async def answer(self, route: str, work: Work, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request.

        Args:
            work: makes the reply's body of the request's, whose encoding is undone.
        """
        engine = self.engine
        context = engine.begin(route, perf_counter_ns())
        outcome = "internal"
        try:
            raw = await self.receive(context, headers, body)
            encoded = await work(context, headers, raw)
            context.timings.lap(Stage.ENCODE, perf_counter_ns())
            outcome = "ok"
            if isinstance(encoded, bytes):
                return Reply(200, self.headers(context, headers), encoded)
            return Reply(200, [*encoded.headers, *self.headers(context, headers)[1:]], encoded.body)
        except TailcutError as error:
            outcome = error.code
            return self.failed(context, headers, error)
        except asyncio.CancelledError as error:
            ended = self._ended(context, error)
            outcome = ended.code
            if isinstance(error, asyncio.CancelledError) and not (context.gone or engine.is_late(context)):
                raise  # by the server that carries this application: it has nobody left to answer
            return self.failed(context, headers, ended)
        finally:
            engine.end(context, outcome)

    async def stream(self, route: str, work: Parts, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request with events as its parts are made.

        What goes wrong before the first part is an error as anywhere; later, when the status is sent already, an
        event that says so ends the stream.

        Args:
            work: yields the parts, each one line of JSON.
        """
        context = self.engine.begin(route, perf_counter_ns())
        context.request_id = request_id(headers)
        events = Events(self.engine, context)
        try:
            raw = await self.receive(context, headers, body)
            await events.begin(work(context, headers, raw))
            return Reply(200, [*EVENT_STREAM, *self.headers(context, headers)[1:]], b"", events)
        except TailcutError as error:
            reply = self.failed(context, headers, error)  # before it is counted: this is the last stage
            await events.end(error.code)
            return reply
        except asyncio.CancelledError as error:
            ended = self._ended(context, error)
            reply = self.failed(context, headers, ended)
            await events.end(ended.code)
            if isinstance(error, asyncio.CancelledError) and not (context.gone or self.engine.is_late(context)):
                raise
            return reply
        except BaseException:
            await events.end("internal")
            raise

    async def receive(self, context: RequestContext, headers: HeaderMap, body: Body) -> bytes:
        """Read whose request it is, until when, and its body.

        Raises:
            TailcutError: what is wrong with any of them.
        """
        named = self._guard.inference(headers) if self._guard is not None else ""
        if named:
            context.tenant = named
        elif self._tenant_header:
            context.tenant = tenant(headers, self._tenant_header)
        asked_ns = timeout_ns(headers)
        if asked_ns:
            context.deadline_ns = self.deadline_ns(context, asked_ns)
        elif self._alike and not context.tenant and self.engine.is_loaded:
            refusal = self.engine.opened.pipeline.refused_unread(context.timings.start_ns)
            if refusal is not None:
                raise refusal
        # The engine cancels the reading of a body that is late: no timer per request.
        context.waiting = asyncio.current_task()
        bodies = self._bodies
        raw = await body() if bodies.is_small(headers) else await bodies.read(body, headers)
        context.waiting = None
        # Only now: whoever waits for the end of the connection must not read the body away.
        context.disconnected = body.client_disconnect
        if raw[:1] != b"{":  # no encoding of RFC 9110 begins so, and looking a header up costs more than this
            raw = await decoded(raw, headers, bodies.limit_bytes)
        context.timings.lap(Stage.RECEIVE, perf_counter_ns())
        return raw

    def differ(self) -> None:
        """Note that requests bring deadlines or priorities in their bodies: from now on all are read."""
        self._alike = False

    def deadline_ns(self, context: RequestContext, *asked_ns: int) -> int:
        """Return when a request must be answered; see ``http.deadline_ns``."""
        return deadline_ns(context.timings.start_ns, self.engine.timeout_ns, self._max_timeout_ns, *asked_ns)

    def headers(self, context: RequestContext, headers: HeaderMap) -> Headers:
        """Return the headers of an answer in JSON: where the time went and what answered."""
        reply = [JSON, ("server-timing", context.timings.server_timing()), *self._told(context)]
        if headers.get("traceparent") is not None and (parent := traceparent(headers)) is not None:
            reply.append(("traceparent", parent))
        return reply

    def _told(self, context: RequestContext) -> Headers:
        """Return the headers that say what answered."""
        pipeline = context.pipeline
        key = context.variant, context.cache, pipeline.served[1] if pipeline is not None else None
        known = self._known_told.get(key)
        if known is None:
            known = [("x-tailcut-variant", context.variant), ("x-tailcut-cache", context.cache)]
            if pipeline is not None:
                known.append(("x-tailcut-version", pipeline.served[1]))
            if len(self._known_told) >= _MOST_TOLD:
                self._known_told.clear()
            self._known_told[key] = known
        return known

    def failed(self, context: RequestContext, headers: HeaderMap, error: TailcutError) -> Reply:
        """Return the reply to a request that failed; what is the operator's business goes to the log."""
        now_ns = perf_counter_ns()
        context.timings.lap(unfinished_stage(context.timings.ns, error), now_ns)
        named = error.status != Shed.status  # refusing must cost little
        if named:
            context.request_id = context.request_id or request_id(headers) or new_request_id()
        reply = error_reply(error, note(self.engine.failures, context, error, now_ns))
        reply.headers.extend(self.headers(context, headers)[1:])
        if named:
            reply.headers.append((REQUEST_ID, context.request_id))
        return reply

    def _ended(self, context: RequestContext, error: BaseException) -> TailcutError:
        """Say why a request ended that was cancelled."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self.engine.is_late(context) and task is not None:
            task.uncancel()
            waited_s = (perf_counter_ns() - context.timings.start_ns) / 1e9
            return RequestTimeout(
                f"the request body was not complete after {waited_s:.1f} s, at its deadline",
                hint="send the body at once, or a longer timeout in x-tailcut-timeout-ms",
            )
        return ClientGone("the client closed the connection before its answer was ready")
