"""Routes about the interface itself: metrics, its OpenAPI description, a page that shows it, and single requests.

GET /metrics, /openapi.json, /docs
GET /debug/requests                the slowest and the last failed requests of the last ten minutes
GET /debug/requests/{trace-id}     one request with its spans; its request id will do, too
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tailcut.errors import NotFound
from tailcut.observe.exposition import CONTENT_TYPE
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import Body, HeaderMap, Reply, clipped, json_reply
from tailcut.protocol.openapi.docs_page import docs_page
from tailcut.protocol.openapi.document import openapi
from tailcut.protocol.routing import Route
from tailcut.serving.host import Host

_HTML = [
    ("content-type", "text/html; charset=utf-8"),
    # Everything is in the page: nothing may be loaded from elsewhere, and no script runs.
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]

_MINUTES = 10.0


class Pages:
    """Answers with pages."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        return {
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
            "/docs": ("GET", self._docs),
        }

    async def _metrics(self, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [("content-type", CONTENT_TYPE)], self._host.observed.exposition.render())

    async def _openapi(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply(self._document())

    async def _docs(self, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, list(_HTML), docs_page(self._document()).encode())

    def _document(self) -> dict[str, Any]:
        """Describe the interface, with the bounds of what is served where anything is."""
        manifest = self._host.manifest
        return openapi(
            manifest.name if manifest.is_single else "",
            self._host.server,
            [
                (engine.deployment, engine.opened.variant.bounds if engine.is_loaded else ())
                for engine in self._host.engines.values()
            ],
        )


class Requests:
    """Answers with kept traces. They name models, features and failures, so that management tokens are asked for."""

    def __init__(self, host: Host, guard: Guard) -> None:
        self._host = host
        self._guard = guard

    def routes(self) -> dict[str, Route]:
        """Routes by path, without those of single requests."""
        return {"/debug/requests": ("GET", self._recent)}

    def of_request(self, key: str) -> Route:
        """Return the route of one request, by its trace id or its request id."""
        return "GET", partial(self._one, key)

    async def _recent(self, headers: HeaderMap, body: Body) -> Reply:
        self._guard.management(headers)
        traces = self._host.observed.traces
        return json_reply({which: traces.recent(which, _MINUTES) for which in ("slowest", "failed")})

    async def _one(self, key: str, headers: HeaderMap, body: Body) -> Reply:
        self._guard.management(headers)
        found = self._host.observed.traces.find(key)
        if found is None:
            raise NotFound(
                f"no trace of request {clipped(key)!r} is held",
                hint="traces of slow, failed, shed, stale and sampled requests are kept, the last observe.traces.keep "
                "of them; send a traceparent with the flag 01 to have a request kept",
            )
        return json_reply(found)
