"""Feature groups in PostgreSQL: one query for all keys, which travel as one array per key column.

The server is asked for the type of each key, because it alone knows what a query compares. The query is prepared with
keys of a type that nothing can be compared with. PostgreSQL refuses the first comparison and names the type on its
other side, as in "operator does not exist: point = bigint".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tailcut.errors import StartError
from tailcut.features.key_types import (
    ANY,
    BIGINT,
    BOOLEAN,
    CHAR,
    CITEXT,
    DATE,
    DOUBLE,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNCOMPARED,
    UUID_TYPE,
    KeyType,
)
from tailcut.features.sources.base import (
    Answer,
    ColumnProblem,
    Key,
    SourceContext,
    SourceDown,
    SourceError,
    SourceUnreachable,
)
from tailcut.features.sources.postgres_connections import PostgresDatabase, QuerySelection, ResultColumn, text_of
from tailcut.features.sources.queried import GroupQueries, QueriedSource, arguments
from tailcut.features.sources.sql import Query, postgres_keys, quoted

_DATA_ERRORS = "22"
_UNREACHABLE = ("08", "53", "57P")
"""Classes of SQLSTATE: no connection, no resources, the server stops or starts (PostgreSQL, appendix A)."""


class PostgresSource(QueriedSource[PostgresDatabase]):
    """One feature group's query.

    Args:
        declared: type of each key column, as ``model.fields`` has it; ``ANY`` where it has none.
    """

    def __init__(self, database: PostgresDatabase, group: GroupQueries, declared: tuple[KeyType, ...]) -> None:
        super().__init__(database, group)
        self._declared_keys = declared
        self._selection: QuerySelection | None = None
        self._table = QuerySelection(group.preload.alone(), group.wanted) if group.preload is not None else None

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

    async def _fetched(self, wanted: QuerySelection, values: Sequence[Any]) -> list[Any]:
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
        for tried in (UNCOMPARED, BIGINT, DOUBLE):
            types = tuple(tried if kind == ANY else kind for kind in known)
            text = query.behind(postgres_keys(group.key, [_SQL_OF[kind.name] for kind in types]))
            try:
                found = await self._database.describe(text)
            except asyncpg.PostgresError as error:
                refused = refused or error
                if error.sqlstate not in TYPE_STATES:
                    refused = error
                    break
            else:
                self.key_types, self._selection = types, QuerySelection(text, group.wanted)
                group.check_columns([column.name for column in found], "sql")
                return
        raise StartError(
            f"{group.where}: the database refuses sql: {refused}",
            hint="the query reads from keys(" + ", ".join(group.key) + "); declare their types in model.fields",
        ) from refused

    async def _described(self, text: str) -> list[ResultColumn]:
        import asyncpg

        try:
            return await self._database.describe(text)
        except asyncpg.PostgresError as error:
            raise StartError(
                f"{self._group.where}: the database refuses preload_sql: {error}", hint="correct the query"
            ) from error


# -- The type that the server expects of each key --


_OF_NAME = {
    "int2": BIGINT,
    "int4": BIGINT,
    "int8": BIGINT,
    "oid": BIGINT,
    "numeric": NUMERIC,
    "float8": DOUBLE,
    "text": TEXT,
    "varchar": TEXT,
    "name": TEXT,
    "bpchar": CHAR,
    "citext": CITEXT,
    "uuid": UUID_TYPE,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ,
    "bool": BOOLEAN,
}
_SQL_OF = {
    "bigint": "bigint[]",
    "numeric": "numeric[]",
    "double precision": "double precision[]",
    "text": "text[]",
    "text (compared with nothing)": "text[]",
    # Not character: that is character(1), which cuts.
    "char": "bpchar[]",
    # The extension's type has no binary form that asyncpg knows.
    "citext": "text[]::citext[]",
    "uuid": "uuid[]",
    "date": "date[]",
    "timestamp": "timestamp[]",
    "timestamp with time zone": "timestamptz[]",
    "boolean": "boolean[]",
}
_TO_PARAMETER: dict[str, Callable[[Any], Any]] = {
    "numeric": lambda value: Decimal(repr(value)),
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp with time zone": datetime.fromisoformat,
}

# Nothing that a key can be is comparable with any of these, nor cast to one or from one.
_STRANGERS = ("point", "line", "lseg", "box", "path", "polygon", "circle", "xml", "tsquery", "tsvector", "json")
TYPE_STATES = frozenset({"42883", "42804", "42846"})
"""Undefined function or operator, datatype mismatch, cannot coerce: what a key of the wrong type leads to."""
# In every language the refusal ends with the operator between the two types, after a colon.
_COMPARED = re.compile(r"(?:^|[:\uff1a] ?)(?P<left>[^:\uff1a]+?) (?:=|<>|<|>|<=|>=) (?P<right>[^:\uff1a]+)$")
# Those of JOIN ... USING, datatype mismatch and cannot coerce, name both types somewhere.
_MISMATCHES = {"42804", "42846"}
_LONG_NAMES = ("timestamp without time zone", "timestamp with time zone", "character varying", "double precision")
# A domain is compared as the type under it.
_BASE = """
WITH RECURSIVE found(oid, base) AS (
    SELECT oid, typbasetype FROM pg_type WHERE format_type(oid, NULL) = ANY($1::text[]) AND typtype IN ('b', 'd', 'e')
    UNION SELECT pg_type.oid, pg_type.typbasetype FROM pg_type JOIN found ON pg_type.oid = found.base
)
SELECT typname::text AS name FROM pg_type JOIN found USING (oid) WHERE base = 0
"""
# The collation of a column of a query, found when it is parsed: no row is read.
_COLLATION = """
SELECT found.name FROM (
    SELECT pg_collation_for(result.{0}::text) AS name
    FROM (SELECT 1) one LEFT JOIN (SELECT {0} FROM (\n{1}\n) whole LIMIT 0) result ON true
) found JOIN pg_collation ON pg_collation.oid = found.name::regcollation WHERE NOT collisdeterministic
"""


def parameters(kind: KeyType, values: Sequence[Any]) -> list[Any]:
    """Values of one key column as asyncpg takes them."""
    convert = _TO_PARAMETER.get(kind.name)
    return list(values) if convert is None else [convert(value) for value in values]


async def compared_types(database: PostgresDatabase, group: GroupQueries) -> tuple[KeyType, ...]:
    """The type of what each key column is compared with; ``ANY`` for one that is only returned or computed with.

    Raises:
        StartError: a key is compared with a type that no key can have.
    """
    import asyncpg

    assert group.query is not None
    known = [f"{stranger}[]" for stranger in _STRANGERS[: len(group.key)]]
    types = [ANY] * len(group.key)
    # One column more is known after each refusal.
    for _ in types:
        try:
            await database.describe(group.query.behind(postgres_keys(group.key, known)))
            break
        except asyncpg.PostgresError as error:
            at, names = _other_side(error.sqlstate or "", error.message or "", known)
        found = [row[0] for row in await database.fetch(QuerySelection(_BASE, ("name",)), [names])] if names else []
        if len(found) != 1:
            break
        if found[0] not in _OF_NAME:
            raise StartError(
                f'{group.where}: sql compares the key "{group.key[at]}" with a column of type {found[0]}, which a key '
                "cannot have",
                hint=f"cast the column in the query, for example ::text; types of keys: {', '.join(sorted(_OF_NAME))}",
            )
        types[at] = _OF_NAME[found[0]]
        known[at] = _SQL_OF[types[at].name]
    return tuple(types)


def _other_side(state: str, message: str, known: Sequence[str]) -> tuple[int, list[str]]:
    """Which key column a refusal is about, and what may be the name of the type that it is compared with."""
    if state in _MISMATCHES:
        names = [name for name in _LONG_NAMES if name in message]
        for name in names:
            message = message.replace(name, "")
        names += re.findall(r'[\w".]+', message)
    elif state in TYPE_STATES and (compared := _COMPARED.search(message)):
        names = [compared["left"].strip(), compared["right"].strip()]
    else:
        return 0, []
    mine = [at for at, kind in enumerate(known) if kind.removesuffix("[]") in names and kind[:-2] in _STRANGERS]
    if len(mine) != 1:
        return 0, []
    return mine[0], [name for name in names if name not in _STRANGERS]


def returned_types(columns: Sequence[ResultColumn], group: GroupQueries) -> tuple[KeyType, ...]:
    """Types of the key in a result.

    Raises:
        StartError: a key column has a type that no key can have.
    """
    by_name = {column.name: column for column in columns}
    types = []
    for name in group.key:
        column = by_name[name]
        kind = TEXT if column.kind == "enum" else _OF_NAME.get(column.type)
        if kind is None:
            raise StartError(
                f'{group.where}: preload_sql returns the key "{name}" as {column.type}, which keys do not support',
                hint=f"cast it in the query, for example ::text; types of keys: {', '.join(sorted(_OF_NAME))}",
            )
        types.append(kind)
    return tuple(types)


async def check_equality(
    database: PostgresDatabase, group: GroupQueries, types: Sequence[KeyType], values: Sequence[Any]
) -> None:
    """Refuse a preloaded table whose keys are equal in the database where their text differs.

    Args:
        types: of the key in the table.
        values: of the query's own parameters.

    Raises:
        StartError: a key is of type citext, or has a collation that is not deterministic.
    """
    import asyncpg

    assert group.preload is not None
    for name, kind in zip(group.key, types, strict=True):
        if kind == CITEXT:
            raise group.unequal_text(name, "is of type citext", f"lower({name}::text)")
        if kind in {TEXT, CHAR}:
            query = _COLLATION.format(quoted([name]), group.preload.alone())
            try:
                rows = await database.fetch(QuerySelection(query, ("name",)), values)
            except (asyncpg.SyntaxOrAccessError, ColumnProblem):
                return  # A server that does not know of collations that are not deterministic has none.
            if rows:
                # lower() alone keeps the collation.
                raise group.unequal_text(name, f"has the collation {rows[0][0]}", f'lower({name}) COLLATE "C"')
