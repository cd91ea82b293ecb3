"""Routes that answer with predictions.

POST /v2/models/{model}[/versions/{version}]/infer    Open Inference Protocol v2, tensors in JSON or binary
POST /predict/{model}                                 {"entities": [...]} or {"rows": [...]}
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Any

import msgspec

from tailcut.common.json_values import UNREADABLE, decode
from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, Shed, TailcutError
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer
from tailcut.protocol.data_plane import Door, ModelPlane
from tailcut.protocol.generate import Events
from tailcut.protocol.http import (
    EVENT_STREAM,
    JSON,
    REQUEST_ID,
    Body,
    HeaderMap,
    Headers,
    Reply,
    error_reply,
    request_id,
    traceparent,
    unread,
)
from tailcut.protocol.open_inference.binary import BINARY_HEADER, BinaryReply
from tailcut.protocol.open_inference.codec import InferenceCodec
from tailcut.protocol.openapi.document import prediction_operation
from tailcut.protocol.routing import Codecs, Handler, Route, pipeline_of

_BINARY = "application/octet-stream"
_BINARY_PARAMETER = {
    "name": BINARY_HEADER,
    "in": "header",
    "description": "number of JSON bytes at the beginning of the body, if raw tensors follow",
    "schema": {"type": "integer", "minimum": 0},
}
_PREDICT_FORM = 'send {"entities": [...]} or {"rows": [{...}, ...]}; see /openapi.json'


_MOST_TOLD = 64
"""Variants by cache outcome and version: their headers are the same for each request."""


class _Predict(msgspec.Struct, forbid_unknown_fields=True):
    entities: list[Any] | msgspec.UnsetType = msgspec.UNSET
    rows: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class PredictRoutes:
    """Answers infer and predict."""

    def __init__(self, plane: ModelPlane, door: Door[bytes | BinaryReply, Reply]) -> None:
        self._engine = engine = plane.engine
        self._plane = plane
        self._door = door
        self._codecs = Codecs(InferenceCodec, engine)
        self._decoder = msgspec.json.Decoder(_Predict)
        for route in ("infer", "predict"):
            engine.recorder.expect(route)

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        name, server = self._engine.deployment.name, self._engine.deployment.server
        predict: Handler = partial(self._plane.answer, self._door, "predict", self._predict)
        infer: Handler = partial(self._plane.answer, self._door, "infer", self._infer)
        predicting = prediction_operation(
            "Predict for entities or for feature rows", "PredictionRequest", "PredictionReply", server
        )
        inferring = prediction_operation(
            "Open Inference Protocol v2 inference", "InferenceRequest", "InferenceReply", server
        )
        inferring["parameters"].append(_BINARY_PARAMETER)
        inferring["requestBody"]["content"][_BINARY] = {"schema": {"type": "string", "format": "binary"}}
        inferring["responses"]["200"]["content"][_BINARY] = {}
        return {
            f"/predict/{name}": Route("POST", predict, predicting),
            f"/v2/models/{name}/infer": Route("POST", infer, inferring),
        }

    def versioned(self, version: str, rest: str) -> Route | None:
        """Return the route of a version; None for another path."""
        if rest != "infer":
            return None
        return Route("POST", partial(self._plane.answer, self._door, "infer", partial(self._infer, version=version)))

    async def _infer(
        self, context: RequestContext, headers: HeaderMap, body: Body, version: str = ""
    ) -> bytes | BinaryReply:
        raw = await self._plane.receive(context, headers, body)
        pipeline = pipeline_of(self._engine, version) if version else self._engine.pipeline
        known = self._codecs.known
        codec = known[1] if known is not None and known[0]() is pipeline.serving else self._codecs.of(pipeline.serving)
        inference = codec.decode(raw, headers.get(BINARY_HEADER))
        if context.logged is not None:
            encoding = "json" if headers.get(BINARY_HEADER) is None else "binary"
            context.logged.take(inference.inputs, encoding, inference.outputs)
        if inference.timeout_ns or inference.priority:
            self._plane.bound_by_body(context, inference.timeout_ns, inference.priority)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        pipeline.admit(context, inference.rows, recalls=pipeline.recalls_tensors)
        outputs = await pipeline.infer(context, inference.inputs, inference.rows, inference.outputs)
        if context.logged is not None:
            context.logged.answer(outputs)
        return codec.encode(inference, outputs)

    async def _predict(self, context: RequestContext, headers: HeaderMap, body: Body) -> bytes:
        raw = await self._plane.receive(context, headers, body)
        if context.logged is not None:
            context.logged.take_body(raw)
        pipeline = self._engine.pipeline
        context.request_id = request_id(headers)
        try:
            request = decode(self._decoder, raw)
        except UNREADABLE as error:
            raise BadRequest(
                f"the body is not a prediction request: {unread(error, raw)}", hint=_PREDICT_FORM
            ) from error
        has_entities, has_rows = request.entities is not msgspec.UNSET, request.rows is not msgspec.UNSET
        if has_entities is has_rows:
            raise BadRequest("give either entities or rows, not both", hint=_PREDICT_FORM)
        if request.entities is not msgspec.UNSET and request.entities:
            context.timings.lap(Stage.VALIDATE, perf_counter_ns())
            values = await pipeline.predict_entities(context, request.entities)
        elif request.rows is not msgspec.UNSET and request.rows:
            values = await pipeline.predict_rows(context, request.rows)
        else:
            raise BadRequest("the list is empty; at least one is needed", hint=_PREDICT_FORM)
        reply = encode_answer({"model": self._engine.deployment.name, "predictions": values})
        if context.logged is not None:
            context.logged.reply = reply
        return reply


class PredictReplies:
    """The replies to requests for predictions: the ``Door`` of HTTP."""

    def __init__(self) -> None:
        self._known_told: dict[tuple[str, str, str | None], Headers] = {}

    def answered(self, context: RequestContext, headers: HeaderMap, answer: bytes | BinaryReply | Events) -> Reply:
        """Return the reply with an answer."""
        if isinstance(answer, bytes):
            return Reply(200, self.headers(context, headers), answer)
        if isinstance(answer, Events):
            return Reply(200, [*EVENT_STREAM, *self.headers(context, headers)[1:]], b"", answer)
        return Reply(200, [*answer.headers, *self.headers(context, headers)[1:]], answer.body)

    def failed(self, context: RequestContext, headers: HeaderMap, error: TailcutError, incident: str) -> Reply:
        """Return the reply with an error."""
        reply = error_reply(error, incident)
        reply.headers.extend(self.headers(context, headers)[1:])
        if not isinstance(error, Shed):
            reply.headers.append((REQUEST_ID, context.request_id))
        return reply

    def headers(self, context: RequestContext, headers: HeaderMap) -> Headers:
        """Return the headers of an answer in JSON: where the time went and what answered."""
        served = context.served
        key = context.variant, context.cache, served.version if served is not None else None
        told = self._known_told.get(key)
        if told is None:
            told = [("x-tailcut-variant", key[0]), ("x-tailcut-cache", key[1])]
            if key[2] is not None:
                told.append(("x-tailcut-version", key[2]))
            if len(self._known_told) >= _MOST_TOLD:
                self._known_told.clear()
            self._known_told[key] = told
        reply = [JSON, ("server-timing", context.timings.server_timing()), *told]
        if headers.get("traceparent") is not None and (parent := traceparent(headers)) is not None:
            reply.append(("traceparent", parent))
        return reply
