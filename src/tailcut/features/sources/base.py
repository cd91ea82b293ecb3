"""What a source is, and which values it may yield."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

Key = tuple[Any, ...]
"""Values of a group's key columns, in order."""
Values = tuple[Any, ...]
"""Values of a group's feature columns, in order."""


LARGE_TABLE_ROWS = 500
"""Larger tables are worked on in a thread: checking a row takes microseconds, and the loop has requests to answer."""


class SourceError(Exception):
    """A source could not answer; perhaps because of one of the keys, so asking for fewer may help."""


class SourceDown(SourceError):
    """A source could not answer, whatever the keys."""


class KeyTypeRefused(SourceError):
    """The source's query cannot take keys of these types (text compared with an integer column, say)."""


Answer = Values | None | SourceError
"""Per key: its values, None for no row, or what is wrong with this key's row alone."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a Python function source is told beside the keys."""

    now: float
    """Seconds since the epoch by ``features.clock``."""
    tenant: str
    """Whose values; empty where the group does not differ between tenants."""
    deadline_s: float
    """When the caller gives up, in seconds of ``time.monotonic``: after ``features.timeout``; where nothing is cached,
    at the request's own deadline if that is sooner. A call whose values are kept goes on for those who ask next."""
    preload: bool = False
    """Whether the whole table is wanted: no keys are given; return a dict with key and feature columns per row."""


class Source(Protocol):
    """Answers for keys of one feature group."""

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for every key, in order.

        Raises:
            SourceError: no answer for any of them.
        """
        ...

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Return the whole table; for preloaded groups."""
        ...


def exact(value: Any, column: str) -> Any:
    """Bring a source's value into a form that every store gives back unchanged.

    Decimals and NumPy scalars become plain numbers, lists and arrays become tuples. What has no such form (dates,
    UUIDs) is refused rather than guessed, because a cache hit must never change an answer.

    Raises:
        SourceError: the value has no exact form.
    """
    kind = type(value)
    if value is None or kind is float or kind is bool:
        return value
    if kind is int:
        return _int(value, column)
    if kind is str:
        return _text(value, column)
    return _converted(value, column)


def _converted(value: Any, column: str) -> Any:
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Decimal | float):
        return float(value)
    if isinstance(value, str):
        return _text(str.__str__(value), column)
    if isinstance(value, int):
        return _int(int(value), column)
    if isinstance(value, list | tuple):
        return tuple(exact(element, column) for element in value)
    if type(value).__module__.partition(".")[0] == "numpy":
        return exact(value.tolist(), column)
    raise SourceError(
        f'column "{column}" is a {type(value).__name__}; it must be a number, text, a boolean, bytes or a list: '
        "cast it in the query, for example extract(epoch from ...) or ...::text"
    )


def _int(value: int, column: str) -> int:
    if -(2**63) <= value < 2**64:
        return value
    raise SourceError(f'column "{column}" is {value}, which needs more than 64 bits: return it as text')


def _text(value: str, column: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise SourceError(f'column "{column}" holds text that is not valid Unicode: {error}') from error
    return value


def exact_values(values: Sequence[Any], columns: Sequence[str]) -> Values:
    """``exact`` for a row.

    Raises:
        SourceError: a value has no exact form.
    """
    return tuple([exact(value, column) for value, column in zip(values, columns, strict=True)])


def without_equals(keys: Sequence[Key]) -> list[list[int]]:
    """Places of the keys, in lists within which no two keys are equal (2 and 2.0, 1 and True); one list in practice.

    A result's rows find their keys by equality, so that keys of other types must not be asked for together.
    """
    lists: list[list[int]] = []
    times: dict[Key, int] = {}
    for place, key in enumerate(keys):
        nth = times[key] = times.get(key, -1) + 1
        if nth == len(lists):
            lists.append([])
        lists[nth].append(place)
    return lists


def align(keys: Sequence[Key], rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str]) -> list[Answer]:
    """Give each key its row, in the order of ``keys``. Two rows for a key, or a bad value, are that key's error alone.

    Raises:
        SourceError: there are rows, but none is for a key that was asked for.
    """
    found: dict[Key, Answer] = {}
    for key, values in rows:
        if key in found:
            found[key] = SourceError(f"the source returned more than one row for key {key}: group or limit them")
            continue
        try:
            found[key] = exact_values(values, columns)
        except SourceError as error:
            found[key] = error
    answers = [found.get(key) for key in keys]
    if rows and all(answer is None for answer in answers) and _same_types(rows[0][0], keys[0]):
        raise SourceError(
            f"the source returned a row for key {rows[0][0]}, but {keys[0]} was asked for: "
            "the first columns must be the key as asked for (select them from keys)"
        )
    return answers


def table(rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str]) -> list[tuple[Key, Values]]:
    """Check a whole table.

    Raises:
        SourceError: a key twice, or a bad value.
    """
    seen: set[Key] = set()
    checked = []
    for key, values in rows:
        if key in seen:
            raise SourceError(f"the table has more than one row for key {key}: group or limit them")
        seen.add(key)
        checked.append((key, exact_values(values, columns)))
    return checked


async def checked_table(rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str]) -> list[tuple[Key, Values]]:
    """``table``, off the event loop where the table is large."""
    if len(rows) <= LARGE_TABLE_ROWS:
        return table(rows, columns)
    return await asyncio.to_thread(table, rows, columns)


def _same_types(one: Key, other: Key) -> bool:
    return [type(value) for value in one] == [type(value) for value in other]
