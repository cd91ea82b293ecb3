"""Routes of the HTTP interface, independent of the server that carries them.

POST /v2/models/{model}[/versions/{version}]/infer|generate|generate_stream
GET  /v2/models/{model}[/versions/{version}][/ready|/config|/stats], /v2/models/stats
GET  /v2, /v2/health/live, /v2/health/ready
POST /v2/repository/index, /v2/repository/models/{model}/load|unload
POST /predict/{model}
GET  /metrics, /openapi.json, /docs
"""

from __future__ import annotations

from time import perf_counter_ns

from tailcut import logs
from tailcut.errors import MethodNotAllowed, NotFound, TailcutError
from tailcut.protocol.auth import Guard
from tailcut.protocol.bodies import Bodies
from tailcut.protocol.generate import Generate
from tailcut.protocol.http import REQUEST_ID, Body, HeaderMap, Reply, clipped, error_reply, new_request_id, request_id
from tailcut.protocol.inference_handler import InferenceHandler
from tailcut.protocol.model_routes import Models, ServerRoutes
from tailcut.protocol.pages import Pages
from tailcut.protocol.predict import PredictRoutes
from tailcut.protocol.repository_routes import Repository
from tailcut.protocol.routing import Route
from tailcut.serving.deployment import Engine
from tailcut.serving.host import Host


class Application:
    """Answers requests to the models of a host. Each that was begun ends exactly once, with a reply or an error.

    Args:
        guard: decides who may do what; by default everybody may predict and nobody manage.
    """

    def __init__(self, host: Host, guard: Guard | None = None) -> None:
        self._guard = guard or Guard()
        self.host = host
        self._names_models = not host.manifest.is_single
        self._bodies = Bodies(int(host.server.max_body_bytes), int(host.server.max_arriving_bytes))
        self._repository = Repository(host, self._guard)
        self._models: dict[str, _ModelRoutes] = {}
        self._routes: dict[str, Route] = {
            **ServerRoutes(host, self._guard).routes(),
            **self._repository.routes(),
            **Pages(host).routes(),
        }
        for name, engine in host.engines.items():
            self._bind(name, engine)

    @property
    def routes(self) -> dict[str, str]:
        """Method by path, without those of named versions."""
        return {path: method for path, (method, _) in self._routes.items()}

    async def handle(self, method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request; never raises but for cancellation."""
        route = self._routes.get(path)
        if self._names_models:
            logs.model.set("")  # of the request before on this connection
        try:
            if route is None:
                route = self._find(path)
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
            incident = self.host.failures.failed(kind, f"unexpected error on {what}", error, now_ns, named)
            error = TailcutError(f"unexpected {kind}", hint="a bug in tailcut: see the log and report it")
        reply = error_reply(error, incident)
        reply.headers.append((REQUEST_ID, named))
        return reply

    def _bind(self, name: str, engine: Engine) -> None:
        """Add the routes of a model."""
        found = self._models[name] = _ModelRoutes(engine, self._guard, self._bodies)
        self._routes |= found.routes() | self._repository.of_model(name)

    def _find(self, path: str) -> Route:
        """Find the route of a path that is in no table: of a version, of a model that came later, or none.

        Raises:
            NotFound: there is none.
            NotReady: it is one of a model that could not be loaded.
        """
        parts = path.split("/")
        if parts[1:4] == ["v2", "repository", "models"] and len(parts) > 4:
            name = parts[4]
            found = self._repository.of_model(name).get(path)  # of a folder that is looked at only then
            if found is not None:
                return found
        elif parts[1:3] == ["v2", "models"] and len(parts) > 3:
            name = parts[3]
        else:
            name = parts[2] if parts[1:2] == ["predict"] and len(parts) > 2 else ""
        if name:
            engine = self.host.engine(name)
            if name not in self._models:
                self._bind(name, engine)
                if path in self._routes:
                    return self._routes[path]
            if len(parts) in {6, 7} and parts[1:3] == ["v2", "models"] and parts[4] == "versions":
                route = self._models[name].versioned(parts[5], "/".join(parts[6:]))
                if route is not None:
                    return route
        raise NotFound(f"no such path: {clipped(path)}", hint="see /openapi.json for the paths")


class _ModelRoutes:
    """The routes of one model."""

    def __init__(self, engine: Engine, guard: Guard, bodies: Bodies) -> None:
        answering = InferenceHandler(engine, guard, bodies)
        self._predictions = PredictRoutes(engine, answering)
        self._generate = Generate(engine, answering)
        self._models = Models(engine, guard)

    def routes(self) -> dict[str, Route]:
        """Routes by path, without those of named versions."""
        return {**self._predictions.routes(), **self._generate.routes(), **self._models.routes()}

    def versioned(self, version: str, rest: str) -> Route | None:
        """Return the route of a version; ``rest`` is the path behind it."""
        if rest == "infer":
            return "POST", self._predictions.infer(version)
        return self._generate.versioned(version, rest) or self._models.versioned(version, rest)
