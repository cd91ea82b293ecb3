"""What a call asks for, as a number: calls with the same number ask for the same."""

from __future__ import annotations

import re
import secrets
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_TEXTS = frozenset({str, bytes})
_PLAIN = _TEXTS | {int, float, bool, type(None), date, datetime, time, timedelta, Decimal, UUID}
_MOST = 1_000
_LONGEST = 65_536
"""So many values, all levels together, and characters or bytes: what is more is stored rather than asked for, and
hashing it would take the request's time."""
_SALT = secrets.randbits(64)
"""Not only Python's own secret: a profiled process has a fixed one, so that runs compare."""
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def asked_by(label: str | bytes, values: Any) -> int:
    """Hash what is asked for to 64 bits; 0 where that is more than plain values, or very many.

    No value is kept, and none can be told from the number: it is hashed with a secret of the process.

    Args:
        label: of the call; a statement with values in it is told from others by it alone, comments (/* */) apart.
        values: its arguments.
    """
    try:
        return _hash(label, values)
    except Exception:  # hashing may run code of the user's, a time zone's for one; the call goes on all the same
        return 0


def query_asked(label: str | bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The same of the arguments of a method that takes a query: (self, query, ...)."""
    rest = args[2] if len(args) == 3 else args[2:]
    return asked_by(label, (rest, kwargs) if kwargs else rest)


def command_asked(label: str | bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The same of a method that takes a command: (self, command, ...)."""
    return asked_by(label, (args[1:], kwargs) if kwargs else args[1:])


def _hash(label: str | bytes, values: Any) -> int:
    names: tuple[Any, ...] = ()
    if type(values) is dict:
        names, values = tuple(values), tuple(values.values())
    if type(values) is not tuple or len(values) > _MOST or not _PLAIN.issuperset(map(type, values)):
        values = _flat(values)
    long = 0
    for value in values:
        if type(value) in _TEXTS:
            long += len(value)
    if long > _LONGEST:
        return 0
    if type(label) is str and "/*" in label:
        label = _COMMENT.sub("", label)  # tools write there who asks, or a trace's id
    # To Python's hash -1 is -2.
    return hash((_SALT, label, names, values, values.count(-1))) or 1


def _flat(values: Any) -> tuple[Any, ...]:
    """Lay out what is nested: how many there are stands before those of each level."""
    found: list[Any] = []
    waiting = [values]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is dict or kind is list or kind is tuple:
            if len(found) + len(waiting) + len(value) > _MOST:
                raise TypeError
            found.append((kind is dict, len(value)))
            waiting.extend(value.items() if kind is dict else value)
        elif kind in _PLAIN or kind.__module__ == "numpy":
            found.append(value)  # numbers of NumPy are hashed by value, arrays are not
        else:
            raise TypeError
    return tuple(found)
