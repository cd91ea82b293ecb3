"""The life of a request to a model, whatever protocol brings it: begun, identified, read, answered, counted once.

Each protocol is a door to it. A door reads bytes and writes replies; everything in between is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import Protocol, TypeVar

from tailcut.common.timings import Stage
from tailcut.errors import (
    BadRequest,
    ClientGone,
    DeadlineExceeded,
    HookError,
    RequestTimeout,
    Shed,
    TailcutError,
    WrongFields,
)
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import (
    REQUEST_ID,
    TIMEOUT,
    Bodies,
    Body,
    HeaderMap,
    checked_tenant,
    decoded,
    log_id,
    request_id,
    tenant,
    timeout_ns,
    traceparent,
)
from tailcut.protocol.local_model import LocalModel
from tailcut.protocol.operator_log import told
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host

S = TypeVar("S")  # the source that a protocol reads its requests from
A = TypeVar("A")  # an answer
R = TypeVar("R")  # a protocol's reply
A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Door(Protocol[A_contra, R_co]):
    """A protocol's replies."""

    def answered(self, context: RequestContext, headers: HeaderMap, answer: A_contra, /) -> R_co:
        """Return the reply with an answer."""
        ...

    def failed(self, context: RequestContext, headers: HeaderMap, error: TailcutError, incident: str, /) -> R_co:
        """Return the reply with an error, or raise it as the protocol does.

        Args:
            incident: under which the server's log says more; empty where it does not.
        """
        ...


class DataPlane:
    """The models of a host and the limits that hold for all of them; every protocol of the process shares it.

    Args:
        guard: checks tokens; by default predictions need none, and loading and unloading models is refused.
    """

    def __init__(self, host: Host, guard: Guard | None = None) -> None:
        self.host = host
        self.guard = guard or Guard()
        self._bodies = Bodies(int(host.server.max_body_bytes), int(host.server.max_arriving_bytes))
        self._models: dict[str, ModelPlane] = {}
        host.open_local = self.local

    def local(self, name: str, key: Sequence[str]) -> LocalModel:
        """Return a model for the feature group of another.

        Args:
            key: columns of the group's key.
        """
        return LocalModel(self.model(name), key)

    def model(self, name: str) -> ModelPlane:
        """Return the part that is of one model.

        Raises:
            NotFound: there is none of that name.
            NotReady: its manifest could not be read.
        """
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelPlane(self.host.engine(name), self.guard, self._bodies)
        return found


