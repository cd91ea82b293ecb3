"""What a call asks for, as a number: calls with the same number ask for the same."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_PLAIN = frozenset({int, str, float, bytes, bool, type(None), date, datetime, time, timedelta, Decimal, UUID})
_MOST = 1_000


def asked_by(label: str | bytes, values: Any) -> int:
    """Hash what is asked for to 64 bits; 0 where that is more than plain values, or very many.

    No value is kept, and none can be told from the number: texts and bytes are hashed with a secret of the process.

    Args:
        label: of the call; a statement with values in it is told from others by it alone.
        values: its arguments.
    """
    kind = type(values)
    if kind is dict:
        label, values, kind = (label, *values), tuple(values.values()), tuple  # type: ignore[assignment]
    is_plain = kind is tuple and len(values) <= _MOST and _PLAIN.issuperset(map(type, values))
    try:
        return hash((label, values if is_plain else _frozen(values))) or 1
    except (TypeError, RecursionError):
        return 0


def query_asked(label: str | bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The same of the arguments of a method that takes a query: (self, query, ...)."""
    rest = args[2] if len(args) == 3 else args[2:]
    return asked_by(label, (rest, kwargs) if kwargs else rest)


def command_asked(label: str | bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The same of a method that takes a command: (self, command, ...)."""
    return asked_by(label, (args[1:], kwargs) if kwargs else args[1:])


def _frozen(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list or kind is dict:
        if len(value) > _MOST:
            raise TypeError
        return tuple(map(_frozen, value.items() if kind is dict else value))
    if kind.__module__ == "numpy":
        return value  # numbers are hashed by value, arrays are not
    raise TypeError
