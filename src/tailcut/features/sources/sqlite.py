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
from tailcut.features.sources.base import (
    Answer,
    Key,
    SourceContext,
    SourceDown,
    SourceError,
    Values,
    align,
    checked_table,
)
from tailcut.features.sources.sql import Query, column_positions, sqlite_keys

MAX_CONNECTIONS = 4
"""Each is a thread; more of them only fight for the interpreter."""
_PROGRESS_STEPS = 20_000


class _Connection:
    """A connection whose running query can be given up."""

    def __init__(self) -> None:
        self.inner: Any = None
        self.abort = False

    async def open(self, path: str, timeout_s: float) -> None:
        import aiosqlite

        self.inner = await aiosqlite.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=timeout_s)
        await self.inner.set_progress_handler(lambda: self.abort, _PROGRESS_STEPS)


class SqliteDatabase:
    """A few read-only connections to one file."""

    def __init__(self) -> None:
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
        database = cls()
        try:
            for _ in range(min(connections, MAX_CONNECTIONS)):
                connection = _Connection()
                database._connections.append(connection)
                await connection.open(path, timeout_s)
                await connection.inner.execute_fetchall("SELECT count(*) FROM sqlite_master")
                database._free.put_nowait(connection)
        except sqlite3.Error as error:
            await database.close()
            raise StartError(f"features.database: cannot open {path}: {error}", hint="is it a SQLite file?") from error
        return database

    async def fetch(self, text: str, arguments: Sequence[Any]) -> list[Any]:
        """Run a query; cancelling the caller stops it within some thousand steps of SQLite's machine."""
        connection = await self._free.get()
        connection.abort = False
        task = asyncio.get_running_loop().create_task(self._run(connection, text, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            connection.abort = True
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def columns(self, text: str, arguments: Sequence[Any]) -> list[str]:
        """Names of the columns that a query returns, found by running it."""
        cursor = await self._connections[0].inner.execute(text, arguments)
        try:
            return [column[0] for column in cursor.description]
        finally:
            await cursor.close()

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

    async def _run(self, connection: _Connection, text: str, arguments: Sequence[Any]) -> list[Any]:
        try:
            return list(await connection.inner.execute_fetchall(text, arguments))
        finally:
            self._free.put_nowait(connection)


class SqliteSource:
    """One feature group's query."""

    def __init__(
        self,
        database: SqliteDatabase,
        key: tuple[str, ...],
        columns: tuple[str, ...],
        query: Query | None,
        preload: Query | None,
        where: str,
    ) -> None:
        self._database = database
        self._key = key
        self._columns = columns
        self._query = query
        self._preload = preload
        self._where = where
        self._text = "" if query is None else query.behind(sqlite_keys(key))
        self._positions: list[int] = []
        self._all_positions: list[int] = []

    async def check(self) -> None:
        """Run the query for no keys, find its columns.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        nothing = SourceContext(now=0.0, tenant="", deadline_s=0.0)
        if self._query is not None:
            self._positions = await self._find(self._text, ["[]", *_arguments(self._query, nothing)], "sql")
        if self._preload is not None:
            text = f"SELECT * FROM (\n{self._preload.alone()}\n) LIMIT 0"
            self._all_positions = await self._find(text, _arguments(self._preload, nothing), "preload_sql")

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query."""
        assert self._query is not None
        if any(isinstance(value, bytes) for key in keys for value in key):
            raise SourceError("a key column holds bytes, which cannot be looked up in SQLite: use hex() in the query")
        asked = msgspec.json.encode(keys).decode()
        rows = await self._run(self._text, [asked, *_arguments(self._query, context)])
        size = len(self._key)
        return align(keys, [(tuple(row[:size]), [row[i] for i in self._positions]) for row in rows], self._columns)

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Read the whole table."""
        assert self._preload is not None
        rows = await self._run(self._preload.alone(), _arguments(self._preload, context))
        size = len(self._key)
        found = [(tuple(row[:size]), [row[i] for i in self._all_positions]) for row in rows]
        return await checked_table(found, self._columns)

    async def _run(self, text: str, arguments: Sequence[Any]) -> list[Any]:
        try:
            return await self._database.fetch(text, arguments)
        except sqlite3.Error as error:
            raise SourceDown(str(error)) from error

    async def _find(self, text: str, arguments: Sequence[Any], setting: str) -> list[int]:
        where = f"{self._where}: {setting}"
        try:
            found = await self._database.columns(text, arguments)
        except sqlite3.Error as error:
            raise StartError(f"{where} is refused by the database: {error}", hint="correct the query") from error
        return column_positions(found, self._key, self._columns, where)


def _existing(path: str) -> str:
    if not os.path.isfile(path):
        raise StartError(
            f"features.database: there is no file {os.path.abspath(path)}", hint="create it, or correct the path"
        )
    return os.path.abspath(path)


def _arguments(query: Query, context: SourceContext) -> list[Any]:
    return [context.now if name == "now" else context.tenant for name in query.parameters]
