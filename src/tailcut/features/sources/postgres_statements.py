"""How a query is sent to PostgreSQL: prepared under a name, or with its text every time; columns are found by name.

On a straight connection a query is prepared once and then runs under its name. A pooler in transaction or statement
mode hands each query to a server session of its own choice, where that name is unknown, or is another client's. There
every query carries its text: parsed, bound and run in one message, which needs no session. Its rows come as values of
type record, which tell the type of every column: PostgreSQL itself compares the types of a prepared statement with
those that it described before, but not those of one that it parses anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any

from tailcut.features.sources.base import ColumnProblem
from tailcut.features.sources.sql import selected

# What can be read out of a record: these have one binary form, which asyncpg knows.
_PLAIN_TYPES = {"bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bytea", "json", "jsonb", "uuid"}
_PLAIN_TYPES |= {"text", "varchar", "bpchar", "name", "char", "citext", "date", "time", "timestamp", "timestamptz"}


@dataclass(frozen=True, eq=False)
class Selection:
    """A query and the columns wanted of its result."""

    query: str
    columns: tuple[str, ...]

    @cached_property
    def plain(self) -> str:
        """The query for these columns in this order."""
        return selected(self.query, self.columns)

    @cached_property
    def as_row(self) -> str:
        """The same as one value."""
        return selected(self.query, self.columns, as_row=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: its name, its type in ``pg_type``, and what kind of type that is."""

    name: str
    type: str
    kind: str


class Session:
    """One connection and the statements that it has prepared."""

    _numbers = itertools.count()
    # No two processes behind one pooler have statements of one name: the other's would answer.
    _prefix = f"tailcut_{token_hex(6)}"

    def __init__(self, inner: Any, *, pooled: bool) -> None:
        self.inner = inner
        self.pooled = pooled
        self.statements: dict[Selection, Any] = {}

    async def fetch(self, wanted: Selection, values: Sequence[Any]) -> list[Any]:
        statement = self.statements.get(wanted)
        if statement is None:
            statement = self.statements[wanted] = await self._prepare(wanted)
        rows: list[Any] = await statement.fetch(*values)
        return [row[0] for row in rows] if self.pooled else rows

    async def _prepare(self, wanted: Selection) -> Any:
        if not self.pooled:
            return await self.inner.prepare(wanted.plain, name=f"{self._prefix}_{next(self._numbers)}")
        # Without a name: nothing stays in the session. Preparing the plain form makes its types known to asyncpg.
        described = await self.inner.prepare(wanted.plain)
        for column in described.get_attributes():
            if column.type.name.removesuffix("[]") not in _PLAIN_TYPES and column.type.kind != "enum":
                raise ColumnProblem(
                    f'column "{column.name}" has the type {column.type.name}, which cannot be read through a '
                    "connection pooler: cast it in the query, for example ::text"
                )
        return await self.inner.prepare(wanted.as_row)


def described(statement: Any) -> list[Column]:
    """The columns of a prepared statement's result."""
    return [Column(found.name, found.type.name, found.type.kind) for found in statement.get_attributes()]
