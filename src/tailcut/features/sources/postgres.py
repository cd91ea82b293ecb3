"""Feature groups in PostgreSQL: one query for all keys, which travel as one array per key column."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tailcut.errors import StartError
from tailcut.features.key_types import ANY, BIGINT, DOUBLE, UNCOMPARED, KeyType
from tailcut.features.sources.base import (
    Answer,
    Key,
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


class PostgresSource(QueriedSource[PostgresDatabase]):
    """One feature group's query.

    Args:
        declared: type of each key column, as ``model.fields`` has it; ``ANY`` where it has none.
    """

    def __init__(self, database: PostgresDatabase, group: GroupQueries, declared: tuple[KeyType, ...]) -> None:
        super().__init__(database, group)
        self._declared_keys = declared
        self._selection: Selection | None = None
        self._table = Selection(group.preload.alone(), group.wanted) if group.preload is not None else None

    async def check(self) -> None:
        """Find the types of the key, then the columns of the queries.

        Raises:
            StartError: a query is wrong or misses a column.
        """
        group = self._group
        if group.query is not None:
            await self._prepare(group.query)
        if group.preload is not None:
            found = await self._described(group.preload.alone())
            group.check_columns([column.name for column in found], "preload_sql")
            self._declare(returned_types(found, group))
            nothing = SourceContext(now=0.0, tenant="", deadline_s=0.0)
            await check_equality(self._database, group, self.table_types, arguments(group.preload, nothing))

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one query."""
        assert self._group.query is not None
        assert self._selection is not None
        columns = zip(self.key_types, zip(*keys, strict=True), strict=True)
        values = [parameters(kind, column) for kind, column in columns]
        rows = await self._fetched(self._selection, [*values, *arguments(self._group.query, context)])
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
                why = f"{text_of(error)}: restart if the type of the key's column has changed"
                raise SourceDown(why) from error
            kind = SourceUnreachable if state.startswith(_UNREACHABLE) else SourceDown
            raise (SourceError if state.startswith(_DATA_ERRORS) else kind)(text_of(error)) from error
        except asyncpg.DataError as error:
            raise SourceError(text_of(error)) from error
        except OSError as error:
            raise SourceUnreachable(text_of(error)) from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise SourceDown(text_of(error)) from error

    async def _prepare(self, query: Query) -> None:
        """Find the types of the key: of what it is compared with, else as declared, else the first that are taken."""
        import asyncpg

        group = self._group
        compared = await compared_types(self._database, group)
        known = [own if kind == ANY else kind for kind, own in zip(compared, self._declared_keys, strict=True)]
        refused: Exception | None = None
        for types in _candidates(known):
            text = query.behind(keys_relation(group.key, types))
            try:
                found = await self._database.describe(text)
            except asyncpg.PostgresError as error:
                refused = refused or error
                if error.sqlstate not in TYPE_STATES:
                    refused = error
                    break
            else:
                self.key_types, self._selection = types, Selection(text, group.wanted)
                group.check_columns([column.name for column in found], "sql")
                return
        raise StartError(
            f"{group.where}: the database refuses sql: {refused}",
            hint="the query reads from keys(" + ", ".join(group.key) + "); declare their types in model.fields",
        ) from refused

    async def _described(self, text: str) -> list[Column]:
        import asyncpg

        try:
            return await self._database.describe(text)
        except asyncpg.PostgresError as error:
            raise StartError(
                f"{self._group.where}: the database refuses preload_sql: {error}", hint="correct the query"
            ) from error


def _candidates(known: Sequence[KeyType]) -> Iterator[tuple[KeyType, ...]]:
    """What the types may be: one for all that are not known, then mixtures."""
    unknown = known.count(ANY)
    for tried in (UNCOMPARED, BIGINT, DOUBLE):
        yield tuple(tried if kind == ANY else kind for kind in known)
    if 1 < unknown <= _MOST_TRIED:
        for mixed in itertools.product((UNCOMPARED, BIGINT), repeat=unknown):
            rest = iter(mixed)
            yield tuple(next(rest) if kind == ANY else kind for kind in known)
