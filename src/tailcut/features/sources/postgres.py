"""Feature groups in PostgreSQL: one query for all keys, which travel as one array per key column."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tailcut.errors import StartError
from tailcut.features.key_types import ANY, BIGINT, DOUBLE, TEXT, KeyType
from tailcut.features.sources.base import (
    Answer,
    Key,
    KeyTypeRefused,
    SourceContext,
    SourceDown,
    SourceError,
    SourceUnreachable,
)
from tailcut.features.sources.postgres_connections import Column, PostgresDatabase, Selection, text_of
from tailcut.features.sources.postgres_types import (
    TYPE_STATES,
    check_equality,
    compared_types,
    keys_relation,
    parameters,
    returned_types,
)
from tailcut.features.sources.queried import GroupQueries, QueriedSource, arguments
from tailcut.features.sources.sql import Query

_DATA_ERRORS = "22"
_UNREACHABLE = ("08", "53", "57P")
"""Classes of SQLSTATE: no connection, no resources, the server stops or starts (PostgreSQL, appendix A)."""

_MOST_TRIED = 4

_Types = tuple[type, ...]


class PostgresSource(QueriedSource[PostgresDatabase]):
    """One feature group's query."""

    def __init__(self, database: PostgresDatabase, group: GroupQueries) -> None:
        super().__init__(database, group)
        self._selections: dict[_Types, Selection] = {}
        """The query by the types of its keys' values; these count where a key's own type is not known."""
        self._accepted: set[_Types] = set()
        self._table = Selection(group.preload.alone(), group.wanted) if group.preload is not None else None

    async def check(self) -> None:
        """Find the types of the key, then the columns of the queries.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        group = self._group
        if group.query is not None:
            self.key_types = await compared_types(self._database, group)
            group.check_columns([column.name for column in await self._columns_of_query()], "sql")
        if group.preload is not None:
            found = await self._described(group.preload.alone())
            group.check_columns([column.name for column in found], "preload_sql")
            self._declare(returned_types(found, group))
            nothing = SourceContext(now=0.0, tenant="", deadline_s=0.0)
            await check_equality(self._database, group, self.table_types, arguments(group.preload, nothing))

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query (one per combination of types where the key's are not known)."""
        if ANY not in self.key_types:
            return await self._fetch_alike(keys, (), context)
        by_types: dict[_Types, list[int]] = {}
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

    async def _fetch_alike(self, keys: Sequence[Key], types: _Types, context: SourceContext) -> list[Answer]:
        assert self._group.query is not None
        wanted = self._selections.get(types) or self._selection(types)
        columns = zip(self.key_types, zip(*keys, strict=True), strict=True)
        values = [parameters(kind, column) for kind, column in columns]
        try:
            rows = await self._fetched(wanted, [*values, *arguments(self._group.query, context)])
        except _TypeError as error:
            if not types or types in self._accepted:
                why = f"{error}: restart if the type of the key's column has changed"
                raise SourceDown(why) from error.__cause__
            raise self._refused(types) from error.__cause__
        self._accepted.add(types)
        return self._aligned(keys, rows)

    async def _run_preload(self, preload: Query, context: SourceContext) -> Sequence[Sequence[Any]]:
        assert self._table is not None
        return await self._fetched(self._table, arguments(preload, context))

    async def _fetched(self, wanted: Selection, values: Sequence[Any]) -> list[Any]:
        import asyncpg

        try:
            return await self._database.fetch(wanted, values)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state in TYPE_STATES:
                raise _TypeError(text_of(error)) from error
            kind = SourceUnreachable if state.startswith(_UNREACHABLE) else SourceDown
            raise (SourceError if state.startswith(_DATA_ERRORS) else kind)(text_of(error)) from error
        except asyncpg.DataError as error:
            raise SourceError(text_of(error)) from error
        except OSError as error:
            raise SourceUnreachable(text_of(error)) from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise SourceDown(text_of(error)) from error

    def _selection(self, types: _Types) -> Selection:
        assert self._group.query is not None
        relation = keys_relation(self._group.key, self.key_types, types)
        if relation is None:
            raise self._refused(types)
        self._selections[types] = Selection(self._group.query.behind(relation), self._group.wanted)
        return self._selections[types]

    def _refused(self, types: _Types) -> KeyTypeRefused:
        names = ", ".join(f"{column}: {kind.__name__}" for column, kind in zip(self._group.key, types, strict=True))
        return KeyTypeRefused(f"the query does not accept keys of these types ({names})")

    async def _columns_of_query(self) -> list[Column]:
        """Types that are not known are tried until the query takes them."""
        import asyncpg

        assert self._group.query is not None
        refused: Exception | None = None
        for types in _candidates(self.key_types):
            relation = keys_relation(self._group.key, types)
            assert relation is not None
            try:
                return await self._database.describe(self._group.query.behind(relation))
            except asyncpg.PostgresError as error:
                refused = refused or error
                if error.sqlstate not in TYPE_STATES:
                    refused = error
                    break
        raise StartError(
            f"{self._group.where}: the database refuses sql: {refused}",
            hint="the query reads from keys(" + ", ".join(self._group.key) + "), with the types of the entities",
        ) from refused

    async def _described(self, text: str) -> list[Column]:
        import asyncpg

        try:
            return await self._database.describe(text)
        except asyncpg.PostgresError as error:
            raise StartError(
                f"{self._group.where}: the database refuses preload_sql: {error}", hint="correct the query"
            ) from error


class _TypeError(SourceDown):
    """The query does not go with the types of its keys, or of other columns that have changed."""


def _candidates(known: tuple[KeyType, ...]) -> Iterator[tuple[KeyType, ...]]:
    """What the types may be: one for all that are not known, then mixtures."""
    unknown = known.count(ANY)
    for tried in (TEXT, BIGINT, DOUBLE):
        yield tuple(tried if kind == ANY else kind for kind in known)
    if 1 < unknown <= _MOST_TRIED:
        for mixed in itertools.product((TEXT, BIGINT), repeat=unknown):
            rest = iter(mixed)
            yield tuple(next(rest) if kind == ANY else kind for kind in known)
