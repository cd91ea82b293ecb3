"""Routes of the generate extension: values in, values out; whole, or in parts as server-sent events.

POST /v2/models/{model}[/versions/{version}]/generate           any model whose inputs are single values or lists
POST /v2/models/{model}[/versions/{version}]/generate_stream    models that stream

Source: Triton's generate extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_generate.md); events: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from reprlib import repr as shown
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from tailcut.common.json_values import UNREADABLE, decode, encode
from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.common.validation import InputSpec, check_rows, limits_of
from tailcut.errors import BadRequest
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext, ServedVariant
from tailcut.pipeline.streaming import no_stream
from tailcut.protocol.data_plane import Door, ModelPlane
from tailcut.protocol.events import Events
from tailcut.protocol.http import Body, HeaderMap, Reply, clipped, request_id, unread
from tailcut.protocol.open_inference.codec import InferenceCodec
from tailcut.protocol.open_inference.json_tensors import AnyTensor, array_of_json
from tailcut.protocol.open_inference.parameters import timeout_ns as asked_timeout_ns
from tailcut.protocol.routing import Codecs, Handler, Route, pipeline_of

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
        return {"generate": ("POST", whole), "generate_stream": ("POST", stream)}

    async def _whole(self, version: str, context: RequestContext, headers: HeaderMap, body: Body) -> bytes:
        asked = self._read(version, context, await self._plane.receive(context, headers, body))
        pipeline = self._engine.pipeline
        outputs = await pipeline.infer(context, asked.inputs, 1, pipeline.outputs)
        if context.logged is not None:
            context.logged.answer(outputs)
        return self._described(asked, outputs)

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
            yield self._described(asked, part)

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

    def _described(self, asked: Generation, outputs: Arrays) -> bytes:
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
