"""Spans of the application's own OpenTelemetry: calls to databases, caches and services, and parts of its code.

Of libraries that have no hook here, an instrumentation of OpenTelemetry may know: where the application uses one, its
spans of kind CLIENT are taken. Those of libraries that are hooked are not, or each call would count twice. By the
semantic conventions of OpenTelemetry for database, HTTP and RPC client spans, old and new names. Spans of kind INTERNAL
are code where the application makes them itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import replaces
from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.tracing import OpenSpan, close_span, current, open_under, tracer
from tailcut.profiler.records import Stage

_SCOPE = "opentelemetry.instrumentation."
_HOOKED = frozenset({
    "psycopg", "asyncpg", "sqlalchemy", "sqlite3", "aiosqlite", "redis", "httpx", "requests", "urllib3", "urllib",
})  # fmt: skip
"""Instrumentations of what is hooked here."""
_CACHES = frozenset({"redis", "memcached", "valkey", "hazelcast", "aerospike"})
_LONGEST = 8_000
_ATTRIBUTE = "_tailcut_open"


def _first(found: Mapping[str, Any], *names: str) -> str:
    return next((str(found[name]) for name in names if found.get(name)), "")


def stage_of(name: str, attributes: Mapping[str, Any]) -> tuple[Stage, str] | None:
    """Return the stage and the label of a client span; None where no stage fits."""
    system = _first(attributes, "db.system.name", "db.system")
    if system in _CACHES:
        return Stage.CACHE, _first(attributes, "db.operation.name", "db.operation") or name
    if system:
        return Stage.SQL, _first(attributes, "db.query.text", "db.statement")[:_LONGEST] or name
    method = _first(attributes, "http.request.method", "http.method")
    if method:
        url = _first(attributes, "url.full", "http.url").partition("?")[0]
        return Stage.HTTP, f"{method} {url}" if url else name
    return (Stage.HTTP, name) if _first(attributes, "rpc.system.name", "rpc.system") else None


def _hook_sdk(module: ModuleType) -> None:
    owner: Any = module.Span
    client, internal = module.trace_api.SpanKind.CLIENT, module.trace_api.SpanKind.INTERNAL
    original_start, original_end = owner.start, owner.end

    @replaces(owner, "start")
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        original_start(self, *args, **kwargs)
        parent = current.get()
        if parent is None or parent.trace.over:
            return
        scope = str(getattr(self.instrumentation_scope, "name", ""))
        library = scope.removeprefix(_SCOPE).partition(".")[0] if scope.startswith(_SCOPE) else ""
        found = None
        if self.kind is client and library not in _HOOKED:
            found = stage_of(self.name, self.attributes or {})
        elif self.kind is internal and not library:
            found = Stage.CODE, self.name
        if found is not None:
            setattr(self, _ATTRIBUTE, open_under(parent, *found, *tracer.places.spot(sys._getframe(1))))

    @replaces(owner, "end")
    def end(self: Any, *args: Any, **kwargs: Any) -> None:
        span: OpenSpan | None = vars(self).pop(_ATTRIBUTE, None)
        if span is not None and current.get() is span:
            close_span(span)
        elif span is not None:
            span.end_ns = now()  # ended by another task than the one that it was begun by
        original_end(self, *args, **kwargs)


HOOKS: dict[str, Hook] = {"opentelemetry.sdk.trace": _hook_sdk}
