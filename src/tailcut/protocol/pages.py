"""Routes about the interface itself: metrics, its OpenAPI description, a page that shows it, and single requests.

GET /metrics, /openapi.json, /docs
GET /debug/requests                the slowest and the last failed requests of the last ten minutes
GET /debug/requests/{trace-id}     one request with its spans; its request id will do, too
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from typing import Any

from tailcut.errors import NotFound
from tailcut.observe.exposition import CONTENT_TYPE
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import Body, HeaderMap, Reply, clipped, json_reply
from tailcut.protocol.openapi.document import MANAGEMENT, get_operation
from tailcut.protocol.routing import Route
from tailcut.serving.host import Host

_HTML = [
    ("content-type", "text/html; charset=utf-8"),
    # Everything is in the page: nothing may be loaded from elsewhere, and no script runs.
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]

_MINUTES = 10.0
_ONE_REQUEST = get_operation("One request with its spans", errors=("403", "404"), scheme=MANAGEMENT) | {
    "parameters": [
        {
            "name": "id",
            "in": "path",
            "required": True,
            "description": "trace id, or x-request-id",
            "schema": {"type": "string", "minLength": 1},
        }
    ]
}


class Pages:
    """Answers with pages, and with kept traces: they name models, features and failures, so that management tokens are
    asked for.

    Args:
        document: describes the interface: see ``Application.document``.
    """

    def __init__(self, host: Host, guard: Guard, document: Callable[[], Mapping[str, Any]]) -> None:
        self._host = host
        self._guard = guard
        self._document = document

    def routes(self) -> dict[str, Route]:
        """Routes by path; that of one request has a placeholder."""
        recent = get_operation("Slowest and last failed requests, with their spans", errors=("403",), scheme=MANAGEMENT)
        page = get_operation("This document as an HTML page", kind="text/html")
        return {
            "/metrics": Route("GET", self._metrics, get_operation("Prometheus metrics", kind="text/plain")),
            "/openapi.json": Route("GET", self._openapi, get_operation("This document")),
            "/docs": Route("GET", self._docs, page),
            "/debug/requests": Route("GET", self._recent, recent),
            "/debug/requests/{id}": self.of_request("{id}"),
        }

    async def _metrics(self, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [("content-type", CONTENT_TYPE)], self._host.observed.exposition.render())

    async def _openapi(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply(self._document())

    async def _docs(self, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, list(_HTML), docs_page(self._document()).encode())

    def of_request(self, key: str) -> Route:
        """Return the route of one request, by its trace id or its request id."""
        return Route("GET", partial(self._one, key), _ONE_REQUEST)

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


# -- The page of the docs ----------------------------------------------------------------------------------------------


# The OpenAPI description as one page of HTML: no script, nothing from elsewhere. Pure.

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem }
summary { cursor: pointer; padding: .4rem .6rem; border-radius: 6px; background: #f3f4f6; margin: .4rem 0 }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { overflow: auto; background: #f3f4f6; padding: .6rem;
  border-radius: 6px } .method { display: inline-block; width: 3.5rem; font-weight: 600 }
.said { color: #4b5563 } td { padding: .15rem .8rem .15rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) { body { color: #e5e7eb; background: #111 }
  summary, pre { background: #1f2937 } .said { color: #9ca3af } }
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        document: an OpenAPI 3.1 description.
    """
    info = document["info"]
    paths = "".join(_operations(document["paths"]))
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    title = escape(f"{info['title']} {info['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(info.get('description', ''))}</p><p>For programs: <a href='openapi.json'>openapi.json</a></p>"
        f"<h2>Routes</h2>{paths}<h2>Schemas</h2>{schemas}</body></html>"
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield (
                f"<details><summary><span class=method>{escape(method.upper())}</span> <code>{escape(path)}</code> "
                f"<span class=said>{escape(operation['summary'])}</span></summary>"
                f"{''.join(_parts(operation))}</details>"
            )


def _parts(operation: Mapping[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", [])
    if parameters:
        yield _table("Parameters", ((each["name"], each.get("description", "")) for each in parameters))
    content = operation.get("requestBody", {}).get("content", {})
    for kind, described in content.items():
        yield f"<p>Body: <code>{escape(kind)}</code></p>{_json(described.get('schema', {}))}"
    yield _table("Replies", ((status, each["description"]) for status, each in operation["responses"].items()))


def _table(title: str, rows: Any) -> str:
    cells = "".join(f"<tr><td><code>{escape(name)}</code><td>{escape(said)}" for name, said in rows)
    return f"<p>{title}</p><table>{cells}</table>"


def _json(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"
