"""Databases over the network: psycopg, asyncpg and SQLAlchemy, with their pools."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import CodeType, FrameType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import Calls, hook_of, query_of, replaces, wrap
from tailcut.profiler.recording.tracing import SQL, OpenSpan, close_span, current, open_under, tracer
from tailcut.profiler.records import Stage

_DECLARED = re.compile(rb"DECLARE .*? CURSOR .*?FOR ", re.DOTALL)
"""What a server cursor puts before a query."""


def _query(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
    # (self, query, ...)
    return query_of(args[1] if len(args) > 1 else kwargs.get("query", kwargs.get("command", "")))


def _fetched(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
    # psycopg keeps the query on the cursor; asyncpg the statement's text.
    cursor = args[0]
    query = getattr(getattr(cursor, "_query", None), "query", None) or getattr(cursor, "_query", None)
    return query_of(query) if query else "fetch"


def _prepared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
    query = _query(args, kwargs)
    return b"PREPARE " + query if isinstance(query, bytes) else f"PREPARE {query}"


def ended(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What the end of a transaction's context sends: (self, exception's type, ...)."""
    return "COMMIT" if len(args) < 2 or args[1] is None else "ROLLBACK"


def _hook_server_cursors(module: ModuleType) -> None:
    """Rows come in pages, each fetched by the same generator."""
    for name in ("ServerCursor", "AsyncServerCursor"):
        if hasattr(module, name):
            wrap(getattr(module, name), "execute", Stage.SQL, _query)
    owner = getattr(module, "ServerCursorMixin", None)
    if owner is None or hasattr(owner._fetch_gen, "_tailcut"):
        return
    original = owner._fetch_gen

    @replaces(owner, "_fetch_gen")
    def fetch_gen(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL or parent.trace.over:
            return (yield from original(self, *args, **kwargs))
        query = _fetched((self,), {})
        label = _DECLARED.sub(b"", query, 1) if isinstance(query, bytes) else query
        with open_under(parent, SQL, label, *tracer.places.spot(sys._getframe(1))) as span:
            span.more = True
            return (yield from original(self, *args, **kwargs))

    fetch_gen._tailcut = True  # type: ignore[attr-defined]


def _hook_sqlalchemy(module: ModuleType) -> None:
    """Around the driver's execute, for drivers that have no hook of their own; the outer of two is kept."""
    # The package itself is still being imported: its parts are there, its names are not yet.
    event = import_module("sqlalchemy.event")
    engine = import_module("sqlalchemy.engine.base").Engine

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        parent = current.get()
        if parent is not None and parent.stage is not SQL and context is not None and not parent.trace.over:
            context._tailcut = open_under(parent, SQL, query_of(statement), *_spot(sys._getframe(1)))

    def after(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        _close(context)

    def failed(context: Any) -> None:
        _close(context.execution_context)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    event.listen(engine, "handle_error", failed)


def _spot(frame: FrameType) -> tuple[str | CodeType, int]:
    """Find the user's line; SQLAlchemy's asyncio runs in a greenlet, and the awaiting code in its parent."""
    place, at = tracer.places.spot(frame)
    greenlet = sys.modules.get("greenlet")
    above = greenlet.getcurrent().parent if greenlet is not None and not place else None
    return tracer.places.spot(above.gr_frame) if above is not None else (place, at)


def _close(context: Any) -> None:
    span: OpenSpan | None = getattr(context, "_tailcut", None)
    if span is not None:
        context._tailcut = None
        close_span(span)


def _hook_sqlalchemy_dialects(module: ModuleType) -> None:
    original = module.DefaultDialect.connect

    @replaces(module.DefaultDialect, "connect")
    def connect(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL or parent.trace.over:
            return original(self, *args, **kwargs)
        # Drivers that await do so in here: what the thread computes meanwhile may be others' work.
        with open_under(parent, SQL, f"connect ({self.driver})", *_spot(sys._getframe(1))):
            return original(self, *args, **kwargs)


def _cursor(name: str) -> Hook:
    return hook_of(
        Calls(name, "execute executemany", SQL, _query), Calls(name, "fetchall fetchmany", SQL, _fetched, more=True)
    )


def _connection(name: str) -> Hook:
    return hook_of(
        Calls(name, "connect", SQL, "connect (psycopg)"),
        Calls(name, "commit", SQL, "COMMIT"),
        Calls(name, "rollback", SQL, "ROLLBACK"),
    )


HOOKS: dict[str, Hook] = {
    "psycopg.cursor": _cursor("Cursor"),
    "psycopg.cursor_async": _cursor("AsyncCursor"),
    # One module before psycopg 3.3.
    "psycopg.server_cursor": _hook_server_cursors,
    "psycopg._server_cursor": _hook_server_cursors,
    "psycopg._server_cursor_async": _hook_server_cursors,
    "psycopg._server_cursor_base": _hook_server_cursors,
    "psycopg.connection": _connection("Connection"),
    "psycopg.connection_async": _connection("AsyncConnection"),
    "psycopg.transaction": hook_of(
        Calls("Transaction", "__enter__", SQL, "BEGIN"),
        Calls("Transaction", "__exit__", SQL, ended),
        Calls("AsyncTransaction", "__aenter__", SQL, "BEGIN"),
        Calls("AsyncTransaction", "__aexit__", SQL, ended),
    ),
    "psycopg_pool.pool": hook_of(Calls("ConnectionPool", "getconn", Stage.WAIT, "psycopg_pool")),
    "psycopg_pool.pool_async": hook_of(Calls("AsyncConnectionPool", "getconn", Stage.WAIT, "psycopg_pool")),
    "asyncpg.connection": hook_of(
        Calls("Connection", "execute executemany fetch fetchval fetchrow fetchmany", SQL, _query),
        # On its own only of what is prepared, or read by a cursor; each is a round trip.
        Calls("Connection", "_get_statement", SQL, _prepared),
        Calls("", "connect", SQL, "connect (asyncpg)"),
    ),
    "asyncpg.cursor": hook_of(
        Calls("BaseCursor", "_bind _bind_exec", SQL, _fetched),
        Calls("BaseCursor", "_exec", SQL, _fetched, more=True),
        Calls("Cursor", "forward", SQL, _fetched, more=True),
    ),
    "asyncpg.prepared_stmt": hook_of(
        Calls("PreparedStatement", "fetch fetchval fetchrow fetchmany executemany", SQL, _fetched)
    ),
    "asyncpg.pool": hook_of(Calls("Pool", "_acquire", Stage.WAIT, "asyncpg's pool")),
    "sqlalchemy.engine.events": _hook_sqlalchemy,
    "sqlalchemy.engine.default": _hook_sqlalchemy_dialects,
    "sqlalchemy.pool.impl": hook_of(Calls("QueuePool", "_do_get", Stage.WAIT, "SQLAlchemy's pool")),
}
