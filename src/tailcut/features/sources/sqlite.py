"""Feature groups in SQLite, opened read-only through aiosqlite.

Measured against sqlite3 in our own thread pool (one key, one joined row, 2 cores, uvloop, 5 interleaved rounds of
1,500): aiosqlite's ``execute_fetchall`` 85 microseconds, own threads 128, aiosqlite cursors 158. So: the first.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec

from tailcut.errors import StartError
from tailcut.features.sources.base import Answer, Key, SourceContext, SourceDown, SourceError, without_equals
from tailcut.features.sources.queried import QueriedSource, arguments
from tailcut.features.sources.sql import sqlite_keys

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


class SqliteSource(QueriedSource[SqliteDatabase]):
    """One feature group's query; keys travel as one JSON text."""

    @cached_property
    def _text(self) -> str:
        assert self._group.query is not None
        return self._group.query.behind(sqlite_keys(self._group.key))

    async def check(self) -> None:
        """Run the query for no keys, find its columns.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        nothing = SourceContext(now=0.0, tenant="", deadline_s=0.0)
        if self._group.query is not None:
            values = ["[]", *arguments(self._group.query, nothing)]
            self._positions = await self._described(self._text, values, "sql")
        if self._group.preload is not None:
            text = f"SELECT * FROM (\n{self._group.preload.alone()}\n) LIMIT 0"
            self._all_positions = await self._described(text, arguments(self._group.preload, nothing), "preload_sql")

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query (two where Python takes keys of two types for equal: 2 and 2.0)."""
        answers: list[Answer] = [None] * len(keys)
        for places in without_equals(keys):
            found = await self._fetch_unequal([keys[place] for place in places], context)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    async def _fetch_unequal(self, keys: list[Key], context: SourceContext) -> list[Answer]:
        assert self._group.query is not None
        if any(isinstance(value, bytes) for key in keys for value in key):
            raise SourceError("a key column holds bytes, which cannot be looked up in SQLite: use hex() in the query")
        asked = msgspec.json.encode(keys).decode()
        rows = await self._run(self._text, [asked, *arguments(self._group.query, context)])
        return self._aligned(keys, rows)

    async def _run(self, text: str, values: Sequence[Any]) -> list[Any]:
        try:
            return await self._database.fetch(text, values)
        except sqlite3.Error as error:
            raise SourceDown(str(error)) from error

    async def _described(self, text: str, values: Sequence[Any], setting: str) -> list[int]:
        try:
            found = await self._database.columns(text, values)
        except sqlite3.Error as error:
            raise StartError(
                f"{self._group.where}: {setting} is refused by the database: {error}", hint="correct the query"
            ) from error
        return self._find(found, setting)


def _existing(path: str) -> str:
    if not os.path.isfile(path):
        raise StartError(
            f"features.database: there is no file {os.path.abspath(path)}", hint="create it, or correct the path"
        )
    return os.path.abspath(path)
