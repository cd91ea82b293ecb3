"""Routes of the HTTP interface, independent of the server that carries them.

POST /v2/models/{model}[/versions/{version}]/infer|generate|generate_stream
GET  /v2/models/{model}[/versions/{version}][/ready|/config|/stats], /v2/models/stats
GET  /v2, /v2/health/live, /v2/health/ready
POST /v2/repository/index, /v2/repository/models/{model}/load|unload
POST /predict/{model}
GET  /metrics, /openapi.json, /docs
"""

from __future__ import annotations

from reprlib import repr as shown
from time import perf_counter_ns

from tailcut.errors import MethodNotAllowed, NotFound, TailcutError
from tailcut.protocol.auth import Guard
from tailcut.protocol.generate import Generate
from tailcut.protocol.http import REQUEST_ID, Body, HeaderMap, Reply, clipped, error_reply, new_request_id, request_id
from tailcut.protocol.inference_handler import InferenceHandler
from tailcut.protocol.model_routes import Models
from tailcut.protocol.pages import Pages
from tailcut.protocol.predict import PredictRoutes
from tailcut.protocol.repository_routes import Repository
from tailcut.protocol.routing import Route
from tailcut.serving.deployment import Engine


class Application:
    """Answers requests of one engine. Every request that was begun ends exactly once, with a reply or an error.

    Args:
        guard: decides who may do what; by default everybody may predict and nobody manage.
    """

    def __init__(self, engine: Engine, guard: Guard | None = None) -> None:
        guard = guard or Guard()
        self.engine = engine
        answering = InferenceHandler(engine, guard)
        self._predictions = PredictRoutes(engine, answering)
        self._generate = Generate(engine, answering)
        self._models = Models(engine, guard)
        self._routes: dict[str, Route] = {
            **self._predictions.routes(),
            **self._generate.routes(),
            **self._models.routes(),
            **Repository(engine, guard, answering).routes(),
            **Pages(engine).routes(),
        }

    @property
    def routes(self) -> dict[str, str]:
        """Method by path, without those of named versions."""
        return {path: method for path, (method, _) in self._routes.items()}

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
        except Exception as error:
            return self._failed(error, f"{clipped(method)} {clipped(path)}", headers)

    def _failed(self, error: Exception, what: str, headers: HeaderMap) -> Reply:
        """Return the reply to a request that is no prediction, or met a bug."""
        named, incident = request_id(headers) or new_request_id(), ""
        if not isinstance(error, TailcutError):
            kind = type(error).__name__
            now_ns = perf_counter_ns()
            incident = self.engine.failures.failed(kind, f"unexpected error on {what}", error, now_ns, named)
            error = TailcutError(f"unexpected {kind}", hint="a bug in tailcut: see the log and report it")
        reply = error_reply(error, incident)
        reply.headers.append((REQUEST_ID, named))
        return reply

    def _versioned(self, path: str) -> Route:
        """Find the route of a path that is in no table: a version of the model, or nothing."""
        name = self.engine.deployment.name
        parts = path.split("/")
        if len(parts) in {6, 7} and parts[1:3] == ["v2", "models"] and parts[4] == "versions" and parts[3] == name:
            version, rest = parts[5], "/".join(parts[6:])
            if rest == "infer":
                return "POST", self._predictions.infer(version)
            found = self._generate.versioned(version, rest) or self._models.versioned(version, rest)
            if found is not None:
                return found
        asked = parts[3:4] if parts[1:3] == ["v2", "models"] else parts[2:3] if parts[1:2] == ["predict"] else []
        if parts[1:4] == ["v2", "repository", "models"]:
            asked = parts[4:5]
        if asked and asked != [name]:
            raise NotFound(f"model {shown(asked[0])} is unknown", hint=f"this server has {name!r}")
        raise NotFound(f"no such path: {clipped(path)}", hint="see /openapi.json for the paths")
