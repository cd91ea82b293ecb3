"""An application that traces itself with OpenTelemetry; libraries that only that knows are played by naps."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

naps: list[int] = []
NAP_S = 0.02
provider = TracerProvider()
by_hand = provider.get_tracer("app")
of_cassandra = provider.get_tracer("opentelemetry.instrumentation.cassandra")
of_psycopg = provider.get_tracer("opentelemetry.instrumentation.psycopg")

CALLS: dict[str, tuple[trace.Tracer, str, SpanKind, dict[str, Any]]] = {
    "/cassandra": (
        of_cassandra, "SELECT", SpanKind.CLIENT, {"db.system": "cassandra", "db.statement": "SELECT * FROM t"},
    ),
    "/memcached": (by_hand, "get", SpanKind.CLIENT, {"db.system.name": "memcached", "db.operation.name": "get"}),
    "/http": (
        by_hand, "GET", SpanKind.CLIENT, {"http.request.method": "GET", "url.full": "https://else.example/x?key=1"},
    ),
    "/rpc": (by_hand, "Scores/Get", SpanKind.CLIENT, {"rpc.system": "thrift"}),
    "/hooked": (of_psycopg, "SELECT", SpanKind.CLIENT, {"db.system": "postgresql", "db.statement": "SELECT 1"}),
    "/internal": (by_hand, "work", SpanKind.INTERNAL, {"db.system": "cassandra"}),
    "/unknown": (by_hand, "send", SpanKind.CLIENT, {"messaging.system": "kafka"}),
}  # fmt: skip


async def app(scope: Any, receive: Any, send: Any) -> None:
    """ASGI, without a framework."""
    path = scope["path"]
    await receive()
    began_ns = time.perf_counter_ns()
    tracer, name, kind, attributes = CALLS[path.removesuffix("/elsewhere")]
    if path.endswith("/elsewhere"):  # begun here, ended by another task
        span = tracer.start_span(name, kind=kind, attributes=attributes)

        async def end() -> None:
            await asyncio.sleep(NAP_S)
            span.end()

        await asyncio.create_task(end())
    else:
        with tracer.start_as_current_span(name, kind=kind, attributes=attributes):
            await asyncio.sleep(NAP_S)
    naps.append(time.perf_counter_ns() - began_ns)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(path).encode()})
