"""Feature groups in SQLite, opened read-only through aiosqlite.

Measured against sqlite3 in our own thread pool (one key, one joined row, 2 cores, uvloop, 5 interleaved rounds of
1,500): aiosqlite's ``execute_fetchall`` 85 microseconds, own threads 128, aiosqlite cursors 158. So: the first.

The type of a key is that of the column it is read from, or is joined with by its own name. SQLite compares by the
affinity of a column, which follows from its declared type
(https://www.sqlite.org/datatype3.html#determination_of_column_affinity). Queries have no types of their own. A view
over the query tells where a result's column comes from. A key that comes from ``keys`` has the type of the columns of
its name, where the query joins by that name, has no subquery, and all tables that it reads declare one type. Elsewhere
the type is ``ANY``, with which SQLite itself compares: a wrong type would change the key.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

import msgspec

from tailcut.errors import StartError
from tailcut.features.key_types import (
    ANY,
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MIXED,
    NUMERIC,
    NUMERIC_OR_TEXT,
    TEXT,
    KeyType,
)
from tailcut.features.sources.base import Answer, ColumnProblem, Key, SourceContext, SourceDown, SourceUnreachable
from tailcut.features.sources.queried import GroupQueries, QueriedSource, arguments
from tailcut.features.sources.sql import Query, columns_problem, quoted, sqlite_keys, without_text

MAX_CONNECTIONS = 4
"""Each is a thread; more of them only fight for the interpreter."""
_UNREACHABLE = ("SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOTADB")
_PROGRESS_STEPS = 20_000


class SqliteResult(list[Any]):
    """All rows of a query, and the columns that it returned this time."""

    columns: tuple[str, ...] = ()


class _Cursor(sqlite3.Cursor):
    def fetchall(self) -> SqliteResult:
        rows = SqliteResult(super().fetchall())
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

    async def fetch(self, text: str, arguments: Sequence[Any]) -> SqliteResult:
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

    async def _run(self, connection: _Connection, text: str, arguments: Sequence[Any]) -> SqliteResult:
        try:
            rows: SqliteResult = await connection.inner.execute_fetchall(text, arguments)
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

    def _picked(self, rows: SqliteResult) -> Sequence[Sequence[Any]]:
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
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise StartError(f"features.database: there is no file {path}", hint="create it, or correct the path")
    return path


# -- The type of each key --


_PARAMETER = re.compile(r"\?\d+")
_TYPES = (
    ("INT", BIGINT),
    ("CHAR", TEXT),
    ("CLOB", TEXT),
    ("TEXT", TEXT),
    ("BLOB", MIXED),
    ("REAL", DOUBLE),
    ("FLOA", DOUBLE),
    ("DOUB", DOUBLE),
    ("BOOL", BOOLEAN),
    ("NUM", NUMERIC),
    ("DEC", NUMERIC),
)
"""Types by a part of the declared one, in the order of SQLite's rules."""


def type_of_declared(declared: str) -> KeyType:
    """Type of keys in a column, by its declared type."""
    name = declared.upper()
    return next((kind for part, kind in _TYPES if part in name), NUMERIC_OR_TEXT) if name else MIXED


def key_types(path: str, text: str, values: Sequence[Any], key: Sequence[str], sql: str = "") -> tuple[KeyType, ...]:
    """Types of a query's key columns; ``ANY`` where they are computed, or not certain.

    Args:
        text: the query as it runs.
        values: of its parameters.
        sql: the query as the user wrote it, where it reads from ``keys``.
    """
    found = _origins(path, text, values, key)
    has_subquery = len(re.findall(r"\bSELECT\b", sql, re.IGNORECASE)) > 1
    columns = [] if has_subquery else _columns_of_tables(path, text, values)
    for at, name in enumerate(key):
        types = {kind for column, kind in columns if column == name.lower()}
        if found[at] != ANY:
            continue
        if not sql and MIXED in types:
            found[at] = MIXED  # a view shows a column without a type as it does an expression
        elif len(types) == 1 and _joins_by_name(sql, re.escape(name)):
            found[at] = types.pop()
    return tuple(found)


