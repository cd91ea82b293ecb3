"""Feature groups in PostgreSQL, through an asyncpg pool with prepared statements."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tailcut.errors import MissingExtra, StartError
from tailcut.features.sources.base import (
    Answer,
    Key,
    KeyTypeRefused,
    SourceContext,
    SourceDown,
    SourceError,
    Values,
    align,
    checked_table,
)
from tailcut.features.sources.sql import Query, column_positions, postgres_keys

CONNECT_TIMEOUT_S = 5.0
_CLEAN_UP_TIMEOUT_S = 1.0

_TYPE_OF = {str: "text", int: "bigint", float: "double precision", bool: "boolean", bytes: "bytea"}
# Undefined function or operator, datatype mismatch, cannot coerce: what a key of the wrong type leads to.
_TYPE_ERRORS = frozenset({"42883", "42804", "42846"})
_DATA_ERRORS = "22"


class PostgresDatabase:
    """A pool of connections."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._clean_ups: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, url: str, connections: int) -> PostgresDatabase:
        """Connect.

        Raises:
            MissingExtra: asyncpg is not installed.
            StartError: the database cannot be reached or refuses.
        """
        try:
            import asyncpg
        except ImportError as error:
            raise MissingExtra(
                "features.database is PostgreSQL, which needs asyncpg, which is not installed",
                hint="pip install 'tailcut[postgres]'",
            ) from error
        try:
            pool = await asyncpg.create_pool(
                url, min_size=connections, max_size=connections, timeout=CONNECT_TIMEOUT_S, reset=_leave_as_is
            )
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StartError(
                f"features.database: cannot connect to {_without_password(url)}: {_text(error)}",
                hint="start the database, or correct features.database",
            ) from error
        return cls(pool)

    async def fetch(self, text: str, arguments: Sequence[Any]) -> list[Any]:
        """Run a query; cancelling the caller cancels it in the server too."""
        connection = await self._pool.acquire()
        try:
            rows: list[Any] = await connection.fetch(text, *arguments)
        except BaseException:
            # Waiting here for a hung server would hold up the caller, who has given up.
            task = asyncio.get_running_loop().create_task(self._clean_up(connection))
            self._clean_ups.add(task)
            task.add_done_callback(self._clean_ups.discard)
            raise
        await self._pool.release(connection)
        return rows

    async def columns(self, text: str) -> list[str]:
        """Names of the columns that a query returns, found by preparing it."""
        async with self._pool.acquire() as connection:
            statement = await connection.prepare(text)
            return [attribute.name for attribute in statement.get_attributes()]

    async def close(self) -> None:
        """Close all connections; those that hang are cut."""
        try:
            async with asyncio.timeout(_CLEAN_UP_TIMEOUT_S):
                await self._pool.close()
        except Exception:
            self._pool.terminate()
        for task in list(self._clean_ups):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def _clean_up(self, connection: Any) -> None:
        try:
            await self._pool.release(connection, timeout=_CLEAN_UP_TIMEOUT_S)
        except Exception:
            connection.terminate()


