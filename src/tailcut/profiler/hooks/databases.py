"""Databases over the network: psycopg, asyncpg and SQLAlchemy, with their pools."""

from __future__ import annotations

import functools
import re
import sys
from importlib import import_module
from types import CodeType, FrameType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import query_of, wrap, wrap_present
from tailcut.profiler.recording.tracing import SQL, OpenSpan, close_span, current, open_under, tracer
from tailcut.profiler.records import Stage

_DECLARED = re.compile(rb"DECLARE .*? CURSOR .*?FOR ", re.DOTALL)
"""How a server cursor begins what it was given."""


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


def _ended(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # (self, exception's type, ...)
    return "COMMIT" if len(args) < 2 or args[1] is None else "ROLLBACK"


def _hook_psycopg(module: ModuleType) -> None:
    cursor = getattr(module, "AsyncCursor", None) or module.Cursor
    wrap_present(cursor, ("execute", "executemany"), Stage.SQL, _query)
    wrap_present(cursor, ("fetchall", "fetchmany"), Stage.SQL, _fetched, more=True)


def _hook_server_cursors(module: ModuleType) -> None:
    """Rows come in pages, each asked for by the same generator, whoever drives it."""
    for name in ("ServerCursor", "AsyncServerCursor"):
        if hasattr(module, name):
            wrap(getattr(module, name), "execute", Stage.SQL, _query)
    owner = getattr(module, "ServerCursorMixin", None)
    if owner is None or hasattr(owner._fetch_gen, "_tailcut"):
        return
    original = owner._fetch_gen

    @functools.wraps(original)
    def fetch_gen(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL or parent.trace.over:
            return (yield from original(self, *args, **kwargs))
        place, at = tracer.places.spot(sys._getframe(1))
        query = _fetched((self,), {})
        label = _DECLARED.sub(b"", query, 1) if isinstance(query, bytes) else query
        span = open_under(parent, SQL, label, place, at)
        span.more = True
        try:
            return (yield from original(self, *args, **kwargs))
        finally:
            close_span(span)

    fetch_gen._tailcut = True  # type: ignore[attr-defined]
    owner._fetch_gen = fetch_gen


def _hook_connection(module: ModuleType) -> None:
    connection = getattr(module, "AsyncConnection", None) or module.Connection
    wrap(connection, "connect", Stage.SQL, "connect (psycopg)")
    wrap(connection, "commit", Stage.SQL, "COMMIT")
    wrap(connection, "rollback", Stage.SQL, "ROLLBACK")


def _hook_transactions(module: ModuleType) -> None:
    wrap(module.Transaction, "__enter__", Stage.SQL, "BEGIN")
    wrap(module.Transaction, "__exit__", Stage.SQL, _ended)
    wrap(module.AsyncTransaction, "__aenter__", Stage.SQL, "BEGIN")
    wrap(module.AsyncTransaction, "__aexit__", Stage.SQL, _ended)


def _hook_pool(module: ModuleType) -> None:
    pool = getattr(module, "AsyncConnectionPool", None) or module.ConnectionPool
    wrap(pool, "getconn", Stage.WAIT, "psycopg_pool")


def _hook_asyncpg(module: ModuleType) -> None:
    names = ("execute", "executemany", "fetch", "fetchval", "fetchrow", "fetchmany")
    wrap_present(module.Connection, names, Stage.SQL, _query)
    # On its own only of what is prepared, or read by a cursor; each is a round trip.
    wrap(module.Connection, "_get_statement", Stage.SQL, _prepared)
    wrap(module, "connect", Stage.SQL, "connect (asyncpg)")


def _hook_prepared(module: ModuleType) -> None:
    names = ("fetch", "fetchval", "fetchrow", "fetchmany", "executemany")
    wrap_present(module.PreparedStatement, names, Stage.SQL, _fetched)


def _hook_asyncpg_cursors(module: ModuleType) -> None:
    wrap_present(module.BaseCursor, ("_bind", "_bind_exec"), Stage.SQL, _fetched)
    wrap(module.BaseCursor, "_exec", Stage.SQL, _fetched, more=True)
    wrap(module.Cursor, "forward", Stage.SQL, _fetched, more=True)


def _hook_asyncpg_pool(module: ModuleType) -> None:
    wrap(module.Pool, "_acquire", Stage.WAIT, "asyncpg's pool")


def _hook_sqlalchemy(module: ModuleType) -> None:
    """Around the driver's execute, for drivers that have no hook of their own; the outer of two is kept."""
    # The package itself is still being imported: its parts are there, its names are not yet.
    event = import_module("sqlalchemy.event")
    engine = import_module("sqlalchemy.engine.base").Engine

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        parent = current.get()
        if parent is not None and parent.stage is not SQL and context is not None and not parent.trace.over:
            place, at = _spot(sys._getframe(1))
            context._tailcut = open_under(parent, SQL, query_of(statement), place, at)

    def after(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        _close(context)

    def failed(context: Any) -> None:
        _close(context.execution_context)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    event.listen(engine, "handle_error", failed)


def _spot(frame: FrameType) -> tuple[str | CodeType, int]:
    """Find the user's line; SQLAlchemy's asyncio runs in a greenlet, and who awaits it is in the one above."""
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

    @functools.wraps(original)
    def connect(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL or parent.trace.over:
            return original(self, *args, **kwargs)
        place, at = _spot(sys._getframe(1))
        # Drivers that await do so in here: what the thread computes meanwhile may be others' work.
        span = open_under(parent, SQL, f"connect ({self.driver})", place, at)
        try:
            return original(self, *args, **kwargs)
        finally:
            close_span(span)

    module.DefaultDialect.connect = connect


def _hook_sqlalchemy_pool(module: ModuleType) -> None:
    wrap(module.QueuePool, "_do_get", Stage.WAIT, "SQLAlchemy's pool")


HOOKS: dict[str, Hook] = {
    "psycopg.cursor": _hook_psycopg,
    "psycopg.cursor_async": _hook_psycopg,
    # One module before psycopg 3.3.
    "psycopg.server_cursor": _hook_server_cursors,
    "psycopg._server_cursor": _hook_server_cursors,
    "psycopg._server_cursor_async": _hook_server_cursors,
    "psycopg._server_cursor_base": _hook_server_cursors,
    "psycopg.connection": _hook_connection,
    "psycopg.connection_async": _hook_connection,
    "psycopg.transaction": _hook_transactions,
    "psycopg_pool.pool": _hook_pool,
    "psycopg_pool.pool_async": _hook_pool,
    "asyncpg.connection": _hook_asyncpg,
    "asyncpg.cursor": _hook_asyncpg_cursors,
    "asyncpg.prepared_stmt": _hook_prepared,
    "asyncpg.pool": _hook_asyncpg_pool,
    "sqlalchemy.engine.events": _hook_sqlalchemy,
    "sqlalchemy.engine.default": _hook_sqlalchemy_dialects,
    "sqlalchemy.pool.impl": _hook_sqlalchemy_pool,
}
