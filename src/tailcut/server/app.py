"""Routes of the HTTP interface, independent of the server that carries them.

POST /v2/models/{model}[/versions/{version}]/infer    Open Inference Protocol v2
GET  /v2, /v2/models/{model}, .../ready, /v2/health/live, /v2/health/ready
POST /predict/{model}                                 {"entities": [...]} or {"rows": [...]}
GET  /metrics, /openapi.json
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from reprlib import repr as shown
from time import perf_counter_ns
from typing import Any

import msgspec

import tailcut
from tailcut.core.timings import Stage
from tailcut.engine.assembly import encode_answer
from tailcut.engine.engine import Engine
from tailcut.engine.path import Call, Path
from tailcut.errors import (
    BadRequest,
    ClientGone,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
    TailcutError,
)
from tailcut.observe.exposition import CONTENT_TYPE
from tailcut.server.http import (
    JSON,
    Body,
    HeaderMap,
    Headers,
    Reply,
    clipped,
    deadline_ns,
    error_reply,
    json_reply,
    read_body,
    tenant,
    timeout_ns,
    traceparent,
)
from tailcut.server.incidents import note
from tailcut.server.inference import UNREADABLE, InferenceCodec
from tailcut.server.openapi import openapi
from tailcut.server.unfinished import unfinished_stage

Handler = Callable[[HeaderMap, Body], Awaitable[Reply]]


Work = Callable[[Call, HeaderMap, bytes], Awaitable[bytes]]
_PREDICT_FORM = 'send {"entities": [...]} or {"rows": [{...}, ...]}; see /openapi.json'


class _Predict(msgspec.Struct, forbid_unknown_fields=True):
    entities: list[Any] | msgspec.UnsetType = msgspec.UNSET
    rows: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class Application:
    """Answers requests of one engine. Every request that was begun ends exactly once, with a reply or an error.

    Args:
        closed: what the server raises where a body is read whose client is gone.
    """

    def __init__(self, engine: Engine, closed: tuple[type[Exception], ...] = ()) -> None:
        self.engine = engine
        self._leaving: tuple[type[BaseException], ...] = (asyncio.CancelledError, *closed)
        deployment = engine.deployment
        self._max_body_bytes = int(deployment.server.max_body_bytes)
        self._timeout_ns = int(deployment.slo.timeout_s * 1e9)
        self._max_timeout_ns = int(deployment.server.max_timeout_s * 1e9)
        self._tenant_header = deployment.server.tenant_header.lower()
        self._codec: tuple[Path, InferenceCodec] | None = None
        self._predict_decoder = msgspec.json.Decoder(_Predict)
        name = deployment.name
        infer: Handler = partial(self._answer, "infer", self._infer_bytes)
        predict: Handler = partial(self._answer, "predict", self._predict_bytes)
        self._routes: dict[str, tuple[str, Handler]] = {
            f"/v2/models/{name}/infer": ("POST", infer),
            f"/predict/{name}": ("POST", predict),
            f"/v2/models/{name}": ("GET", self._model),
            f"/v2/models/{name}/ready": ("GET", self._model_ready),
            "/v2": ("GET", self._server),
            "/v2/health/live": ("GET", self._live),
            "/v2/health/ready": ("GET", self._ready),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
        }

    async def handle(self, method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request; never raises but for cancellation."""
        route = self._routes.get(path)
        try:
            if route is None:
                route = self._versioned(path)
            if route[0] != method and not (method == "HEAD" and route[0] == "GET"):
                allowed = "GET, HEAD" if route[0] == "GET" else route[0]
                raise MethodNotAllowed(
                    f"{path} takes {route[0]}, not {clipped(method)}", hint=f"send {route[0]}", allowed=allowed
                )
            return await route[1](headers, body)
        except TailcutError as error:
            return error_reply(error)
        except Exception as error:
            what = f"unexpected error on {clipped(method)} {clipped(path)}"
            incident = self.engine.failures.failed(type(error).__name__, what, error, perf_counter_ns())
            bug = TailcutError(f"unexpected {type(error).__name__}", hint="a bug in tailcut: see the log and report it")
            return error_reply(bug, incident)

    # -- Inference -----------------------------------------------------------------------------------------------------

    async def _answer(self, route: str, work: Work, headers: HeaderMap, body: Body) -> Reply:
        """Run one request from its first byte to its encoded reply, and count its one end."""
        engine = self.engine
        call = engine.begin(route, perf_counter_ns())
        outcome = "internal"
        try:
            if self._tenant_header:
                call.tenant = tenant(headers, self._tenant_header)
            asked_ns = timeout_ns(headers)
            if asked_ns:
                call.deadline_ns = self._deadline_ns(call, asked_ns)
            # The engine cancels the reading of a body that is late: no timer per request.
            call.waiting = asyncio.current_task()
            raw = await read_body(body, headers, self._max_body_bytes)
            call.waiting = None
            # Only now: whoever waits for the end of the connection must not read the body away.
            call.disconnected = body.client_disconnect
            call.timings.lap(Stage.RECEIVE, perf_counter_ns())
            encoded = await work(call, headers, raw)
            call.timings.lap(Stage.ENCODE, perf_counter_ns())
            outcome = "ok"
            return Reply(200, self._headers(call, headers), encoded)
        except TailcutError as error:
            outcome = error.code
            return self._failed(call, headers, error)
        except self._leaving as error:
            ended = self._ended(call, error)
            outcome = ended.code
            if isinstance(error, asyncio.CancelledError) and not (call.gone or engine.is_late(call)):
                raise  # by the server that carries this application: it has nobody left to answer
            return self._failed(call, headers, ended)
        finally:
            engine.end(call, outcome)

    def _ended(self, call: Call, error: BaseException) -> TailcutError:
        """Say why a request ended that was cancelled or whose connection closed."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and self.engine.is_late(call) and task is not None:
            task.uncancel()
            waited_s = (perf_counter_ns() - call.timings.start_ns) / 1e9
            return RequestTimeout(
                f"the request's body had not arrived after {waited_s:.1f} s, when its deadline passed",
                hint="send the body at once, or a longer timeout in x-tailcut-timeout-ms",
            )
        return ClientGone("the client closed the connection before its answer was ready")

    def _deadline_ns(self, call: Call, *asked_ns: int) -> int:
        return deadline_ns(call.timings.start_ns, self._timeout_ns, self._max_timeout_ns, *asked_ns)

    async def _infer_bytes(self, call: Call, headers: HeaderMap, raw: bytes, version: str = "") -> bytes:
        path = self._path(version)
        if headers.get("inference-header-content-length") is not None:
            raise BadRequest("binary tensors are not supported by this version", hint="send tensor data as JSON")
        known = self._codec
        codec = known[1] if known is not None and known[0] is path else self._open_codec(path)
        inference = codec.decode(raw)
        if inference.timeout_ns:
            call.deadline_ns = self._deadline_ns(call, timeout_ns(headers), inference.timeout_ns)
        call.timings.lap(Stage.VALIDATE, perf_counter_ns())
        path.admit(call, inference.rows)
        outputs = await path.infer(call, inference.inputs, inference.rows, inference.outputs)
        return codec.encode(inference, outputs)

    async def _predict_bytes(self, call: Call, headers: HeaderMap, raw: bytes) -> bytes:
        path = self.engine.path
        try:
            request = self._predict_decoder.decode(raw)
        except UNREADABLE as error:
            raise BadRequest(f"the body is no prediction request: {clipped(error)}", hint=_PREDICT_FORM) from error
        has_entities, has_rows = request.entities is not msgspec.UNSET, request.rows is not msgspec.UNSET
        if has_entities is has_rows:
            raise BadRequest("a request has either entities or rows, and not both", hint=_PREDICT_FORM)
        if request.entities is not msgspec.UNSET and request.entities:
            call.timings.lap(Stage.VALIDATE, perf_counter_ns())
            values = await path.predict_entities(call, request.entities)
        elif request.rows is not msgspec.UNSET and request.rows:
            values = await path.predict_rows(call, request.rows)
        else:
            raise BadRequest("the list is empty; at least one is needed", hint=_PREDICT_FORM)
        return encode_answer({"model": self.engine.deployment.name, "predictions": values})

    def _headers(self, call: Call, headers: HeaderMap) -> Headers:
        reply = [
            JSON,
            ("server-timing", call.timings.server_timing()),
            ("x-tailcut-variant", call.variant),
            ("x-tailcut-cache", call.cache),
        ]
        if call.path is not None:
            reply.append(("x-tailcut-version", call.path.served[1]))
        parent = traceparent(headers)
        if parent is not None:
            reply.append(("traceparent", parent))
        return reply

    def _failed(self, call: Call, headers: HeaderMap, error: TailcutError) -> Reply:
        now_ns = perf_counter_ns()
        call.timings.lap(unfinished_stage(call.timings.ns, error), now_ns)
        reply = error_reply(error, note(self.engine.failures, call.route, error, now_ns))
        reply.headers.extend(self._headers(call, headers)[1:])
        return reply

    def _path(self, version: str) -> Path:
        """The path that answers from here on; a version that the client named may have been replaced meanwhile."""
        path = self.engine.path
        if version and version != path.served[1]:
            what = f"model {self.engine.deployment.name!r} has no version {shown(version)} here"
            raise NotFound(what, hint=f"it serves {path.served[1]!r}")
        return path

    def _open_codec(self, path: Path) -> InferenceCodec:
        deployment = self.engine.deployment
        codec = InferenceCodec(
            deployment.name,
            path.served[1],
            path.specs,
            path.outputs,
            max_rows=deployment.batching.max_queue_rows,
            nan_outputs=[tensor.name for tensor in deployment.model.outputs if tensor.allow_nan],
        )
        self._codec = path, codec
        return codec

    # -- Metadata, health, metrics -------------------------------------------------------------------------------------

    async def _server(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply({"name": "tailcut", "version": tailcut.__version__, "extensions": []})

    async def _model(self, headers: HeaderMap, body: Body) -> Reply:
        model = self.engine.deployment.model
        variant = self.engine.opened.variant
        return json_reply(
            {
                "name": self.engine.deployment.name,
                "versions": [variant.version],
                "platform": f"{variant.runtime}_{variant.name}",
                **self.engine.promotion,
                "inputs": [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in model.inputs],
                "outputs": [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in model.outputs],
            }
        )

    async def _live(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply({"live": True})

    async def _ready(self, headers: HeaderMap, body: Body) -> Reply:
        ready = self.engine.is_ready
        return json_reply({"ready": ready, "state": self.engine.state, **self.engine.promotion}, 200 if ready else 503)

    async def _model_ready(self, headers: HeaderMap, body: Body) -> Reply:
        ready = self.engine.is_ready
        name = self.engine.deployment.name
        return json_reply({"name": name, "ready": ready, **self.engine.promotion}, 200 if ready else 503)

    async def _metrics(self, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [("content-type", CONTENT_TYPE)], self.engine.exposition.render())

    async def _openapi(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply(openapi(self.engine.deployment))

    def _versioned(self, path: str) -> tuple[str, Handler]:
        """Find the route of a path that is in no table: a version of the model, or nothing."""
        name = self.engine.deployment.name
        parts = path.split("/")
        if len(parts) >= 6 and parts[1:3] == ["v2", "models"] and parts[4] == "versions" and parts[3] == name:
            self._path(parts[5])
            if parts[6:] == ["infer"]:
                return "POST", partial(self._answer, "infer", partial(self._infer_bytes, version=parts[5]))
            found = self._routes.get("/".join([*parts[:4], *parts[6:]]))
            if found is not None:
                return found
        asked = parts[3:4] if parts[1:3] == ["v2", "models"] else parts[2:3] if parts[1:2] == ["predict"] else []
        if asked and asked != [name]:
            raise NotFound(f"model {shown(asked[0])} is unknown", hint=f"this server has {name!r}")
        raise NotFound(f"no such path: {clipped(path)}", hint="see /openapi.json for what there is")