class PostgresSource:
    """One feature group's query."""

    def __init__(
        self,
        database: PostgresDatabase,
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
        self._texts: dict[tuple[type, ...], str] = {}
        self._accepted: set[tuple[type, ...]] = set()
        self._positions: list[int] = []
        self._all_positions: list[int] = []

    async def check(self) -> None:
        """Prepare the queries once and find their columns.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        if self._query is not None:
            self._positions = self._find(await self._columns_of_query(), f"{self._where}: sql")
        if self._preload is not None:
            found = await self._prepared(self._preload.alone(), f"{self._where}: preload_sql")
            self._all_positions = self._find(found, f"{self._where}: preload_sql")

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query (one per combination of key types, which is one in practice)."""
        assert self._query is not None
        by_types: dict[tuple[type, ...], list[int]] = {}
        for index, key in enumerate(keys):
            by_types.setdefault(tuple(map(type, key)), []).append(index)
        answers: list[Answer] = [None] * len(keys)
        for types, indexes in by_types.items():
            asked = [keys[index] for index in indexes]
            try:
                found = await self._fetch_alike(asked, types, context)
            except SourceError as error:
                if isinstance(error, SourceDown) or len(by_types) == 1:
                    raise
                found = [error] * len(asked)
            for index, answer in zip(indexes, found, strict=True):
                answers[index] = answer
        return answers

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Read the whole table."""
        assert self._preload is not None
        rows = await self._run(self._preload.alone(), _arguments(self._preload, context), ())
        size = len(self._key)
        found = [(tuple(row[:size]), [row[i] for i in self._all_positions]) for row in rows]
        return await checked_table(found, self._columns)

    async def _fetch_alike(self, keys: list[Key], types: tuple[type, ...], context: SourceContext) -> list[Answer]:
        assert self._query is not None
        text = self._texts.get(types) or self._text(types)
        arguments = [*map(list, zip(*keys, strict=True)), *_arguments(self._query, context)]
        rows = await self._run(text, arguments, types)
        self._accepted.add(types)
        size = len(self._key)
        return align(keys, [(tuple(row[:size]), [row[i] for i in self._positions]) for row in rows], self._columns)

    async def _run(self, text: str, arguments: Sequence[Any], types: tuple[type, ...]) -> list[Any]:
        import asyncpg

        try:
            return await self._database.fetch(text, arguments)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if types and types not in self._accepted and state in _TYPE_ERRORS:
                names = ", ".join(f"{column}: {kind.__name__}" for column, kind in zip(self._key, types, strict=True))
                raise KeyTypeRefused(f"the query does not take a key of these types ({names})") from error
            raise (SourceError if state.startswith(_DATA_ERRORS) else SourceDown)(_text(error)) from error
        except asyncpg.DataError as error:
            raise SourceError(_text(error)) from error
        except (OSError, asyncpg.InterfaceError) as error:
            raise SourceDown(_text(error)) from error

    def _text(self, types: tuple[type, ...]) -> str:
        assert self._query is not None
        names = [_TYPE_OF.get(kind, "") for kind in types]
        if not all(names):
            raise KeyTypeRefused(f"a key of the types {[kind.__name__ for kind in types]} cannot be looked up in SQL")
        self._texts[types] = self._query.behind(postgres_keys(self._key, names))
        return self._texts[types]

    async def _columns_of_query(self) -> list[str]:
        """Key types are not known before the first request, so types are tried until the query takes them."""
        import asyncpg

        candidates: list[tuple[type, ...]] = [(kind,) * len(self._key) for kind in (str, int, float)]
        if 1 < len(self._key) <= 4:
            candidates += [mixed for mixed in itertools.product((str, int), repeat=len(self._key))]
        refused: Exception | None = None
        for types in candidates:
            try:
                return await self._database.columns(self._text(types))
            except asyncpg.PostgresError as error:
                refused = refused or error
                if error.sqlstate not in _TYPE_ERRORS:
                    refused = error
                    break
        raise StartError(
            f"{self._where}: sql is refused by the database: {refused}",
            hint="the query reads from keys(" + ", ".join(self._key) + "), whose types are those of the entities",
        ) from refused

    async def _prepared(self, text: str, where: str) -> list[str]:
        import asyncpg

        try:
            return await self._database.columns(text)
        except asyncpg.PostgresError as error:
            raise StartError(f"{where} is refused by the database: {error}", hint="correct the query") from error

    def _find(self, found: list[str], where: str) -> list[int]:
        return column_positions(found, self._key, self._columns, where)


def _arguments(query: Query, context: SourceContext) -> list[Any]:
    return [context.now if name == "now" else context.tenant for name in query.parameters]


async def _leave_as_is(_: Any) -> None:
    """Feature queries leave nothing behind in the session, so the usual reset would be a round trip for nothing."""


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
