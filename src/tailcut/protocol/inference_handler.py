"""Runs one request for predictions from its first byte to its encoded reply, and counts its one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import perf_counter_ns

from tailcut.common.timings import Stage
from tailcut.errors import ClientGone, RequestTimeout, Shed, TailcutError
from tailcut.pipeline.early_shedding import refused_unread
from tailcut.pipeline.pipeline import Call
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

_READ_S = 10.0
_MOST_TOLD = 64
"""Variants by cache outcome and version: their headers are the same for each request."""

Work = Callable[[Call, HeaderMap, bytes], Awaitable[bytes | BinaryReply]]
Parts = Callable[[Call, HeaderMap, bytes], AsyncGenerator[bytes, None]]


class Answering:
    """What every route that answers with predictions shares.

    Args:
        guard: lets requests pass; the tenant of a token goes before the header's.
    """

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard if guard.asks else None
        deployment = engine.deployment
        self._max_body_bytes = int(deployment.server.max_body_bytes)
        self._bodies = Bodies(self._max_body_bytes, int(deployment.server.max_arriving_bytes))
        self._timeout_ns = int(deployment.slo.timeout_s * 1e9)
        self._max_timeout_ns = int(deployment.server.max_timeout_s * 1e9)
        self._tenant_header = deployment.server.tenant_header.lower()
        self._alike = True
        self._known_told: dict[tuple[str, str, str | None], Headers] = {}

    async def answer(self, route: str, work: Work, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request.

        Args:
            work: makes the reply's body of the request's, whose encoding is undone.
        """
        engine = self.engine
        call = engine.begin(route, perf_counter_ns())
        outcome = "internal"
        try:
            raw = await self.receive(call, headers, body)
            encoded = await work(call, headers, raw)
            call.timings.lap(Stage.ENCODE, perf_counter_ns())
            outcome = "ok"
            if isinstance(encoded, bytes):
                return Reply(200, self.headers(call, headers), encoded)
            return Reply(200, [*encoded.headers, *self.headers(call, headers)[1:]], encoded.body)
        except TailcutError as error:
            outcome = error.code
            return self.failed(call, headers, error)
        except asyncio.CancelledError as error:
            ended = self._ended(call, error)
            outcome = ended.code
            if isinstance(error, asyncio.CancelledError) and not (call.gone or engine.is_late(call)):
                raise  # by the server that carries this application: it has nobody left to answer
            return self.failed(call, headers, ended)
        finally:
            engine.end(call, outcome)

    async def stream(self, route: str, work: Parts, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request with events as its parts are made.

        What goes wrong before the first part is an error as anywhere; later, when the status is sent already, an
        event that says so ends the stream.

        Args:
            work: yields the parts, each one line of JSON.
        """
        call = self.engine.begin(route, perf_counter_ns())
        call.request_id = request_id(headers)
        events = Events(self.engine, call)
        try:
            raw = await self.receive(call, headers, body)
            await events.begin(work(call, headers, raw))
            return Reply(200, [*EVENT_STREAM, *self.headers(call, headers)[1:]], b"", events)
        except TailcutError as error:
            reply = self.failed(call, headers, error)  # before it is counted: this is the last stage
            await events.end(error.code)
            return reply
        except asyncio.CancelledError as error:
            ended = self._ended(call, error)
            reply = self.failed(call, headers, ended)
            await events.end(ended.code)
            if isinstance(error, asyncio.CancelledError) and not (call.gone or self.engine.is_late(call)):
                raise
            return reply
        except BaseException:
            await events.end("internal")
            raise

    async def receive(self, call: Call, headers: HeaderMap, body: Body) -> bytes:
        """Read whose request it is, until when, and its body.

        Raises:
            TailcutError: what is wrong with any of them.
        """
        named = self._guard.inference(headers) if self._guard is not None else ""
        if named:
            call.tenant = named
        elif self._tenant_header:
            call.tenant = tenant(headers, self._tenant_header)
        asked_ns = timeout_ns(headers)
        if asked_ns:
            call.deadline_ns = self.deadline_ns(call, asked_ns)
        elif self._alike and not call.tenant and self.engine.is_loaded:
            refusal = refused_unread(self.engine.running.path, call.timings.start_ns)
            if refusal is not None:
                raise refusal
        # The engine cancels the reading of a body that is late: no timer per request.
        call.waiting = asyncio.current_task()
        bodies = self._bodies
        raw = await body() if bodies.is_small(headers) else await bodies.read(body, headers)
        call.waiting = None
        # Only now: whoever waits for the end of the connection must not read the body away.
        call.disconnected = body.client_disconnect
        if raw[:1] != b"{":  # no encoding of RFC 9110 begins so, and looking a header up costs more than this
            raw = await decoded(raw, headers, self._max_body_bytes)
        call.timings.lap(Stage.RECEIVE, perf_counter_ns())
        return raw

    def differ(self) -> None:
        """Take notice that requests bring deadlines or priorities in their bodies: from now on all are read."""
        self._alike = False

    async def read(self, headers: HeaderMap, body: Body, limit_bytes: int) -> bytes:
        """Read the body of a request that is no prediction, for a bounded time.

        It is not counted among those that are arriving: its limit is small, and what loads a model is not to wait for
        what the model is asked.

        Raises:
            TooLarge: more than ``limit_bytes``.
            RequestTimeout: it does not arrive.
            ClientGone: the client left in its middle.
        """
        try:
            async with asyncio.timeout(_READ_S):
                return await decoded(await Bodies(limit_bytes).read(body, headers), headers, limit_bytes)
        except TimeoutError as error:
            raise RequestTimeout(
                f"the request's body had not arrived after {_READ_S:g} s", hint="send the body at once"
            ) from error

    def deadline_ns(self, call: Call, *asked_ns: int) -> int:
        """Return when a request must be answered; see ``http.deadline_ns``."""
        return deadline_ns(call.timings.start_ns, self._timeout_ns, self._max_timeout_ns, *asked_ns)

    def headers(self, call: Call, headers: HeaderMap) -> Headers:
        """Return the headers of an answer in JSON: where the time went and what answered."""
        reply = [JSON, ("server-timing", call.timings.server_timing()), *self._told(call)]
        if headers.get("traceparent") is not None and (parent := traceparent(headers)) is not None:
            reply.append(("traceparent", parent))
        return reply

    def _told(self, call: Call) -> Headers:
        """Return the headers that say what answered."""
        path = call.path
        key = call.variant, call.cache, path.served[1] if path is not None else None
        known = self._known_told.get(key)
        if known is None:
            known = [("x-tailcut-variant", call.variant), ("x-tailcut-cache", call.cache)]
            if path is not None:
                known.append(("x-tailcut-version", path.served[1]))
            if len(self._known_told) >= _MOST_TOLD:
                self._known_told.clear()
            self._known_told[key] = known
        return known

    def failed(self, call: Call, headers: HeaderMap, error: TailcutError) -> Reply:
        """Return the reply to a request that failed; what is the operator's business goes to the log."""
        now_ns = perf_counter_ns()
        call.timings.lap(unfinished_stage(call.timings.ns, error), now_ns)
        named = error.status != Shed.status  # refusing must cost little
        if named:
            call.request_id = call.request_id or request_id(headers) or new_request_id()
        reply = error_reply(error, note(self.engine.failures, call, error, now_ns))
        reply.headers.extend(self.headers(call, headers)[1:])
        if named:
            reply.headers.append((REQUEST_ID, call.request_id))
        return reply

    def _ended(self, call: Call, error: BaseException) -> TailcutError:
        """Say why a request ended that was cancelled."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self.engine.is_late(call) and task is not None:
            task.uncancel()
            waited_s = (perf_counter_ns() - call.timings.start_ns) / 1e9
            return RequestTimeout(
                f"the request's body had not arrived after {waited_s:.1f} s, when its deadline passed",
                hint="send the body at once, or a longer timeout in x-tailcut-timeout-ms",
            )
        return ClientGone("the client closed the connection before its answer was ready")
