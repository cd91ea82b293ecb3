"""Feature groups in PostgreSQL, through an asyncpg pool with prepared statements."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tailcut.errors import MissingExtra, StartError
from tailcut.features.sources.base import Answer, Key, KeyTypeRefused, SourceContext, SourceDown, SourceError
from tailcut.features.sources.queried import GroupQueries, QueriedSource, arguments
from tailcut.features.sources.sql import postgres_keys

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


class PostgresSource(QueriedSource[PostgresDatabase]):
    """One feature group's query, prepared for the key types that are asked for."""

    def __init__(self, database: PostgresDatabase, group: GroupQueries) -> None:
        super().__init__(database, group)
        self._texts: dict[tuple[type, ...], str] = {}
        self._accepted: set[tuple[type, ...]] = set()

    async def check(self) -> None:
        """Prepare the queries once and find their columns.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        if self._group.query is not None:
            self._positions = self._find(await self._columns_of_query(), "sql")
        if self._group.preload is not None:
            self._all_positions = self._find(await self._prepared(self._group.preload.alone()), "preload_sql")

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query (one per combination of key types, which is one in practice)."""
        assert self._group.query is not None
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

    async def _fetch_alike(self, keys: list[Key], types: tuple[type, ...], context: SourceContext) -> list[Answer]:
        assert self._group.query is not None
        text = self._texts.get(types) or self._text(types)
        values = [*map(list, zip(*keys, strict=True)), *arguments(self._group.query, context)]
        rows = await self._run(text, values, types)
        self._accepted.add(types)
        return self._aligned(keys, rows)

    async def _run(self, text: str, values: Sequence[Any], types: tuple[type, ...] = ()) -> list[Any]:
        import asyncpg

        try:
            return await self._database.fetch(text, values)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if types and types not in self._accepted and state in _TYPE_ERRORS:
                names = ", ".join(
                    f"{column}: {kind.__name__}" for column, kind in zip(self._group.key, types, strict=True)
                )
                raise KeyTypeRefused(f"the query does not take a key of these types ({names})") from error
            raise (SourceError if state.startswith(_DATA_ERRORS) else SourceDown)(_text(error)) from error
        except asyncpg.DataError as error:
            raise SourceError(_text(error)) from error
        except (OSError, asyncpg.InterfaceError) as error:
            raise SourceDown(_text(error)) from error

    def _text(self, types: tuple[type, ...]) -> str:
        assert self._group.query is not None
        names = [_TYPE_OF.get(kind, "") for kind in types]
        if not all(names):
            raise KeyTypeRefused(f"a key of the types {[kind.__name__ for kind in types]} cannot be looked up in SQL")
        self._texts[types] = self._group.query.behind(postgres_keys(self._group.key, names))
        return self._texts[types]

    async def _columns_of_query(self) -> list[str]:
        """Key types are not known before the first request, so types are tried until the query takes them."""
        import asyncpg

        candidates: list[tuple[type, ...]] = [(kind,) * len(self._group.key) for kind in (str, int, float)]
        if 1 < len(self._group.key) <= 4:
            candidates += [mixed for mixed in itertools.product((str, int), repeat=len(self._group.key))]
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
            f"{self._group.where}: sql is refused by the database: {refused}",
            hint="the query reads from keys(" + ", ".join(self._group.key) + "), whose types are those of the entities",
        ) from refused

    async def _prepared(self, text: str) -> list[str]:
        import asyncpg

        try:
            return await self._database.columns(text)
        except asyncpg.PostgresError as error:
            raise StartError(
                f"{self._group.where}: preload_sql is refused by the database: {error}", hint="correct the query"
            ) from error


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
