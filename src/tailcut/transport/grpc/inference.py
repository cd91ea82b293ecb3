"""ModelInfer, and one request of ModelStreamInfer: from its message to its encoded reply, counted once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from reprlib import repr as shown
from time import perf_counter_ns
from typing import NoReturn

from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, NotFound, TailcutError
from tailcut.models.runtimes.base import StreamingRuntime
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.data_plane import DataPlane, ModelPlane
from tailcut.protocol.http import REQUEST_ID, HeaderMap, log_id
from tailcut.protocol.open_inference.codec import Inference
from tailcut.protocol.predict import PredictReplies
from tailcut.protocol.routing import Codecs, pipeline_of
from tailcut.transport.grpc.calls import SERVICE, Context, Metadata, abort, headers_of, read, remaining_ns
from tailcut.transport.grpc.codec import FINAL, MessageCodec
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse

Emit = Callable[[ModelInferResponse], Awaitable[None]]
_Message = bytes | ModelInferRequest
_METHODS = {"grpc_infer": "ModelInfer", "grpc_stream": "ModelStreamInfer"}
"""RPCs by route."""


class RpcFailed(Exception):
    """A request that ended with an error."""

    def __init__(self, error: TailcutError, incident: str, metadata: Metadata) -> None:
        super().__init__(error.message)
        self.error = error
        self.incident = incident
        self.metadata = metadata


class Inferences:
    """Answers inference requests to the models of a host.

    Args:
        log: the access log; None where there is none.
    """

    def __init__(self, plane: DataPlane, log: AccessLog | None = None) -> None:
        self._plane = plane
        self._log = log
        self._models: dict[str, _ModelInferences] = {}
        for name in plane.host.engines:
            self._add(name)
        plane.host.on_added.append(self._add)

    async def unary(self, message: bytes, context: Context) -> bytes:
        """Answer ModelInfer."""
        start_ns = perf_counter_ns()
        headers = headers_of(context)
        try:
            model, request = self._of(message, headers)
            source = request, remaining_ns(context)
            reply, metadata = await model.plane.answer(model, "grpc_infer", model.whole, headers, source, start_ns)
            context.set_trailing_metadata(metadata)
            return reply
        except RpcFailed as failed:
            error, metadata, incident = failed.error, failed.metadata, failed.incident
        # Only now: gRPC keeps what it raises, and with it all that was raised before.
        await abort(context, error, metadata, incident)

    async def in_stream(self, headers: Mapping[str, str], message: bytes, left_ns: int, emit: Emit) -> None:
        """Answer one request of ModelStreamInfer with one response, or with several where the model streams.

        Raises:
            Failed: any error; responses may have been emitted before it.
        """
        start_ns = perf_counter_ns()
        model, request = self._of(message, headers)
        source = request, left_ns, emit
        await model.plane.answer(model, "grpc_stream", model.parts, headers, source, start_ns)

    def _of(self, message: bytes, headers: Mapping[str, str]) -> tuple[_ModelInferences, _Message]:
        """Return whose request it is, and the request: not read yet where there is only one model.

        Raises:
            Failed: the model is unknown or could not be loaded, or the message is none. That is no end of a request to
                a model, and is not counted.
        """
        if self._plane.host.manifest.is_single:
            (only,) = self._models.values()
            return only, message
        try:
            self._plane.guard.inference(headers)
            request: ModelInferRequest = read(ModelInferRequest, message)
            self._plane.model(request.model_name)
        except TailcutError as error:
            raise RpcFailed(error, "", ((REQUEST_ID, log_id(headers)),)) from None
        return self._models[request.model_name], request

    def _add(self, name: str) -> None:
        self._models[name] = _ModelInferences(self._plane.model(name), self._log)


class _ModelInferences:
    """Answers inference requests to one model: the ``Door`` of gRPC."""

    def __init__(self, plane: ModelPlane, log: AccessLog | None = None) -> None:
        self.plane = plane
        self._engine = plane.engine
        self._log = log
        self._codecs = Codecs(MessageCodec, plane.engine)
        self._replies = PredictReplies()
        for route in _METHODS:
            plane.engine.recorder.expect(route)

    def answered(self, call: RequestContext, headers: HeaderMap, reply: bytes) -> tuple[bytes, Metadata]:
        """Return the reply with its metadata."""
        metadata = tuple(self._replies.headers(call, headers)[1:])
        if self._log is not None:
            self._note(self._log, call, headers, metadata, size_bytes=len(reply))
        return reply, metadata

    def failed(self, call: RequestContext, headers: HeaderMap, error: TailcutError, incident: str) -> NoReturn:
        """Raise Failed."""
        call.request_id = call.request_id or log_id(headers)
        metadata = (*self._replies.headers(call, headers)[1:], (REQUEST_ID, call.request_id))
        if self._log is not None:
            self._note(self._log, call, headers, metadata, error=error, incident=incident)
        raise RpcFailed(error, incident, metadata) from None  # in no variable here: a circle would keep the request

    async def whole(self, call: RequestContext, headers: HeaderMap, source: tuple[_Message, int]) -> bytes:
        """Answer ModelInfer.

        Args:
            source: the message, and the nanoseconds to gRPC's own deadline; 0 where there is none.
        """
        pipeline, codec, inference = self._admitted(call, headers, *source)
        outputs = await pipeline.infer(call, inference.inputs, inference.rows, inference.outputs)
        if call.logged is not None:
            call.logged.answer(outputs)
        return codec.encode(inference, outputs).SerializeToString()

    async def parts(self, call: RequestContext, headers: HeaderMap, source: tuple[_Message, int, Emit]) -> bytes:
        """Answer one request of ModelStreamInfer."""
        message, left_ns, emit = source
        pipeline, codec, inference = self._admitted(call, headers, message, left_ns)
        runtime = self._engine.opened.streaming
        if runtime is None:
            outputs = await pipeline.infer(call, inference.inputs, inference.rows, inference.outputs)
            if call.logged is not None:
                call.logged.answer(outputs)
            await emit(_marked(codec.encode(inference, outputs), is_final=True))
        else:
            await self._streamed(call, codec, inference, runtime, emit)
            if inference.wants_final:
                await emit(_marked(codec.empty(inference), is_final=True))
        return b""

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
        self, call: RequestContext, headers: HeaderMap, message: _Message, left_ns: int
    ) -> tuple[Pipeline, MessageCodec, Inference]:
        """Identify, read, check and admit a request."""
        self.plane.identify(call, headers, left_ns)
        call.timings.lap(Stage.RECEIVE, perf_counter_ns())
        request = read(ModelInferRequest, message) if isinstance(message, bytes) else message
        name = self._engine.deployment.name
        if request.model_name != name:
            raise NotFound(f"model {shown(request.model_name)} is unknown", hint=f"this server has {name!r}")
        pipeline = pipeline_of(self._engine, request.model_version)
        codec = self._codecs.of(pipeline.serving)
        inference = codec.decode(request)
        if call.logged is not None:
            call.logged.take(inference.inputs, "grpc", inference.outputs)
        call.priority = inference.priority
        self.plane.bound(call, inference.timeout_ns)
        call.timings.lap(Stage.VALIDATE, perf_counter_ns())
        # A stream is not cached: what would recall its answer is not on its way.
        pipeline.admit(call, inference.rows, recalls=pipeline.recalls_tensors and not self._engine.opened.streams)
        return pipeline, codec, inference

    def _note(
        self,
        log: AccessLog,
        call: RequestContext,
        headers: HeaderMap,
        metadata: Metadata,
        *,
        size_bytes: int = 0,
        error: TailcutError | None = None,
        incident: str = "",
    ) -> None:
        """Write a request's line to the access log, if it is one of those."""
        model, took_ns = self._engine.deployment.name, call.timings.total_ns
        if not log.wants(model, took_ns, failed=error is not None):
            return
        status, said = "OK", None
        if error is not None:
            status, said = error.grpc_status, {"code": error.code}
            if incident:
                said["incident"] = incident
        path = f"/{SERVICE}/{_METHODS[call.route]}"
        log.write(model, "GRPC", path, status, took_ns, size_bytes, headers, metadata, said)


def _marked(reply: ModelInferResponse, *, is_final: bool) -> ModelInferResponse:
    reply.parameters[FINAL].bool_param = is_final
    return reply
