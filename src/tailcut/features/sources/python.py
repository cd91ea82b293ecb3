"""Feature groups from a Python function, plain or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from tailcut.features.key_types import ANY, KeyType
from tailcut.features.sources.base import (
    Answer,
    ColumnProblem,
    Key,
    SourceContext,
    SourceDown,
    SourceError,
    Values,
    checked_table,
    exact_values,
    types_of_table,
)


class FunctionSource:
    """One feature group's function: ``(keys: list[tuple], context) -> list[dict | None]``.

    Args:
        executor: runs plain functions, because they may block.
        where: what to name in errors.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        key: tuple[str, ...],
        columns: tuple[str, ...],
        executor: Executor,
        where: str,
    ) -> None:
        self._function = function
        self._key = key
        self._columns = columns
        self._executor = executor
        self._where = where
        # A function is given keys as the field has them.
        self.key_types: tuple[KeyType, ...] = (ANY,) * len(key)
        self.table_types = self.key_types
        call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one call."""
        rows = await self._call(list(keys), context)
        if len(rows) != len(keys):
            raise SourceDown(
                f"{self._where} returned {len(rows)} rows for {len(keys)} keys; it must return one row per key"
            )
        return [None if row is None else self._answer(row) for row in rows]

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Read the whole table: the function is called without keys, with ``context.preload``."""
        rows = await self._call([], context)
        found = [
            (exact_values(self._picked(row, self._key), self._key), self._picked(row, self._columns)) for row in rows
        ]
        self.table_types = types_of_table(self.key_types, found)
        return await checked_table(found, self._columns, self.table_types)

    def _plain(self, keys: list[Key], context: SourceContext) -> Any:
        try:
            return self._function(keys, context)
        except (StopIteration, SystemExit) as error:
            # A future refuses the first, and the caller would wait for ever; the second would end the event loop.
            raise SourceError(f"{self._where} raised {type(error).__name__}: {error}") from error

    async def _call(self, keys: list[Key], context: SourceContext) -> Sequence[Any]:
        try:
            if self._is_async:
                rows = await self._function(keys, context)
            else:
                rows = await asyncio.get_running_loop().run_in_executor(self._executor, self._plain, keys, context)
                if inspect.isawaitable(rows):
                    rows = await rows
        except SourceError:
            raise
        except (OSError, asyncio.QueueFull) as error:
            raise SourceDown(f"{self._where} raised {type(error).__name__}: {error}") from error
        except (Exception, SystemExit) as error:  # a function that wants to exit must not take the server along
            raise SourceError(f"{self._where} raised {type(error).__name__}: {error}") from error
        if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
            raise SourceDown(f"{self._where} returned a {type(rows).__name__}; it must return a list of dicts or None")
        return rows

    def _answer(self, row: Any) -> Answer:
        try:
            return exact_values(self._picked(row, self._columns), self._columns)
        except SourceError as error:
            return error

    def _picked(self, row: Any, columns: tuple[str, ...]) -> tuple[Any, ...]:
        if not isinstance(row, Mapping):
            raise SourceError(f"{self._where} returned a {type(row).__name__} for a row; it must be a dict or None")
        missing = [column for column in columns if column not in row]
        if missing:
            raise ColumnProblem(f"{self._where} left out the columns {missing}; it returned {list(row)}")
        return tuple([row[column] for column in columns])
