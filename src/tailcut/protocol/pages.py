"""Routes about the interface itself: metrics, its OpenAPI description, and a page that shows it.

GET /metrics, /openapi.json, /docs
"""

from __future__ import annotations

from typing import Any

from tailcut.observe.exposition import CONTENT_TYPE
from tailcut.protocol.http import Body, HeaderMap, Reply, json_reply
from tailcut.protocol.openapi.docs_page import docs_page
from tailcut.protocol.openapi.document import openapi
from tailcut.protocol.routing import Route
from tailcut.serving.host import Host

_HTML = [
    ("content-type", "text/html; charset=utf-8"),
    # Everything is in the page: nothing may be loaded from elsewhere, and no script runs.
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]


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
        return Reply(200, [("content-type", CONTENT_TYPE)], self._host.exposition.render())

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