def _joins_by_name(sql: str, name: str) -> bool:
    """Tell whether a query compares a column of ``keys`` with columns of its name, and with nothing else."""
    keys = "|".join(["keys", *re.findall(r"\bkeys\s+(?:AS\s+)?(\w+)", sql, re.IGNORECASE)])
    own, same = rf"\b(?:{keys})\.{name}\b", rf"\w+\.{name}\b"
    compared = re.findall(rf"{own}\s*[=<>!]|[=<>]\s*{own}", sql, re.IGNORECASE)
    plain = rf"(?:\bON|\bAND|\bWHERE|\()\s*(?:{own}\s*==?\s*{same}|{same}\s*==?\s*{own})(?!\s*[-+*/%|&<>])"
    joined = rf"\bUSING\s*\([^)]*\b{name}\b|\bNATURAL\b"
    if compared:
        return len(re.findall(plain, sql, re.IGNORECASE)) == len(compared)
    return re.search(joined, sql, re.IGNORECASE) is not None


def _origins(path: str, text: str, values: Sequence[Any], key: Sequence[str]) -> list[KeyType]:
    """Declared types of the columns that a result's key columns are; ``ANY`` for those that are expressions."""

    def literal(match: re.Match[str]) -> str:
        value = values[int(match[0][1:]) - 1]
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)

    with _opened(path) as connection:
        try:
            # A view takes no parameters. A temporary one is not in the file.
            connection.execute(f"CREATE TEMP VIEW tailcut_result AS {_PARAMETER.sub(literal, text)}")
            columns = {row[1]: row[2] for row in connection.execute("PRAGMA temp.table_info(tailcut_result)")}
        except sqlite3.Error:
            return [ANY] * len(key)
    return [type_of_declared(columns[name]) if columns.get(name) else ANY for name in key]


def _columns_of_tables(path: str, text: str, values: Sequence[Any]) -> list[tuple[str, KeyType]]:
    """Names and types of all columns of the tables that a query reads."""
    read: set[str] = set()

    def noted(action: int, table: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_READ and table and table != "json_each":
            read.add(table)
        return sqlite3.SQLITE_OK

    with _opened(path) as connection:
        connection.set_authorizer(noted)
        connection.execute(f"EXPLAIN {text}", values)
        connection.set_authorizer(None)
        rows = [row for table in sorted(read) for row in connection.execute(f"PRAGMA table_xinfo({quoted([table])})")]
    return [(row[1].lower(), type_of_declared(row[2])) for row in rows]


_COMPARES = frozenset({"Eq", "Ne"})
_COLLATION = re.compile(r"[A-Za-z_]\w*")
"""The name of a collation in a step of SQLite's programs, such as NOCASE-8."""


def check_equality(path: str, group: GroupQueries, values: Sequence[Any]) -> None:
    """Refuse a preloaded table whose keys are equal in the database where their text differs.

    Args:
        values: of the query's own parameters.

    Raises:
        StartError: a key has another collation than BINARY.
    """
    assert group.preload is not None
    with _opened(path) as connection:
        for name in group.key:
            programs = []
            for collation in ("", "COLLATE BINARY"):
                # Without an index, which the plus sees to, a comparison's step names its collation.
                compared = f"SELECT +{quoted([name])} {collation} = 'x' FROM (\n{group.preload.alone()}\n)"
                steps = connection.execute(f"EXPLAIN {compared}", values)
                # Numbers are compared by none.
                programs.append([_COLLATION.findall(step[5] or "BINARY")[:1] for step in steps if step[1] in _COMPARES])
            if programs[0] != programs[1]:
                raise group.unequal_text(name, "has another collation than BINARY", f"lower({name})")


def _opened(path: str) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True))
