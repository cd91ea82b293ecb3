"""SQLite: its types are C's and cannot be patched, so connections and cursors are made of subclasses."""

from __future__ import annotations

import functools
import sqlite3
import sys
from collections.abc import Callable
from contextvars import copy_context
from types import ModuleType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.clocks import now, of_thread
from tailcut.profile.hooks.imports import Hook
from tailcut.profile.hooks.wrapping import query_of
from tailcut.profile.tracing import SQL, Open, add_span, close_timed, current, open_timed, tracer

_JOIN_NS = 8_000
"""Rows that are asked for one by one with less than this in between are one span: most of it is the hook's own."""
_MAX_FETCHES = 200


class _TracedCursor(sqlite3.Cursor):
    """A cursor with spans around what SQLite does: it computes rows when they are asked for, not before."""

    _sql: str | bytes = ""
    _last: Open | None = None
    _fetches = 0

    def execute(self, sql: str, *args: Any) -> Any:
        return self._traced(super().execute, sql, args)

    def executemany(self, sql: str, *args: Any) -> Any:
        return self._traced(super().executemany, sql, args)

    def executescript(self, sql: str) -> Any:
        return self._traced(super().executescript, sql, ())

    def fetchall(self) -> list[Any]:
        return self._fetched(super().fetchall)  # type: ignore[no-any-return]

    def fetchmany(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self._fetched(super().fetchmany, *args, **kwargs)  # type: ignore[no-any-return]

    def fetchone(self) -> Any:
        return self._fetched(super().fetchone)

    def __next__(self) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL:
            return super().__next__()
        start_ns = now()
        try:
            return super().__next__()
        finally:
            # SQLite computes where it is called, so all of it counts as CPU time: asking costs more than a row does.
            end_ns = now()
            self._keep(parent, start_ns, end_ns, end_ns - start_ns)

    def _traced(self, function: Callable[..., Any], sql: str, args: tuple[Any, ...]) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL:
            return function(sql, *args)
        self._sql = query_of(sql)
        self._fetches = 0
        place, at = tracer.places.spot(sys._getframe(2))
        self._last = span = open_timed(parent, SQL, self._sql, place, at)
        try:
            return function(sql, *args)
        finally:
            close_timed(span)

    def _fetched(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL:
            return function(*args, **kwargs)
        clock, start_ns = of_thread.clock, now()
        cpu_ns = clock.cpu_at(start_ns)
        try:
            return function(*args, **kwargs)
        finally:
            end_ns = now()
            self._keep(parent, start_ns, end_ns, clock.cpu_since(start_ns, cpu_ns, end_ns))

    def _keep(self, parent: Open, start_ns: int, end_ns: int, cpu_ns: int) -> None:
        last = self._last
        if last is not None and last.parent is parent and start_ns - last.end_ns < _JOIN_NS:
            last.end_ns = end_ns
            if last.cpu_ns >= 0:
                last.cpu_ns += cpu_ns
        elif self._fetches < _MAX_FETCHES:
            self._fetches += 1
            place, at = (last.place, last.at) if last is not None else ("", 0)
            # Nobody waits for a core in so short a time.
            same = of_thread.clock.schedule
            self._last = add_span(parent, SQL, self._sql, start_ns, end_ns, place, at, cpu_ns, same, same)


class _TracedConnection(sqlite3.Connection):
    """A connection whose cursors are traced; its own ``execute`` would make a cursor of C's."""

    def cursor(self, factory: Any = None) -> Any:
        made = _TracedCursor if factory is None else _traced_class(factory, _TracedCursor)
        return super().cursor(made)

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        return self.cursor().executescript(*args)

    def commit(self) -> None:
        _plain("COMMIT", super().commit)

    def rollback(self) -> None:
        _plain("ROLLBACK", super().rollback)


def _plain(label: str, function: Callable[[], None]) -> None:
    parent = current.get()
    if parent is None or parent.stage is SQL:
        function()
        return
    place, at = tracer.places.spot(sys._getframe(2))
    span = open_timed(parent, SQL, label, place, at)
    try:
        function()
    finally:
        close_timed(span)


@functools.cache
def _traced_class(factory: Any, traced: type) -> Any:
    base = traced.__bases__[0]
    if not isinstance(factory, type) or not issubclass(factory, base):
        return factory
    return factory if issubclass(factory, traced) else type(factory.__name__, (traced, factory), {})


def _hook_sqlite(module: ModuleType) -> None:
    original = module.connect
    if getattr(original, "_tailcut", False):
        return

    @functools.wraps(original)
    def connect(*args: Any, **kwargs: Any) -> Any:
        # connect(database, timeout, detect_types, isolation_level, check_same_thread, factory, ...)
        if len(args) > 5:
            args = (*args[:5], _traced_class(args[5], _TracedConnection), *args[6:])
        else:
            kwargs["factory"] = _traced_class(kwargs.get("factory") or sqlite3.Connection, _TracedConnection)
        return original(*args, **kwargs)

    connect._tailcut = True  # type: ignore[attr-defined]
    module.connect = connect  # type: ignore[attr-defined]


def _hook_aiosqlite(module: ModuleType) -> None:
    original = module.Connection._execute

    async def execute(self: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None:
            return await original(self, fn, *args, **kwargs)
        asked_ns = now()

        def run() -> Any:
            add_span(parent, Stage.WAIT, "aiosqlite's thread", asked_ns, now())
            return fn(*args, **kwargs)

        return await original(self, copy_context().run, run)

    module.Connection._execute = execute


HOOKS: dict[str, Hook] = {
    "sqlite3": _hook_sqlite,
    "sqlite3.dbapi2": _hook_sqlite,
    "aiosqlite.core": _hook_aiosqlite,
}
