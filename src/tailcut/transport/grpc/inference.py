"""ModelInfer, and one request of ModelStreamInfer: from its message to its encoded reply, counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from time import perf_counter_ns
from typing import TypeVar

from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, ClientGone, DeadlineExceeded, TailcutError
from tailcut.models.runtimes.base import StreamingRuntime
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.auth import Guard
from tailcut.protocol.failed_stage import unfinished_stage
from tailcut.protocol.http import REQUEST_ID, deadline_ns, new_request_id, request_id, tenant, timeout_ns, traceparent
from tailcut.protocol.open_inference.parameters import flag, priority
from tailcut.protocol.open_inference.parameters import timeout_ns as asked_timeout_ns
from tailcut.protocol.operator_log import note
from tailcut.protocol.routing import codec_for
from tailcut.serving.deployment import Engine
from tailcut.serving.host import Host
from tailcut.transport.grpc.calls import SERVICE, Context, Metadata, abort, headers_of, remaining_ns, unforeseen
from tailcut.transport.grpc.codec import FINAL, WANTS_FINAL, Inference, MessageCodec, parse
from tailcut.transport.grpc.models import pipeline_of
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse

T = TypeVar("T")
Emit = Callable[[ModelInferResponse], Awaitable[None]]


class Failed(Exception):
    """A request that was counted and ended with an error."""

    def __init__(self, error: TailcutError, incident: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.incident = incident


class Inferences:
    """Answers inference requests to the models of a host.

    Args:
        guard: lets requests pass; the tenant of a token goes before the header's.
        log: the access log; None where there is none.
    """

    def __init__(self, host: Host, guard: Guard, log: AccessLog | None = None) -> None:
        self._host = host
        self._guard = guard
        self._log = log
        self._models = {name: _ModelInferences(engine, guard, log) for name, engine in host.engines.items()}

    async def unary(self, message: bytes, context: Context) -> bytes:
        """Answer ModelInfer."""
        start_ns = perf_counter_ns()
        headers = headers_of(context)
        try:
            model, request = self._of(message, headers)
        except TailcutError as error:
            await abort(context, error, ((REQUEST_ID, request_id(headers) or new_request_id()),))
        return await model.unary(start_ns, headers, request, context)

    async def in_stream(self, headers: Mapping[str, str], message: bytes, left_ns: int, emit: Emit) -> None:
        """Answer one request of ModelStreamInfer with one response, or with several where the model streams.

        Raises:
            Failed: any error; responses may have been emitted before it.
        """
        start_ns = perf_counter_ns()
        try:
            model, request = self._of(message, headers)
        except TailcutError as error:
            raise Failed(error, "") from None
        await model.in_stream(start_ns, headers, request, left_ns, emit)

    def _of(self, message: bytes, headers: Mapping[str, str]) -> tuple[_ModelInferences, bytes | ModelInferRequest]:
        """Return whose request it is, and the request: not read yet where there is only one model.

        Raises:
            TailcutError: the model is unknown or could not be loaded, or the message is none. That is no end of a
                request to a model, and is not counted.
        """
        if self._host.manifest.is_single:
            (only,) = self._models.values()
            return only, message
        self._guard.inference(headers)
        request = parse(message)
        name = request.model_name
        engine = self._host.engine(name)
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = _ModelInferences(engine, self._guard, self._log)
        return found, request


class _ModelInferences:
    """Answers inference requests to one model."""

    def __init__(self, engine: Engine, guard: Guard, log: AccessLog | None = None) -> None:
        self._engine = engine
        self._log = log
        self._guard = guard if guard.asks else None
        server = engine.deployment.server
        self._max_timeout_ns = int(server.max_timeout_s * 1e9)
        self._tenant_header = server.tenant_header.lower()
        self._codec: tuple[Pipeline, MessageCodec] | None = None
        for route in ("grpc_infer", "grpc_stream"):
            engine.recorder.expect(route)

    async def unary(
        self, start_ns: int, headers: Mapping[str, str], message: bytes | ModelInferRequest, context: Context
    ) -> bytes:
        """Answer ModelInfer."""
        call = self._engine.begin("grpc_infer", start_ns)
        call.request_id = request_id(headers)
        try:
            reply = await self._counted(call, self._whole(call, headers, message, remaining_ns(context)))
        except Failed as failed:
            metadata = (*_metadata(call, headers), (REQUEST_ID, call.request_id))
            self._note("ModelInfer", call, headers, metadata, failed)
            await abort(context, failed.error, metadata, failed.incident)
        metadata = _metadata(call, headers)
        if self._log is not None:
            self._note("ModelInfer", call, headers, metadata, size_bytes=len(reply))
        context.set_trailing_metadata(metadata)
        return reply

    async def in_stream(
        self, start_ns: int, headers: Mapping[str, str], message: bytes | ModelInferRequest, left_ns: int, emit: Emit
    ) -> None:
        """Answer one request of ModelStreamInfer; raises Failed."""
        call = self._engine.begin("grpc_stream", start_ns)
        call.request_id = request_id(headers)
        try:
            await self._counted(call, self._parts(call, headers, message, left_ns, emit))
        except Failed as failed:
            metadata = (*_metadata(call, headers), (REQUEST_ID, call.request_id))
            self._note("ModelStreamInfer", call, headers, metadata, failed)
            raise
        if self._log is not None:
            self._note("ModelStreamInfer", call, headers, _metadata(call, headers))

    async def _counted(self, call: RequestContext, work: Awaitable[T]) -> T:
        """Count a request's one end.

        Raises:
            Failed: any error.
            CancelledError: the client is gone or its deadline has passed; nobody hears the answer.
        """
        engine = self._engine
        outcome = "internal"
        try:
            answer = await work
            outcome = "ok"
            return answer
        except TailcutError as error:
            outcome = error.code
            raise self._failed(call, error) from None
        except asyncio.CancelledError:
            late = perf_counter_ns() >= call.deadline_ns
            outcome = DeadlineExceeded.code if late else ClientGone.code
            raise
        except Exception as error:
            raise Failed(*unforeseen(engine.failures, call.route, error, call.request_id)) from error
        finally:
            engine.end(call, outcome)

    async def _whole(
        self, call: RequestContext, headers: Mapping[str, str], message: bytes | ModelInferRequest, left_ns: int
    ) -> bytes:
        pipeline, codec, inference = self._admitted(call, headers, message, left_ns)
        outputs = await pipeline.infer(call, inference.inputs, inference.rows, inference.outputs)
        reply = codec.encode(inference, outputs).SerializeToString()
        call.timings.lap(Stage.ENCODE, perf_counter_ns())
        return reply

    async def _parts(
        self,
        call: RequestContext,
        headers: Mapping[str, str],
        message: bytes | ModelInferRequest,
        left_ns: int,
        emit: Emit,
    ) -> None:
        pipeline, codec, inference = self._admitted(call, headers, message, left_ns)
        wants_final = flag(inference.parameters, WANTS_FINAL, default=False)
        runtime = self._engine.opened.streaming
        if runtime is None:
            outputs = await pipeline.infer(call, inference.inputs, inference.rows, inference.outputs)
            await emit(_marked(codec.encode(inference, outputs), is_final=True))
        else:
            await self._streamed(call, codec, inference, runtime, emit)
            if wants_final:
                await emit(_marked(codec.empty(inference.id), is_final=True))
        call.timings.lap(Stage.ENCODE, perf_counter_ns())

    async def _streamed(
        self, call: RequestContext, codec: MessageCodec, inference: Inference, runtime: StreamingRuntime, emit: Emit
    ) -> None:
        if inference.rows != 1:
            raise BadRequest(
                f"the request has {inference.rows} rows, but model {self._engine.deployment.name!r} streams one row "
                "per request",
                hint="send one request per row",
            )
        parts = self._engine.streams.run(call, runtime, inference.inputs, inference.outputs)
        async with aclosing(parts):
            async for part in parts:
                await emit(_marked(codec.encode(inference, part), is_final=False))

    def _admitted(
        self, call: RequestContext, headers: Mapping[str, str], message: bytes | ModelInferRequest, left_ns: int
    ) -> tuple[Pipeline, MessageCodec, Inference]:
        """Read, check and admit a request.

        Args:
            left_ns: nanoseconds to gRPC's own deadline; 0 where there is none.
        """
        named = self._guard.inference(headers) if self._guard is not None else ""
        if named:
            call.tenant = named
        elif self._tenant_header:
            call.tenant = tenant(headers, self._tenant_header)
        header_ns = timeout_ns(headers)
        call.timings.lap(Stage.RECEIVE, perf_counter_ns())
        request = parse(message) if isinstance(message, bytes) else message
        pipeline, codec = self._opened(request)
        inference = codec.decode(request)
        call.priority = priority(inference.parameters)
        asked_ns = asked_timeout_ns(inference.parameters)
        if left_ns or header_ns or asked_ns:
            limits = (self._engine.timeout_ns, self._max_timeout_ns, left_ns, header_ns, asked_ns)
            call.deadline_ns = deadline_ns(call.timings.start_ns, *limits)
        call.timings.lap(Stage.VALIDATE, perf_counter_ns())
        # A stream is not cached: what would recall its answer is not on its way.
        pipeline.admit(
            call, inference.rows, recalls=pipeline.tensor_cache is not None and not self._engine.opened.streams
        )
        return pipeline, codec, inference

    def _opened(self, request: ModelInferRequest) -> tuple[Pipeline, MessageCodec]:
        pipeline = pipeline_of(self._engine, request.model_name, request.model_version)
        if self._codec is None or self._codec[0] is not pipeline:
            most = self._engine.deployment.batching.max_queue_rows
            codec = codec_for(MessageCodec, self._engine, pipeline, most)
            self._codec = pipeline, codec
        return self._codec

    def _note(
        self,
        method: str,
        call: RequestContext,
        headers: Mapping[str, str],
        metadata: Metadata,
        failed: Failed | None = None,
        size_bytes: int = 0,
    ) -> None:
        """Write a request's line to the access log, if it is one of those."""
        model, took_ns = self._engine.deployment.name, call.timings.total_ns
        if self._log is None or not self._log.wants(model, took_ns, failed=failed is not None):
            return
        status, error = "OK", None
        if failed is not None:
            status, error = failed.error.grpc_status, {"code": failed.error.code}
            if failed.incident:
                error["incident"] = failed.incident
        self._log.write(model, "GRPC", f"/{SERVICE}/{method}", status, took_ns, size_bytes, headers, metadata, error)

    def _failed(self, call: RequestContext, error: TailcutError) -> Failed:
        now_ns = perf_counter_ns()
        call.request_id = call.request_id or new_request_id()
        call.timings.lap(unfinished_stage(call.timings.ns, error), now_ns)
        return Failed(error, note(self._engine.failures, call, error, now_ns))


def _marked(reply: ModelInferResponse, *, is_final: bool) -> ModelInferResponse:
    reply.parameters[FINAL].bool_param = is_final
    return reply


def _metadata(call: RequestContext, headers: Mapping[str, str]) -> Metadata:
    pairs = [
        ("server-timing", call.timings.server_timing()),
        ("x-tailcut-variant", call.variant),
        ("x-tailcut-cache", call.cache),
    ]
    if call.pipeline is not None:
        pairs.append(("x-tailcut-version", call.pipeline.served[1]))
    parent = traceparent(headers)
    if parent is not None:
        pairs.append(("traceparent", parent))
    return tuple(pairs)
