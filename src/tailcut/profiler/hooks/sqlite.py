"""SQLite: its types are C's and cannot be patched, so connections and cursors are made of subclasses."""

from __future__ import annotations

import functools
import sqlite3
import sys
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.databases import ended
from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import called, query_of, replaces, wrap
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.clocks import now, of_thread
from tailcut.profiler.recording.tracing import SQL, WAIT, OpenSpan, add_span, current, open_timed, tracer, working_for

_MAX_FETCHES = 200
_JOIN_NS = 8_000
"""Rows that follow one another with less than this in between are one span: most of it is the hook's own."""
_row = sqlite3.Cursor.__next__


class _TracedCursor(sqlite3.Cursor):
    """A cursor with spans around what SQLite does: it computes rows when they are fetched, not before.

    Names of its own are mangled: a class of the user's stands before it, and may have any.
    """

    __sql: str | bytes = ""
    __last: OpenSpan | None = None
    __fetches = 0

    def execute(self, sql: str, *args: Any) -> Any:
        return self.__traced(super().execute, sql, args)

    def executemany(self, sql: str, *args: Any) -> Any:
        return self.__traced(super().executemany, sql, args)

    def executescript(self, sql: str) -> Any:
        return self.__traced(super().executescript, sql, ())

    def fetchall(self) -> list[Any]:
        return self.__fetched(super().fetchall)  # type: ignore[no-any-return]

    def fetchmany(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self.__fetched(super().fetchmany, *args, **kwargs)  # type: ignore[no-any-return]

    def fetchone(self) -> Any:
        return self.__fetched(super().fetchone)

    def __next__(self) -> Any:
        parent = current.get()
        if parent is None or parent.stage is SQL or parent.trace.over:
            return _row(self)
        start_ns = now()
        try:
            return _row(self)
        finally:
            end_ns = now()
            # SQLite computes where it is called, so all of it counts as CPU time: asking costs more than a row does.
            self.__keep(parent, start_ns, end_ns, end_ns - start_ns)

    def __traced(self, function: Callable[..., Any], sql: str, args: tuple[Any, ...]) -> Any:
        parent = current.get()
        self.__sql = label = query_of(sql)
        self.__fetches = 0
        if parent is None or parent.trace.over:
            self.__last = None
            with background_calls.counted(SQL, label):
                return function(sql, *args)
        if parent.stage is SQL:
            # SQLAlchemy has a span of the same around this; rows that are read later are more of that one.
            self.__last = parent
            return function(sql, *args)
        self.__last = span = open_timed(parent, SQL, label, *tracer.places.spot(sys._getframe(2)))
        with span:
            return function(sql, *args)

    def __fetched(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over:
            with background_calls.counted(SQL, self.__sql, more=True):
                return function(*args, **kwargs)
        if parent.stage is SQL:
            return function(*args, **kwargs)
        clock, start_ns = of_thread.clock, now()
        cpu_ns = clock.cpu_at(start_ns)
        try:
            return function(*args, **kwargs)
        finally:
            end_ns = now()
            self.__keep(parent, start_ns, end_ns, clock.cpu_since(start_ns, cpu_ns, end_ns))

    def __keep(self, parent: OpenSpan, start_ns: int, end_ns: int, cpu_ns: int) -> None:
        """Keep rows that were read: as a part of the span before, where nothing else was called since."""
        last = self.__last
        joins = last is not None and last.parent is parent and parent.trace.spans[-1] is last
        if last is not None and joins and start_ns - last.end_ns < _JOIN_NS:
            last.end_ns = end_ns
            if last.cpu_ns >= 0:
                last.cpu_ns += cpu_ns
        elif self.__fetches < _MAX_FETCHES:
            self.__fetches += 1
            place, at = (last.place, last.at) if last is not None else ("", 0)
            # Too short to have waited for a core.
            same = of_thread.clock.schedule
            self.__last = add_span(parent, SQL, self.__sql, start_ns, end_ns, place, at, cpu_ns, same, same)
            self.__last.more = True
            if self.__fetches == _MAX_FETCHES:
                tracer.note(f"rows of a query are read in more than {_MAX_FETCHES} turns: the later ones count as code")


class _TracedConnection(sqlite3.Connection):
    """A connection whose cursors are traced; its own ``execute`` would make a cursor of C's."""

    def cursor(self, factory: Any = None) -> Any:
        made = _TracedCursor if factory is None else _traced(factory, _TracedCursor)
        return super().cursor(made)

    # As in C, they ask no ``cursor`` of a class below.
    def execute(self, *args: Any) -> Any:
        return super().cursor(_TracedCursor).execute(*args)

    def executemany(self, *args: Any) -> Any:
        return super().cursor(_TracedCursor).executemany(*args)

    def executescript(self, *args: Any) -> Any:
        return super().cursor(_TracedCursor).executescript(*args)

    commit = called(sqlite3.Connection.commit, SQL, "COMMIT")
    rollback = called(sqlite3.Connection.rollback, SQL, "ROLLBACK")
    # C commits by itself, without ``commit``.
    __exit__ = called(sqlite3.Connection.__exit__, SQL, ended)


def _traced(factory: Any, traced: type) -> Any:
    """A class of the user's with the traced one as its last base: its own methods come first."""
    base = traced.__bases__[0]
    if factory is base:
        return traced
    if isinstance(factory, type) and issubclass(factory, traced):
        return factory
    try:
        return _below(factory, traced)
    except Exception as error:  # its metaclass and __init_subclass__ are the user's
        name = getattr(factory, "__qualname__", repr(factory))
        why = error if isinstance(error, TypeError) else type(error).__name__
        tracer.note(f"{name} could not be hooked ({why}): what it asks SQLite for counts as the code that calls it")
        return factory


@functools.lru_cache(maxsize=64)
def _below(factory: Any, traced: type) -> Any:
    if not isinstance(factory, type) or not issubclass(factory, traced.__bases__[0]):
        raise TypeError("it is no class of SQLite's")
    made = types.new_class(factory.__name__, (factory, traced))
    made.__module__, made.__qualname__ = factory.__module__, factory.__qualname__
    return made


def _hook_sqlite(module: ModuleType) -> None:
    if getattr(module.connect, "_tailcut", False):
        return
    original = called(module.connect, SQL, "connect (sqlite3)")

    @replaces(module, "connect")
    def connect(*args: Any, **kwargs: Any) -> Any:
        # connect(database, timeout, detect_types, isolation_level, check_same_thread, factory, ...)
        if len(args) > 5:
            args = (*args[:5], _traced(args[5], _TracedConnection), *args[6:])
        else:
            kwargs["factory"] = _traced(kwargs.get("factory") or sqlite3.Connection, _TracedConnection)
        return original(*args, **kwargs)

    connect._tailcut = True  # type: ignore[attr-defined]


def _hook_aiosqlite(module: ModuleType) -> None:
    wrap(module.Connection, "_connect", SQL, "connect (aiosqlite)")
    original = module.Connection._execute

    @replaces(module.Connection, "_execute")
    async def execute(self: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over:
            return await original(self, fn, *args, **kwargs)
        asked_ns = now()

        def run() -> Any:
            add_span(parent, WAIT, "aiosqlite's thread", asked_ns, now())
            with working_for(parent):  # in the thread's own context, as without us
                return fn(*args, **kwargs)

        return await original(self, run)


HOOKS: dict[str, Hook] = {
    "sqlite3": _hook_sqlite,
    "sqlite3.dbapi2": _hook_sqlite,
    "aiosqlite.core": _hook_aiosqlite,
}
