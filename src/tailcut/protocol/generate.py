"""Routes of the generate extension: values in, values out; whole, or in parts as server-sent events.

POST /v2/models/{model}[/versions/{version}]/generate           any model whose inputs are single values or lists
POST /v2/models/{model}[/versions/{version}]/generate_stream    models that stream

Source: Triton's generate extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_generate.md); events: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from reprlib import repr as shown
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from tailcut.common.json_values import UNREADABLE, decode, encode
from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.common.validation import InputSpec, check_rows, limits_of
from tailcut.errors import BadRequest, ClientGone, TooLarge
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext, ServedVariant
from tailcut.pipeline.streaming import no_stream
from tailcut.protocol.data_plane import Door, ModelPlane
from tailcut.protocol.http import Body, HeaderMap, Reply, clipped, request_id, unread
from tailcut.protocol.open_inference.codec import AnyTensor, InferenceCodec, array_of_json
from tailcut.protocol.open_inference.parameters import timeout_ns as asked_timeout_ns
from tailcut.protocol.openapi.document import prediction_operation
from tailcut.protocol.operator_log import told
from tailcut.protocol.routing import Codecs, Handler, Route, pipeline_of
from tailcut.serving.engine import Engine

_OWN = ("id", "parameters")
"""Keys of a request that are no inputs."""

_REPLY = ("id", "model_name", "model_version")
"""Keys of a reply that are no outputs."""


class Generation(NamedTuple):
    """A checked request."""

    served: ServedVariant
    id: Any
    inputs: Arrays


class Generate:
    """Answers generate and generate_stream."""

    def __init__(self, plane: ModelPlane, door: Door[bytes | Events, Reply]) -> None:
        self._engine = plane.engine
        self._plane = plane
        self._door = door
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self._codecs = Codecs(InferenceCodec, plane.engine)
        schemas, server = ("GenerateRequest", "GenerateReply"), plane.engine.deployment.server
        self._described = prediction_operation("Generate: values in, values out", *schemas, server)
        self._stream_described = prediction_operation(
            "Generate: values in, server-sent events out", *schemas, server, kind="text/event-stream"
        )

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        base = f"/v2/models/{self._engine.deployment.name}"
        return {f"{base}/{rest}": route for rest, route in self._by_name("").items()}

    def versioned(self, version: str, rest: str) -> Route | None:
        """Return the route of a version; None for another path."""
        return self._by_name(version).get(rest)

    def _by_name(self, version: str) -> dict[str, Route]:
        answer, door = self._plane.answer, self._door
        whole: Handler = partial(answer, door, "generate", partial(self._whole, version))
        stream: Handler = partial(answer, door, "generate_stream", partial(self._stream, version))
        return {
            "generate": Route("POST", whole, self._described),
            "generate_stream": Route("POST", stream, self._stream_described),
        }

    async def _whole(self, version: str, context: RequestContext, headers: HeaderMap, body: Body) -> bytes:
        asked = self._read(version, context, await self._plane.receive(context, headers, body))
        pipeline = self._engine.pipeline
        outputs = await pipeline.infer(context, asked.inputs, 1, pipeline.outputs)
        if context.logged is not None:
            context.logged.answer(outputs)
        return self._reply(asked, outputs)

    async def _stream(self, version: str, context: RequestContext, headers: HeaderMap, body: Body) -> Events:
        context.request_id = request_id(headers)
        raw = await self._plane.receive(context, headers, body)
        events = Events(self._engine, context, self._parts(version, context, raw))
        await events.begin()
        return events

    async def _parts(self, version: str, context: RequestContext, raw: bytes) -> AsyncGenerator[bytes, None]:
        pipeline = pipeline_of(self._engine, version)
        runtime = self._engine.opened.streaming
        if runtime is None:
            raise no_stream(self._engine.deployment.name)
        asked = self._read(version, context, raw)
        async for part in self._engine.streams.run(context, runtime, asked.inputs, pipeline.outputs):
            yield self._reply(asked, part)

    def _read(self, version: str, context: RequestContext, raw: bytes) -> Generation:
        """Read and admit a request."""
        pipeline = pipeline_of(self._engine, version)
        _check_names(pipeline)
        try:
            request = decode(self._decoder, raw)
        except UNREADABLE as error:
            raise BadRequest(
                f"the body is not a generate request: {unread(error, raw)}", hint=_form(pipeline.specs)
            ) from error
        parameters = request.get("parameters", {})
        if not isinstance(parameters, dict):
            raise BadRequest(f"parameters is {shown(parameters)}", hint="send an object, or none")
        asked_ns = asked_timeout_ns(parameters)
        if asked_ns:
            self._plane.bound_by_body(context, asked_ns)
        inputs = _inputs(request, parameters, pipeline.specs)
        if context.logged is not None:
            context.logged.take(inputs, "generate")
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        served = pipeline.serving
        pipeline.admit(context, 1)
        return Generation(served, request.get("id"), inputs)

    def _reply(self, asked: Generation, outputs: Arrays) -> bytes:
        """Return an answer: a single value as it is, several as a flat list."""
        name, version = self._engine.deployment.name, asked.served.version
        reply: dict[str, Any] = {"model_name": name, "model_version": version}
        if asked.id is not None:
            reply["id"] = asked.id
        codec = self._codecs.of(asked.served)
        for output in outputs:
            array = outputs[output]
            values = codec.values(output, array)
            reply[output] = msgspec.Raw(values[1:-1] if array.size == 1 else values)
        return encode(reply)


def _check_names(pipeline: Pipeline) -> None:
    """Refuse a model whose tensors have names that mean something else in this form.

    Raises:
        BadRequest: it has such a name.
    """
    for what, form, names, taken in (
        ("input", "request", [spec.name for spec in pipeline.specs], _OWN),
        ("output", "reply", pipeline.outputs, _REPLY),
    ):
        for name in names:
            if name in taken:
                raise BadRequest(
                    f"{what} {name!r} has the name of a key of every generate {form}",
                    hint="post tensors to infer, or rows to predict",
                )


def _inputs(request: dict[str, Any], parameters: dict[str, Any], specs: tuple[InputSpec, ...]) -> Arrays:
    known = {spec.name for spec in specs}
    for name in request:
        if name not in known and name not in _OWN:
            raise BadRequest(f"input {clipped(name)!r} is unknown", hint=_form(specs))
    inputs = {}
    for spec in specs:
        if spec.name not in request and spec.name not in parameters:
            raise BadRequest(f"input {spec.name!r} is missing", hint=_form(specs))
        value = request[spec.name] if spec.name in request else parameters[spec.name]
        inputs[spec.name] = array_of_json(_tensor(spec, value), spec, 1)
    check_rows({name: len(array) for name, array in inputs.items()})
    for name, limits in limits_of(specs):
        limits.check(inputs[name])
    return inputs


def _tensor(spec: InputSpec, value: Any) -> AnyTensor:
    """Return one row of an input: a single value, or a list where it has one dimension."""
    if len(spec.tail) > 1:
        raise BadRequest(
            f"input {spec.name!r} has shape {list(spec.shape)}; generate takes single values and flat lists",
            hint="post tensors to infer",
        )
    values = value if isinstance(value, list) and spec.tail else [value]
    shape = [1, len(values)] if spec.tail else [1]
    return AnyTensor(spec.name, shape, spec.datatype, values)


def _form(specs: tuple[InputSpec, ...]) -> str:
    return f"send a JSON object with {', '.join(spec.name for spec in specs)}, and parameters or none"


# -- Events ------------------------------------------------------------------------------------------------------------


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
