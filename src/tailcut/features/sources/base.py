"""What a source is, and which values it may yield."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from tailcut.features.key_types import ANY, KeyType, inferred
from tailcut.observe.traces.trace_context import CallerSpan

Key = tuple[Any, ...]
"""Values of a group's key columns, in order."""
Values = tuple[Any, ...]


class StaleValues(tuple[Any, ...]):
    """Values that were past their TTL when the source gave them: they are used once, and are fresh for no time."""

    __slots__ = ()


"""Values of a group's feature columns, in order."""


LARGE_TABLE_ROWS = 500
"""Larger tables are worked on in a thread: checking a row takes microseconds, and the loop has requests to answer."""


class SourceError(Exception):
    """A source could not answer; perhaps because of one of the keys, so asking for fewer may help."""


class SourceDown(SourceError):
    """A source could not answer, whatever the keys."""


class SourceUnreachable(SourceDown):
    """A database that cannot be reached, or takes no queries: so it is for all of its groups."""


class ModelFailed(SourceError):
    """Another model failed on a key that it was asked for alone. Its text is for clients.

    Attributes:
        hint: the way out.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class ModelDown(ModelFailed, SourceDown):
    """Another model could not answer, whatever the keys."""


class ModelMisfit(ModelDown):
    """Another model does not take the group's key, or does not answer with its columns, whatever the key is."""


class SourceShed(SourceDown):
    """A source has no room now.

    Attributes:
        retry_s: when it may have.
    """

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class KeyRefused(SourceError):
    """A source cannot take one of the keys, whatever its type."""


class ColumnProblem(SourceDown):
    """A result misses a column, or has one twice. Its text names columns only, so that a client may have it."""


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
    caller: CallerSpan | None = None
    """The span of the group, in the trace of the first request that waits for the call; None without a request that is
    traced, as for a refresh ahead."""
    preload: bool = False
    """Whether the whole table is wanted: no keys are given; return a dict with key and feature columns per row."""

    @property
    def traceparent(self) -> str:
        """The header ``traceparent`` to send with what the function asks elsewhere; empty where it is not traced."""
        return self.caller.traceparent if self.caller is not None else ""

    @property
    def tracestate(self) -> str:
        """The header ``tracestate`` that belongs to ``traceparent``; empty where there is none to send."""
        return self.caller.tracestate if self.caller is not None else ""


class Source(Protocol):
    """Answers for keys of one feature group."""

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        """What the source's keys are compared with; ``ANY`` where that is not known."""
        ...

    @property
    def table_types(self) -> tuple[KeyType, ...]:
        """The same for the keys of the whole table, as it was read last."""
        ...

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for every key, in order.

        Raises:
            SourceError: no answer for any of them.
        """
        ...

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Return the whole table, keys in normal form; for preloaded groups."""
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


def align(
    keys: Sequence[Key], rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str], types: Sequence[KeyType]
) -> list[Answer]:
    """Give each key its row, in the order of ``keys``. Two rows for a key, or a bad value, are that key's error alone.

    Keys are compared by value, in the normal forms of ``types``. While there is a row whose key was not asked for, a
    key without a row is an error: its row may be that one. A row whose key is NULL belongs to no key.

    Args:
        keys: in normal form.
        rows: the keys as the source returned them.
    """
    found: dict[Key, Answer] = {}
    strange: Key | None = None
    asked = dict.fromkeys(keys)
    for returned, values in rows:
        key = _key_of(returned, types, asked)
        if key is None:
            if None not in returned:
                strange = returned
            continue
        if key in found:
            found[key] = SourceError(f"the source returned more than one row for key {key}: group or limit them")
            continue
        try:
            found[key] = exact_values(values, columns)
        except SourceError as error:
            found[key] = error
    if strange is None:
        return [found.get(key) for key in keys]
    return [found.get(key) or _not_asked(strange, key) for key in keys]


def _key_of(returned: Key, types: Sequence[KeyType], asked: dict[Key, None]) -> Key | None:
    """The key that was asked for and is equal to one that a source returned."""
    try:
        key = normal_key(returned, types)
    except ValueError:
        return None
    if key in asked:
        return key
    if ANY not in types or None in returned:
        return None
    # What the type is the database alone knows; what looks the same is taken for the same, if it is one key only.
    text = tuple(map(str, key))
    alike = [one for one in asked if tuple(map(str, one)) == text]
    return alike[0] if len(alike) == 1 else None


def _not_asked(returned: Key, key: Key) -> SourceError:
    return SourceError(
        f"the source returned a row for key {returned}, which was not requested, and none for {key}: return the "
        "requested key (select it from keys)"
    )


def normal_key(returned: Key, types: Sequence[KeyType]) -> Key:
    """A key that a source returned, in normal form; NULL stays.

    Raises:
        ValueError: a part is not of its type.
    """
    return tuple([None if part is None else kind.stored(part) for part, kind in zip(returned, types, strict=True)])


def table(
    rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str], types: Sequence[KeyType]
) -> list[tuple[Key, Values]]:
    """Check a whole table, its keys in normal form.

    A row whose key is NULL, or is not of its type, is left out: no request can ask for it.

    Raises:
        SourceError: a key twice, or a bad value.
    """
    checked: dict[Key, Values] = {}
    for returned, values in rows:
        try:
            key = normal_key(returned, types)
        except ValueError:
            continue
        if None in key:
            continue
        if key in checked:
            raise SourceError(f"the table has more than one row for key {key}: group or limit them")
        checked[key] = exact_values(values, columns)
    return list(checked.items())


def types_of_table(declared: Sequence[KeyType], rows: Sequence[tuple[Key, Sequence[Any]]]) -> tuple[KeyType, ...]:
    """Types of a table's keys: those of its values where nothing declares one."""
    return tuple([inferred([key[at] for key, _ in rows]) if kind == ANY else kind for at, kind in enumerate(declared)])


async def checked_table(
    rows: Sequence[tuple[Key, Sequence[Any]]], columns: Sequence[str], types: Sequence[KeyType]
) -> list[tuple[Key, Values]]:
    """``table``, off the event loop where the table is large."""
    if len(rows) <= LARGE_TABLE_ROWS:
        return table(rows, columns, types)
    return await asyncio.to_thread(table, rows, columns, types)
