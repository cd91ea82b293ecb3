"""What a feature group's queries have in common, whichever database answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tailcut.errors import StartError
from tailcut.features.key_types import ANY, KeyType
from tailcut.features.sources.base import (
    Answer,
    Key,
    SourceContext,
    Values,
    align,
    checked_table,
    types_of_table,
)
from tailcut.features.sources.sql import Query, columns_problem

Database = TypeVar("Database")


@dataclass(frozen=True, slots=True)
class GroupQueries:
    """What one feature group asks a database for."""

    key: tuple[str, ...]
    """Names of the key columns."""
    columns: tuple[str, ...]
    """Names of the feature columns."""
    query: Query | None
    """Reads from the relation ``keys``; None where the group is only preloaded."""
    preload: Query | None
    """Yields the whole table; None where the group is not preloaded."""
    where: str
    """What to name in errors."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of all columns that a result must have."""
        return self.key + self.columns

    def check_columns(self, found: Sequence[str], setting: str) -> None:
        """Refuse a query whose result lacks a column or has one twice.

        Raises:
            StartError: which column, and what the query returns.
        """
        if problem := columns_problem(found, self.wanted):
            raise StartError(
                f"{self.where}: {setting} {problem}",
                hint=f"return {', '.join(self.wanted)}, each once; rename columns with AS",
            )

    def unequal_text(self, column: str, what: str, form: str) -> StartError:
        """The refusal of a preloaded key that the database compares otherwise than by its characters.

        Args:
            form: an expression that gives equal keys one text, as an example.
        """
        return StartError(
            f'{self.where}: the key "{column}" of preload_sql {what}, by which different texts are equal: '
            "a table in memory compares characters",
            hint=f"return one form, for example {form} AS {column}, and send keys in that form; "
            "or use sql, which compares in the database",
        )


class QueriedSource(ABC, Generic[Database]):
    """One feature group's queries. Results are found by the names of their columns, the key's too."""

    def __init__(self, database: Database, group: GroupQueries) -> None:
        self._database = database
        self._group = group
        self.key_types: tuple[KeyType, ...] = (ANY,) * len(group.key)
        self.table_types = self.key_types
        self._declared = self.key_types

    def _declare(self, types: tuple[KeyType, ...]) -> None:
        """Note the types of the key in the whole table."""
        self.table_types = self._declared = types
        if self._group.query is None:
            self.key_types = types

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Read the whole table.

        Raises:
            SourceError: the query fails, or the table has a key twice or a bad value.
        """
        assert self._group.preload is not None
        rows = self._parted(await self._run_preload(self._group.preload, context))
        self.table_types = types_of_table(self._declared, rows)
        return await checked_table(rows, self._group.columns, self.table_types)

    @abstractmethod
    async def _run_preload(self, preload: Query, context: SourceContext) -> Sequence[Sequence[Any]]:
        """All rows with the columns wanted, in their order."""

    def _aligned(self, keys: Sequence[Key], rows: Sequence[Sequence[Any]]) -> list[Answer]:
        return align(keys, self._parted(rows), self._group.columns, self.key_types)

    def _parted(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Key, Sequence[Any]]]:
        size = len(self._group.key)
        return [(tuple(row[:size]), row[size:]) for row in rows]


def arguments(query: Query, context: SourceContext) -> list[Any]:
    """Values of a query's own parameters, in order."""
    return [context.now if name == "now" else context.tenant for name in query.parameters]
