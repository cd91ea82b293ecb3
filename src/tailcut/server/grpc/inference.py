"""ModelInfer and ModelStreamInfer: one request from its message to its encoded reply, counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from tailcut.core.timings import Stage
from tailcut.engine.call import Call
from tailcut.engine.engine import Engine
from tailcut.engine.path import Path
from tailcut.errors import ClientGone, DeadlineExceeded, NotReady, TailcutError
from tailcut.server.grpc.calls import EOF, Context, Metadata, abort, headers_of, remaining_ns, unforeseen
from tailcut.server.grpc.codec import FINAL, MessageCodec, parse, timeout_of
from tailcut.server.grpc.models import path_of
from tailcut.server.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tailcut.server.http import deadline_ns, tenant, timeout_ns, traceparent
from tailcut.server.incidents import note
from tailcut.server.unfinished import unfinished_stage

_AHEAD = 256
"""Requests of one stream that are being answered at once; beyond it the stream is not read, so the client waits."""


class Failed(Exception):
    """A request that was counted and ended with an error."""

    def __init__(self, error: TailcutError, incident: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.incident = incident


class Inferences:
    """Answers inference requests of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        deployment = engine.deployment
        self._timeout_ns = int(deployment.slo.timeout_s * 1e9)
        self._max_timeout_ns = int(deployment.server.max_timeout_s * 1e9)
        self._tenant_header = deployment.server.tenant_header.lower()
        self._codec: tuple[Path, MessageCodec] | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End every stream once what it has sent is answered: an idle one would hold the stop up."""
        self._stopping.set()

    async def unary(self, message: bytes, context: Context) -> bytes:
        """Answer ModelInfer."""
        call = self._engine.begin("grpc_infer", perf_counter_ns())
        headers = headers_of(context)
        try:
            reply = await self._answer(call, headers, message, remaining_ns(context))
        except Failed as failed:
            await abort(context, failed.error, _metadata(call, headers), failed.incident)
        context.set_trailing_metadata(_metadata(call, headers))
        return reply.SerializeToString()

    async def _answer(self, call: Call, headers: Mapping[str, str], message: bytes, left_ns: int) -> ModelInferResponse:
        """Run one request to its reply, and count its one end.

        Raises:
            Failed: any error.
            CancelledError: the client is gone or its deadline has passed; nobody hears the answer.
        """
        engine = self._engine
        outcome = "internal"
        try:
            if self._tenant_header:
                call.tenant = tenant(headers, self._tenant_header)
            asked_ns = timeout_ns(headers)
            call.timings.lap(Stage.RECEIVE, perf_counter_ns())
            request = parse(message)
            path, codec = self._opened(request)
            inference = codec.decode(request)
            wished_ns = timeout_of(inference.parameters)
            if left_ns or asked_ns or wished_ns:
                limits = (self._timeout_ns, self._max_timeout_ns, left_ns, asked_ns, wished_ns)
                call.deadline_ns = deadline_ns(call.timings.start_ns, *limits)
            call.timings.lap(Stage.VALIDATE, perf_counter_ns())
            path.admit(call, inference.rows)
            outputs = await path.infer(call, inference.inputs, inference.rows, inference.outputs)
            reply = codec.encode(inference, outputs)
            call.timings.lap(Stage.ENCODE, perf_counter_ns())
            outcome = "ok"
            return reply
        except TailcutError as error:
            outcome = error.code
            raise self._failed(call, error) from None
        except asyncio.CancelledError:
            late = perf_counter_ns() >= call.deadline_ns
            outcome = DeadlineExceeded.code if late else ClientGone.code
            raise
        except Exception as error:
            raise Failed(*unforeseen(engine, "ModelInfer", error)) from error
        finally:
            engine.end(call, outcome)

    def _opened(self, request: ModelInferRequest) -> tuple[Path, MessageCodec]:
        path = path_of(self._engine, request.model_name, request.model_version)
        if self._codec is None or self._codec[0] is not path:
            deployment = self._engine.deployment
            codec = MessageCodec(
                deployment.name,
                path.served[1],
                path.specs,
                path.outputs,
                max_rows=deployment.batching.max_queue_rows,
                nan_outputs=[tensor.name for tensor in deployment.model.outputs if tensor.allow_nan],
            )
            self._codec = path, codec
        return self._codec

    def _failed(self, call: Call, error: TailcutError) -> Failed:
        now_ns = perf_counter_ns()
        call.timings.lap(unfinished_stage(call.timings.ns, error), now_ns)
        return Failed(error, note(self._engine.failures, call.route, error, now_ns))

    # -- Streams -------------------------------------------------------------------------------------------------------

    async def stream(self, _: object, context: Context) -> None:
        """Answer ModelStreamInfer: each request when it is done, an error as a message of the stream."""
        headers = headers_of(context)
        room = asyncio.Semaphore(_AHEAD)
        writing = asyncio.Lock()

        async def one(message: bytes) -> None:
            try:
                reply = await self._one_of_stream(message, headers, remaining_ns(context))
                async with writing:
                    await context.write(reply.SerializeToString())
            finally:
                room.release()

        ended = asyncio.ensure_future(self._stopping.wait())
        try:
            async with asyncio.TaskGroup() as tasks:
                while (message := await _next(context, ended)) is not None:
                    await room.acquire()
                    tasks.create_task(one(message))
        finally:
            ended.cancel()
        if self._stopping.is_set():
            await abort(context, NotReady("the server is shutting down", hint="open the stream again, elsewhere"))

    async def _one_of_stream(
        self, message: bytes, headers: Mapping[str, str], left_ns: int
    ) -> ModelStreamInferResponse:
        call = self._engine.begin("grpc_stream", perf_counter_ns())
        try:
            reply = await self._answer(call, headers, message, left_ns)
        except Failed as failed:
            error = failed.error
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            reply = ModelInferResponse(id=_id_of(message))
            reply.parameters["x-tailcut-code"].string_param = error.code
            reply.parameters[FINAL].bool_param = True
            return ModelStreamInferResponse(error_message=text, infer_response=reply)
        reply.parameters[FINAL].bool_param = True
        return ModelStreamInferResponse(infer_response=reply)


async def _next(context: Context, ended: asyncio.Future[Any]) -> bytes | None:
    """Return the stream's next message; None where the client has sent all, or the server is stopping."""
    reading = asyncio.ensure_future(context.read())
    await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
    if not reading.done():
        return None
    message = reading.result()
    return None if message is EOF else message


def _id_of(message: bytes) -> str:
    try:
        return parse(message).id
    except TailcutError:
        return ""


def _metadata(call: Call, headers: Mapping[str, str]) -> Metadata:
    pairs = [
        ("server-timing", call.timings.server_timing()),
        ("x-tailcut-variant", call.variant),
        ("x-tailcut-cache", call.cache),
    ]
    if call.path is not None:
        pairs.append(("x-tailcut-version", call.path.served[1]))
    parent = traceparent(headers)
    if parent is not None:
        pairs.append(("traceparent", parent))
    return tuple(pairs)
