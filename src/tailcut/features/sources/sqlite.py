"""Feature groups in SQLite, opened read-only through aiosqlite.

Measured against sqlite3 in our own thread pool (one key, one joined row, 2 cores, uvloop, 5 interleaved rounds of
1,500): aiosqlite's ``execute_fetchall`` 85 microseconds, own threads 128, aiosqlite cursors 158. So: the first.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from tailcut.errors import StartError
from tailcut.features.sources.base import Answer, ColumnProblem, Key, SourceContext, SourceDown, SourceUnreachable
from tailcut.features.sources.queried import GroupQueries, QueriedSource, arguments
from tailcut.features.sources.sql import Query, columns_problem, sqlite_keys, without_text
from tailcut.features.sources.sqlite_types import check_equality, key_types

MAX_CONNECTIONS = 4
"""Each is a thread; more of them only fight for the interpreter."""
_UNREACHABLE = ("SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOTADB")
_PROGRESS_STEPS = 20_000


class Result(list[Any]):
    """All rows of a query, and the columns that it returned this time."""

    columns: tuple[str, ...] = ()


class _Cursor(sqlite3.Cursor):
    def fetchall(self) -> Result:
        rows = Result(super().fetchall())
        rows.columns = tuple([column[0] for column in self.description or ()])
        return rows


class _Described(sqlite3.Connection):
    """``execute`` leads to rows that know their columns: aiosqlite's way in one hop returns rows alone."""

    def execute(self, *query: Any) -> sqlite3.Cursor:
        return self.cursor(_Cursor).execute(*query)


class _Connection:
    """A connection whose running query can be given up."""

    def __init__(self) -> None:
        self.inner: Any = None
        self.abort = False

    async def open(self, path: str, timeout_s: float) -> None:
        import aiosqlite

        self.inner = await aiosqlite.connect(
            f"file:{quote(path)}?mode=ro", uri=True, timeout=timeout_s, factory=_Described
        )
        await self.inner.set_progress_handler(lambda: self.abort, _PROGRESS_STEPS)


class SqliteDatabase:
    """A few read-only connections to one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connections: list[_Connection] = []
        self._free: asyncio.Queue[_Connection] = asyncio.Queue()
        self._running: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, path: str, connections: int, timeout_s: float) -> SqliteDatabase:
        """Open ``path``.

        Args:
            timeout_s: longest wait for another process's write lock.

        Raises:
            StartError: there is no such database.
        """
        path = _existing(path)
        database = cls(path)
        try:
            for _ in range(min(connections, MAX_CONNECTIONS)):
                connection = _Connection()
                database._connections.append(connection)
                await connection.open(path, timeout_s)
                await connection.inner.execute_fetchall("SELECT count(*) FROM sqlite_master")
                database._free.put_nowait(connection)
        except sqlite3.Error as error:
            await database.close()
            raise StartError(
                f"features.database: cannot open {path}: {error}", hint="check that it is a SQLite file"
            ) from error
        return database

    async def fetch(self, text: str, arguments: Sequence[Any]) -> Result:
        """Run a query; cancelling the caller stops it within some thousand steps of SQLite's machine."""
        connection = await self._free.get()
        connection.abort = False
        task = asyncio.get_running_loop().create_task(self._run(connection, text, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():  # else the connection may run the next caller's query by now
                connection.abort = True
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def close(self) -> None:
        """Close all connections; running queries are given up."""
        for connection in self._connections:
            connection.abort = True
        if self._running:
            await asyncio.wait(self._running)
        for connection in self._connections:
            if connection.inner is not None:
                await connection.inner.close()
        self._connections.clear()

    async def _run(self, connection: _Connection, text: str, arguments: Sequence[Any]) -> Result:
        try:
            rows: Result = await connection.inner.execute_fetchall(text, arguments)
            return rows
        finally:
            self._free.put_nowait(connection)


class SqliteSource(QueriedSource[SqliteDatabase]):
    """One feature group's query; keys travel as one JSON text."""

    def __init__(self, database: SqliteDatabase, group: GroupQueries) -> None:
        super().__init__(database, group)
        self._text = group.query.behind(sqlite_keys(group.key)) if group.query is not None else ""
        self._found: tuple[str, ...] = ()
        self._places: list[int] = []

    async def check(self) -> None:
        """Run the queries for no keys; find their columns and the types of the key.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        group, path = self._group, self._database.path
        nothing = SourceContext(now=0.0, tenant="", deadline_s=0.0)
        if group.query is not None:
            values = ["[]", *arguments(group.query, nothing)]
            found = await self._described(self._text, values, "sql")
            group.check_columns(found, "sql")
            self.key_types = await asyncio.to_thread(
                key_types, path, self._text, values, group.key, without_text(group.query.alone())
            )
        if group.preload is not None:
            text, values = group.preload.alone(), arguments(group.preload, nothing)
            found = await self._described(f"SELECT * FROM (\n{text}\n) LIMIT 0", values, "preload_sql")
            group.check_columns(found, "preload_sql")
            self._declare(await asyncio.to_thread(key_types, path, text, values, group.key))
            await asyncio.to_thread(check_equality, path, group, values)

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query."""
        assert self._group.query is not None
        # Equal keys would find each other's rows: 1 and true where the type is not known.
        asked = msgspec.json.encode(list(dict.fromkeys(keys))).decode()
        rows = await self._run(self._text, [asked, *arguments(self._group.query, context)])
        return self._aligned(keys, rows)

    async def _run_preload(self, preload: Query, context: SourceContext) -> Sequence[Sequence[Any]]:
        return await self._run(preload.alone(), arguments(preload, context))

    async def _run(self, text: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        try:
            rows = await self._database.fetch(text, values)
        except sqlite3.Error as error:
            if "no such column" in str(error) or "ambiguous column" in str(error):
                raise ColumnProblem(f"the database refuses its query: {error}") from error
            # An error of Python's module has no name of SQLite's.
            unreachable = getattr(error, "sqlite_errorname", "").startswith(_UNREACHABLE)
            raise (SourceUnreachable if unreachable else SourceDown)(str(error)) from error
        return self._picked(rows)

    def _picked(self, rows: Result) -> Sequence[Sequence[Any]]:
        """The columns wanted, wherever they are in this result."""
        wanted = self._group.wanted
        if rows.columns == wanted:
            return rows
        if rows.columns != self._found:
            if problem := columns_problem(rows.columns, wanted):
                raise ColumnProblem(f"its query {problem}")
            self._found, self._places = rows.columns, [rows.columns.index(name) for name in wanted]
        return [tuple([row[place] for place in self._places]) for row in rows]

    async def _described(self, text: str, values: Sequence[Any], setting: str) -> tuple[str, ...]:
        try:
            return (await self._database.fetch(text, values)).columns
        except sqlite3.Error as error:
            raise StartError(
                f"{self._group.where}: the database refuses {setting}: {error}", hint="correct the query"
            ) from error


def _existing(path: str) -> str:
    if not os.path.isfile(path):
        raise StartError(
            f"features.database: there is no file {os.path.abspath(path)}", hint="create it, or correct the path"
        )
    return os.path.abspath(path)
