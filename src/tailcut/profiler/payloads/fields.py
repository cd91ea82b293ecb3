"""Fields of a payload and, where an object's keys are data (such as ids), those keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LEARNED = 500
"""Payloads from which the structure of the others is inferred."""
_DEEPEST = 6
_MOST_ELEMENTS = 1000
_MANY_NAMES = 16
_RARE = 0.2
"""More names than that, of which an object has so few on average, are data."""
_ID = re.compile(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(?=\D*\d)[0-9a-fA-F]{12,}|[^@\s]+@[^@\s]+\.[^@\s]+|.{41,}",
    re.ASCII | re.DOTALL,
)
"""UUIDs, hashes, addresses, and texts too long for a field's name."""
_NUMBER = re.compile(r"-?\d+|\d{4}-\d\d-\d\d.*", re.ASCII | re.DOTALL)
"""Numbers and days: ids where they differ from object to object, else columns."""
_COLUMNS = 0.75
"""Of several objects, that many have a column on average."""
_TABLE = re.compile(r"\{\}|(?:\A|\.)\*")

Tables = frozenset[str]
"""Paths of objects whose keys are data."""


def values_of(payload: Any, tables: Tables = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each look-up in a decoded payload.

    A list of names or whole numbers is one look-up per element (``entities[]``), a list that holds fractions is one
    value (a row of numbers, not a list of things to ask about), and a list of objects is descended into. Of a table
    each key is a look-up (``users{}``), and what it holds is descended into as one (``users.*.city``).
    """
    yield from _descend("", payload, _DEEPEST, tables)


def find_tables(payloads: Sequence[Any]) -> Tables:
    """Find the objects whose keys are data: most look like ids, or there are many and each is rare.

    Args:
        payloads: decoded, some hundred.
    """
    found = set()
    pending: list[tuple[str, list[Any], int]] = [("", list(payloads), _DEEPEST)]
    while pending:
        path, values, deeper = pending.pop()
        objects = [value for value in values if isinstance(value, dict) and value]
        elements = [inner for value in values if isinstance(value, list) for inner in value[:_MOST_ELEMENTS]]
        if not deeper:
            continue
        if elements:
            pending.append((f"{path}[]", elements, deeper - 1))
        if not objects:
            continue
        if _is_table(objects):
            found.add(path)
            pending.append((_below(path, "*"), [inner for one in objects for inner in one.values()], deeper - 1))
        else:
            for name in {name for one in objects for name in one}:
                inner = [one[name] for one in objects if name in one]
                pending.append((_below(path, name), inner, deeper - 1))
    return frozenset(found)


def tables_of(path: str) -> Tables:
    """Tell from a look-up's path which of the objects on its way are tables."""
    return frozenset(path[: found.start()] for found in _TABLE.finditer(path))


def _is_table(objects: Sequence[Mapping[str, Any]]) -> bool:
    names = Counter(name for one in objects for name in one)
    places = len(names) * len(objects)
    columns = len(objects) > 1 and names.total() >= _COLUMNS * places
    ids = sum(not columns if _NUMBER.fullmatch(name) else _ID.fullmatch(name) is not None for name in names)
    rare = names.total() < _RARE * places
    return 2 * ids > len(names) or (len(names) > _MANY_NAMES and rare)


def _descend(path: str, value: Any, deeper: int, tables: Tables) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and deeper:
        for name, inner in value.items():
            if path in tables:
                yield f"{path}{{}}", name
            yield from _descend(_below(path, "*" if path in tables else str(name)), inner, deeper - 1, tables)
        return
    if isinstance(value, list) and deeper and 0 < len(value) <= _MOST_ELEMENTS:
        if all(isinstance(inner, dict) for inner in value):
            for inner in value:
                yield from _descend(f"{path}[]", inner, deeper - 1, tables)
            return
        if all(isinstance(inner, (str, int)) for inner in value):
            for inner in value:
                yield f"{path}[]", inner
            return
    if path:
        yield path, value


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
