"""Databases over the network: psycopg, asyncpg, SQLAlchemy, PyMySQL and MySQL's own, with their pools."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.hooks.imports import Hook
from tailcut.profile.hooks.wrapping import query_of, wrap, wrap_present
from tailcut.profile.tracing import SQL, Open, close_span, current, open_under, tracer


def _query(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
    # (self, query, ...)
    return query_of(args[1] if len(args) > 1 else kwargs.get("query", kwargs.get("command", "")))


def _fetched(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
    # psycopg keeps the query on the cursor; asyncpg the statement's text.
    cursor = args[0]
    query = getattr(getattr(cursor, "_query", None), "query", None) or getattr(cursor, "_query", None)
    return query_of(query) if query else "fetch"


def _hook_psycopg(name: str) -> Hook:
    def hook(module: ModuleType) -> None:
        cursor = getattr(module, name)
        wrap_present(cursor, ("execute", "executemany"), Stage.SQL, _query, leaf=True)
        wrap_present(cursor, ("fetchall", "fetchmany"), Stage.SQL, _fetched, leaf=True)

    return hook


def _hook_connection(name: str) -> Hook:
    def hook(module: ModuleType) -> None:
        connection = getattr(module, name)
        wrap(connection, "commit", Stage.SQL, "COMMIT", leaf=True)
        wrap(connection, "rollback", Stage.SQL, "ROLLBACK", leaf=True)

    return hook


def _hook_pool(name: str) -> Hook:
    def hook(module: ModuleType) -> None:
        wrap(getattr(module, name), "getconn", Stage.WAIT, "psycopg_pool")

    return hook


def _hook_asyncpg(module: ModuleType) -> None:
    names = ("execute", "executemany", "fetch", "fetchval", "fetchrow", "fetchmany")
    wrap_present(module.Connection, names, Stage.SQL, _query)


def _hook_prepared(module: ModuleType) -> None:
    names = ("fetch", "fetchval", "fetchrow", "fetchmany", "executemany")
    wrap_present(module.PreparedStatement, names, Stage.SQL, _fetched)


def _hook_asyncpg_pool(module: ModuleType) -> None:
    wrap(module.Pool, "_acquire", Stage.WAIT, "asyncpg's pool")


def _hook_sqlalchemy(module: ModuleType) -> None:
    """Around the driver's execute, for drivers that have no hook of their own; the outer of two is kept."""
    # The package itself is still being imported: its parts are there, its names are not yet.
    event = import_module("sqlalchemy.event")
    engine = import_module("sqlalchemy.engine.base").Engine

    def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        parent = current.get()
        if parent is not None and parent.stage is not SQL and context is not None:
            place, at = tracer.places.spot(sys._getframe(1))
            context._tailcut = open_under(parent, SQL, query_of(statement), place, at)

    def after(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        _close(context)

    def failed(context: Any) -> None:
        _close(context.execution_context)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    event.listen(engine, "handle_error", failed)


def _close(context: Any) -> None:
    span: Open | None = getattr(context, "_tailcut", None)
    if span is not None:
        context._tailcut = None
        close_span(span)


def _hook_sqlalchemy_pool(module: ModuleType) -> None:
    wrap(module.QueuePool, "_do_get", Stage.WAIT, "SQLAlchemy's pool")


def _hook_pymysql(module: ModuleType) -> None:
    wrap_present(module.Cursor, ("execute", "executemany"), Stage.SQL, _query)


HOOKS: dict[str, Hook] = {
    "psycopg.cursor": _hook_psycopg("Cursor"),
    "psycopg.cursor_async": _hook_psycopg("AsyncCursor"),
    "psycopg.connection": _hook_connection("Connection"),
    "psycopg.connection_async": _hook_connection("AsyncConnection"),
    "psycopg_pool.pool": _hook_pool("ConnectionPool"),
    "psycopg_pool.pool_async": _hook_pool("AsyncConnectionPool"),
    "asyncpg.connection": _hook_asyncpg,
    "asyncpg.prepared_stmt": _hook_prepared,
    "asyncpg.pool": _hook_asyncpg_pool,
    "sqlalchemy.engine.events": _hook_sqlalchemy,
    "sqlalchemy.pool.impl": _hook_sqlalchemy_pool,
    "pymysql.cursors": _hook_pymysql,
    "MySQLdb.cursors": _hook_pymysql,
}
