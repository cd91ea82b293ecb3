"""Routes of the HTTP interface, independent of the server that carries them.

POST /v2/models/{model}[/versions/{version}]/infer|generate|generate_stream
GET  /v2/models/{model}[/versions/{version}][/ready|/config|/stats], /v2/models/stats
GET  /v2, /v2/health/live, /v2/health/ready
POST /v2/repository/index, /v2/repository/models/{model}/load|unload
POST /predict/{model}
GET  /metrics, /openapi.json, /docs, /debug/requests[/{trace-id}]
GET  /ui and what it shows, see ``ui.routes``
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any
from urllib.parse import unquote

from tailcut import logs
from tailcut.errors import MethodNotAllowed, NotFound, TailcutError
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.generate import Generate
from tailcut.protocol.http import (
    REQUEST_ID,
    Body,
    HeaderMap,
    Reply,
    clipped,
    error_reply,
    log_id,
)
from tailcut.protocol.model_routes import Models, ServerRoutes
from tailcut.protocol.openapi.document import openapi
from tailcut.protocol.operator_log import unforeseen
from tailcut.protocol.pages import Pages
from tailcut.protocol.predict import PredictReplies, PredictRoutes
from tailcut.protocol.repository_routes import RepositoryRoutes
from tailcut.protocol.routing import Route
from tailcut.protocol.ui.routes import UI


class Application:
    """Answers requests to the models of a host.

    Attributes:
        routes: by path, without those of named versions and of the page.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._host = host = plane.host
        self._names_models = not host.manifest.is_single
        self._repository = RepositoryRoutes(host, plane.guard)
        self._pages = Pages(host, plane.guard, self.document)
        self._ui = UI(host, plane.guard)
        self._models: dict[str, tuple[PredictRoutes, Generate, Models]] = {}
        self._of_server: dict[str, Route] = {
            **ServerRoutes(host, plane.guard).routes(),
            **self._repository.routes(),
            **self._pages.routes(),
        }
        self.routes = dict(self._of_server)
        for name in host.engines:
            self._bind(name)
        host.on_added.append(self._bind)  # its routes count from before its first request

    def document(self) -> dict[str, Any]:
        """Describe the interface, with the bounds of what is served where anything is."""
        host = self._host
        return openapi(
            host.manifest.name if host.manifest.is_single else "",
            host.server,
            [
                (engine.deployment, engine.opened.variant.bounds if engine.is_loaded else ())
                for engine in host.engines.values()
            ],
            {name: self._routes_of(name) for name in self._models} | {"": self._of_server},
        )

    async def handle(self, method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request; never raises but for cancellation."""
        route = self.routes.get(path)
        if self._names_models:
            logs.model.set("")  # of the request before on this connection
        try:
            if route is None:
                route = self._find(method, path)
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
        named, incident = log_id(headers), ""
        if not isinstance(error, TailcutError):
            error, incident = unforeseen(self._host.failures, f"on {what}", error, perf_counter_ns(), named)
        reply = error_reply(error, incident)
        reply.headers.append((REQUEST_ID, named))
        return reply

    def _bind(self, name: str) -> None:
        """Add the routes of a model; raises as ``DataPlane.model``."""
        model, replies = self._plane.model(name), PredictReplies()
        models = Models(model.engine, self._plane.guard)
        self._models[name] = PredictRoutes(model, replies), Generate(model, replies), models
        self.routes |= self._routes_of(name)

    def _routes_of(self, name: str) -> dict[str, Route]:
        found = self._repository.of_model(name)
        for group in self._models[name]:
            found |= group.routes()
        return found

    def _find(self, method: str, path: str) -> Route:
        """Find the route of a path that is in no table: of the page, a version, a model that came later, or none.

        Raises:
            NotFound: there is none.
            NotReady: it is one of a model that could not be loaded.
        """
        parts = path.split("/")
        if parts[1:3] == ["debug", "requests"] and len(parts) > 3:
            return self._pages.of_request(unquote("/".join(parts[3:])))
        if parts[1:2] == ["ui"] and (shown := self._ui.find(method, path)) is not None:
            return shown
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
            self._plane.model(name)
            if len(parts) in {6, 7} and parts[1:3] == ["v2", "models"] and parts[4] == "versions":
                for group in self._models[name]:
                    if (route := group.versioned(parts[5], "/".join(parts[6:]))) is not None:
                        return route
        raise NotFound(f"no such path: {clipped(path)}", hint="see /openapi.json for the paths")
