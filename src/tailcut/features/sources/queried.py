"""What a feature group's queries have in common, whichever database answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tailcut.features.sources.base import Answer, Key, SourceContext, Values, align, checked_table
from tailcut.features.sources.sql import Query, column_positions

Database = TypeVar("Database")


@dataclass(frozen=True, slots=True)
class GroupQueries:
    """What one feature group asks a database for."""

    key: tuple[str, ...]
    """Names of the key columns, which are a result's first ones."""
    columns: tuple[str, ...]
    """Names of the feature columns."""
    query: Query | None
    """Reads from the relation ``keys``; None where the group is only preloaded."""
    preload: Query | None
    """Yields the whole table; None where the group is not preloaded."""
    where: str
    """What to name in errors."""


class QueriedSource(ABC, Generic[Database]):
    """One feature group's queries and where their results have the columns."""

    def __init__(self, database: Database, group: GroupQueries) -> None:
        self._database = database
        self._group = group
        self._positions: list[int] = []
        self._all_positions: list[int] = []

    @abstractmethod
    async def check(self) -> None:
        """Find the columns of the queries.

        Raises:
            StartError: a query is wrong or misses a column.
        """

    @abstractmethod
    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for every key, in order.

        Raises:
            SourceError: no answer for any of them.
        """

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Read the whole table.

        Raises:
            SourceError: the query fails, or the table has a key twice or a bad value.
        """
        assert self._group.preload is not None
        rows = await self._run(self._group.preload.alone(), arguments(self._group.preload, context))
        return await checked_table(self._parted(rows, self._all_positions), self._group.columns)

    @abstractmethod
    async def _run(self, text: str, values: Sequence[Any]) -> list[Any]: ...

    def _aligned(self, keys: Sequence[Key], rows: Sequence[Any]) -> list[Answer]:
        return align(keys, self._parted(rows, self._positions), self._group.columns)

    def _parted(self, rows: Sequence[Any], positions: Sequence[int]) -> list[tuple[Key, list[Any]]]:
        """Each row as its key and the feature columns at ``positions``."""
        size = len(self._group.key)
        return [(tuple(row[:size]), [row[i] for i in positions]) for row in rows]

    def _find(self, found: Sequence[str], setting: str) -> list[int]:
        return column_positions(found, self._group.key, self._group.columns, f"{self._group.where}: {setting}")


def arguments(query: Query, context: SourceContext) -> list[Any]:
    """Values of a query's own parameters, in order."""
    return [context.now if name == "now" else context.tenant for name in query.parameters]