class ModelPlane:
    """The lifecycle of the requests to one model.

    Args:
        guard: lets requests pass; the tenant of a token goes before the header's.
        bodies: of all requests that are arriving, to any model.
    """

    def __init__(self, engine: Engine, guard: Guard, bodies: Bodies) -> None:
        self.engine = engine
        self._guard = guard if guard.asks else None
        self._bodies = bodies
        server = engine.deployment.server
        self._max_timeout_ns = int(server.max_timeout_s * 1e9)
        self._tenant_header = server.tenant_header.lower()
        self._alike = True
        self._tracer = engine.host.tracer

    async def answer(
        self,
        door: Door[A, R],
        route: str,
        work: Callable[[RequestContext, HeaderMap, S], Awaitable[A]],
        headers: HeaderMap,
        source: S,
        start_ns: int = 0,
    ) -> R:
        """Answer one request, and count its end; that of a stream is counted when the stream ends.

        Args:
            work: identifies the request, reads it and answers it.
            start_ns: when the request began; 0 for now.

        Raises:
            CancelledError: the client is gone, or its own deadline has passed.
        """
        engine = self.engine
        context = engine.begin(route, start_ns or perf_counter_ns())
        if self._tracer is not None:
            context.tracer = self._tracer
            if "traceparent" in headers or REQUEST_ID in headers:  # else they would be kept in memory for nothing
                context.headers = headers
        outcome = TailcutError.code
        try:
            answer = await work(context, headers, source)
            if not context.is_streamed:
                context.timings.lap(Stage.ENCODE, perf_counter_ns())
            reply = door.answered(context, headers, answer)
            outcome = "" if context.is_streamed else "ok"
            return reply
        except asyncio.CancelledError:
            ended = self._cancelled(context)
            outcome = ended.code
            if not context.gone and not engine.is_late(context):
                raise
            return door.failed(context, headers, *self._failed(context, headers, ended))
        except Exception as error:
            if isinstance(error, TailcutError):
                outcome = error.code
            return door.failed(context, headers, *self._failed(context, headers, error))
        finally:
            if outcome:
                engine.end(context, outcome)

    def identify(self, context: RequestContext, headers: HeaderMap, left_ns: int = 0) -> None:
        """Authenticate a request, and read its tenant and its deadline.

        Args:
            left_ns: nanoseconds to the deadline of the protocol itself; 0 where there is none.

        Raises:
            Unauthorized: it has no token that is known.
            BadRequest: its tenant is missing, or a header is wrong.
        """
        if self._guard is not None and (named := self._guard.inference(headers)):
            context.tenant = named
        elif self._tenant_header:
            context.tenant = tenant(headers, self._tenant_header)
        if context.logged is not None:
            context.logged.name(request_id(headers), traceparent(headers))
        asked = headers.get(TIMEOUT)
        if asked is not None:
            self.bound(context, timeout_ns(asked))
        if left_ns:
            self.bound(context, left_ns)

    def carry(self, context: RequestContext, tenant: str, left_ns: int) -> None:
        """Take the tenant and the deadline of a caller in this process; it needs no token.

        Args:
            left_ns: nanoseconds to the caller's deadline; 0 where it has none.

        Raises:
            BadRequest: the model has tenants, and the caller's is missing or malformed.
        """
        if tenant or self._tenant_header:
            context.tenant = checked_tenant(tenant, "the argument tenant", 'pass tenant="your-tenant"')
        self.bound(context, left_ns)
        context.timings.lap(Stage.RECEIVE, perf_counter_ns())

    async def receive(self, context: RequestContext, headers: HeaderMap, body: Body) -> bytes:
        """Identify a request whose body is still to come, and read its body.

        Raises:
            Shed: there is no room for a request of its kind, or for its body.
            TailcutError: see ``identify``, and what is wrong with its body.
        """
        self.identify(context, headers)
        # One that is logged is read before it is shed: a log without what was asked could not be replayed.
        if self._alike and not context.asked_ns and not context.tenant and context.logged is None:
            variants = self.engine.variants
            start_ns = context.timings.start_ns
            if variants is not None and (refusal := variants.pipeline.refused_unread(start_ns)) is not None:
                raise refusal
        # The engine cancels the reading of a body that is late: no timer per request.
        context.waiting = asyncio.current_task()
        bodies = self._bodies
        raw = await body() if bodies.is_small(headers) else await bodies.read(body, headers)
        context.waiting = None
        # Set after the body is read: waiting for a disconnect reads from the connection.
        context.disconnected = body.client_disconnect
        if raw[:1] != b"{":  # no encoding of RFC 9110 begins so, and looking a header up costs more than this
            raw = await decoded(raw, headers, bodies.limit_bytes)
        context.timings.lap(Stage.RECEIVE, perf_counter_ns())
        return raw

    def bound(self, context: RequestContext, asked_ns: int) -> None:
        """Take a deadline that the client asks for, at most ``server.max_timeout``; the shortest of several counts.

        Args:
            asked_ns: nanoseconds from the request's begin; 0 where it asks for none.
        """
        if asked_ns and not 0 < context.asked_ns <= asked_ns:
            context.asked_ns = asked_ns
            context.deadline_ns = context.timings.start_ns + min(asked_ns, self._max_timeout_ns)

    def bound_by_body(self, context: RequestContext, asked_ns: int, priority: int = 0) -> None:
        """Take the deadline and the priority that a body asks for; from now on no request is shed unread."""
        self._alike = False
        context.priority = priority
        self.bound(context, asked_ns)

    def _failed(self, context: RequestContext, headers: HeaderMap, error: Exception) -> tuple[TailcutError, str]:
        """Return what the client hears of an error, and the incident: the operator's business goes to the log."""
        now_ns = perf_counter_ns()
        context.timings.lap(unfinished_stage(context.timings.ns, error), now_ns)
        if not isinstance(error, Shed):  # refusing must cost little
            context.request_id = context.request_id or log_id(headers)
        return told(self.engine.failures, context, error, now_ns)

    def _cancelled(self, context: RequestContext) -> TailcutError:
        """Return why a request ended that was cancelled."""
        now_ns, task = perf_counter_ns(), asyncio.current_task()
        if self.engine.is_late(context) and task is not None:
            task.uncancel()
            return RequestTimeout(
                f"the request body was not complete after {(now_ns - context.timings.start_ns) / 1e9:.1f} s, at its "
                "deadline",
                hint="send the body at once, or a longer timeout in x-tailcut-timeout-ms",
            )
        if not context.gone and now_ns >= context.deadline_ns:
            return DeadlineExceeded("the client gave up at its deadline")
        return ClientGone("the client closed the connection before its answer was ready")


def unfinished_stage(ns: list[int], error: Exception) -> Stage:
    """Return the stage that a failed request was in, so that the time since its last lap is not lost.

    Args:
        ns: nanoseconds of each stage that has ended.
    """
    for stage in (Stage.RECEIVE, Stage.VALIDATE, Stage.ADMIT):
        if not ns[stage]:
            return stage
    if type(error) in {HookError, BadRequest, WrongFields}:
        return Stage.POSTPROCESS if ns[Stage.INFER] else Stage.PREPROCESS
    return Stage.ENCODE
