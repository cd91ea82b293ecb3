"""Types of keys: which values a key column takes, and the one form that equal values share. Pure.

A key is compared by caches, tables in memory and databases, each of which has its own idea of equality: "42", 42 and
42.0 are one key to a bigint column, and three to a dictionary of Python or to Redis. So every key has one type, and
every value is brought into that type's normal form before anything looks at it.

Functions that bring into a normal form raise ``ValueError`` for a value that is not of their type, with the reason if
there is more to say. Normal forms are what a cache key can hold (text, int, float, bool): a UUID and a date are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tailcut.common.scalars import Scalar, is_exact_whole

# -- Normal forms --

_LEAST, _MOST = -(2**63), 2**63 - 1
_WHOLE = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_LIKE_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
    r"(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.ASCII,
)


def bigint(value: Any) -> Scalar:
    """A whole number of 64 bits."""
    kind = type(value)
    if kind is int:
        if _LEAST <= value <= _MOST:
            return int(value)
        raise ValueError(f"its limits are {_LEAST} and {_MOST}")
    if kind is float and is_exact_whole(value):
        return int(value)
    if kind is str and _WHOLE.fullmatch(value):
        return bigint(int(value))
    if kind is Decimal and _in_range(value) and value == int(value):
        return int(value)
    raise ValueError


def numeric(value: Any) -> Scalar:
    """Whole numbers as int, others as the double of the same shortest digits."""
    if type(value) is int and _LEAST <= value <= _MOST:
        return value
    exact = _decimal(value)
    if _in_range(exact) and exact == int(exact):
        return int(exact)
    number = float(exact)
    if math.isinf(number) or Decimal(repr(number)) != exact:
        raise ValueError("it has more digits than a double holds")
    return number


def double(value: Any) -> Scalar:
    """A double. A fraction is rounded; a whole number is not, because its neighbour is another key."""
    exact = _decimal(value)
    number = float(exact)
    if math.isinf(number):
        raise ValueError("it is beyond the largest double")
    if exact == exact.to_integral_value() and Decimal(repr(number)) != exact:
        raise ValueError("it has more digits than a double holds")
    return number + 0.0  # -0.0 is 0.0


def _decimal(value: Any) -> Decimal:
    kind = type(value)
    if kind is int:
        return Decimal(value)
    if kind is float and math.isfinite(value):
        return Decimal(repr(value))
    if kind is str and _NUMBER.fullmatch(value):
        return Decimal(value)
    if kind is Decimal and value.is_finite():
        return Decimal(value)
    raise ValueError


def _in_range(value: Decimal) -> bool:
    return value.is_finite() and _LEAST <= value <= _MOST


def text(value: Any) -> Scalar:
    """Text; a whole number is its digits."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is int or (kind is float and is_exact_whole(value)):
        return str(int(value))
    if kind is UUID:
        return str(value)
    raise ValueError


def padded(value: Any) -> Scalar:
    """``char(n)``: blanks at the end do not count."""
    return str(text(value)).rstrip(" ")


def uuid(value: Any) -> Scalar:
    """Lower case, with hyphens."""
    if isinstance(value, UUID):
        return str(UUID(int=value.int))  # a driver may have a class of its own
    if type(value) is str and _UUID.fullmatch(value):
        return str(UUID(value))
    raise ValueError


def day(value: Any) -> Scalar:
    """A date in ISO 8601."""
    if type(value) is date:
        return value.isoformat()
    if type(value) is str and _DATE.fullmatch(value):
        return date.fromisoformat(value).isoformat()
    raise ValueError


def timestamp(value: Any) -> Scalar:
    """A date and time without an offset, in ISO 8601."""
    moment, found = _moment(value)
    if moment.tzinfo is not None:
        raise ValueError(f"it has the offset {found}" if found else "")
    return moment.isoformat()


def timestamptz(value: Any) -> Scalar:
    """A moment in ISO 8601, in UTC."""
    moment, _ = _moment(value)
    if moment.tzinfo is None:
        raise ValueError("it has no offset, such as Z or +02:00")
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError as error:
        raise ValueError("in UTC it is beyond the calendar") from error


def _moment(value: Any) -> tuple[datetime, str]:
    if isinstance(value, datetime):
        return value, ""
    found = _TIME.fullmatch(value) if type(value) is str else None
    if found is None:
        raise ValueError
    return datetime.fromisoformat(value), found["offset"] or ""


def boolean(value: Any) -> Scalar:
    """True or false."""
    if type(value) is bool:
        return bool(value)
    raise ValueError


def stored_boolean(value: Any) -> Scalar:
    """SQLite has no booleans: columns declared as such hold 0 and 1."""
    if type(value) is int and value in {0, 1}:
        return value == 1
    return boolean(value)


def number_or_text(value: Any) -> Scalar:
    """Whole floats are ints, text is text, also where it holds digits."""
    if type(value) is bool:
        raise ValueError
    return any_scalar(value)


def numeric_or_text(value: Any) -> Scalar:
    """As SQLite stores it in a column of NUMERIC affinity: text that is a number becomes one."""
    if type(value) is str and not _NUMBER.fullmatch(value):
        if _LIKE_NUMBER.fullmatch(value):
            raise ValueError("SQLite would take it for a number")
        return value
    return numeric(value)


def any_scalar(value: Any) -> Scalar:
    """Whole floats are ints; otherwise every type is its own. What drivers return and JSON does not have is text."""
    kind = type(value)
    if kind is str or kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return bigint(value)
    if kind is float and math.isfinite(value):
        return int(value) if is_exact_whole(value) else float(value)
    if isinstance(value, Decimal):
        return numeric(value)
    if isinstance(value, UUID):
        return uuid(value)
    if isinstance(value, date):
        return value.isoformat()
    raise ValueError


# -- Types --

_Normal = Callable[[Any], Scalar]


@dataclass(frozen=True, slots=True)
class KeyType:
    """One type of keys; two of one name are equal."""

    name: str
    """As users know it: ``bigint``, ``text``."""
    takes: str = field(compare=False)
    """What to send, for hints."""
    normal: _Normal = field(compare=False)
    """Value -> its normal form; raises ``ValueError`` with what is wrong, to follow "which" (may be empty)."""
    stored: _Normal = field(compare=False)
    """The same for a value that a source returned, which has more types than JSON."""

    def __repr__(self) -> str:
        return f"KeyType({self.name})"


def _type(name: str, takes: str, normal: _Normal, stored: _Normal | None = None) -> KeyType:
    return KeyType(name, takes, normal, stored or normal)


_DIGITS = "send a whole number, or its digits as text"

BIGINT = _type("bigint", _DIGITS, bigint)
NUMERIC = _type("numeric", "send a number, or its digits as text", numeric)
DOUBLE = _type("double precision", "send a number, or its digits as text", double)
TEXT = _type("text", "send text; a whole number counts as its digits", text)
CHAR = _type("char", "send text; a whole number counts as its digits", padded)
CITEXT = _type("citext", "send text; a whole number counts as its digits", text)
"""Sent as it is: which letters are the same without their case, the database's locale says."""
UUID_TYPE = _type("uuid", 'send text such as "2b7b1a5e-7f0e-4c80-9b3f-0c8f6a4f6c1d"', uuid)
DATE = _type("date", 'send text such as "2026-01-31"', day)
TIMESTAMP = _type("timestamp", 'send text such as "2026-01-31T12:00:00"', timestamp)
TIMESTAMPTZ = _type("timestamp with time zone", 'send text such as "2026-01-31T12:00:00Z"', timestamptz)
BOOLEAN = _type("boolean", "send true or false", boolean, stored_boolean)
MIXED = _type("number or text", "send a number or text", number_or_text)
NUMERIC_OR_TEXT = _type("numeric or text", "send a number without blanks or a plus sign, or text", numeric_or_text)
UNCOMPARED = _type("text (compared with nothing)", "send text; a whole number counts as its digits", text)
"""Of a key that a query of PostgreSQL compares with nothing and takes as text: it goes with any other type."""
ANY = _type("any", "send text, a finite number or a boolean", any_scalar)
"""Where the type is not known."""

SENT_AS_TEXT = frozenset({UUID_TYPE, DATE, TIMESTAMP, TIMESTAMPTZ})
"""Types whose values are text in JSON."""

# From what keeps most apart: of two types that one field has, the one further to the left is the field's own.
_TEXTS = (TEXT, CITEXT, CHAR)
_TOGETHER = ((BIGINT, NUMERIC, DOUBLE, NUMERIC_OR_TEXT), (BIGINT, *_TEXTS), (MIXED, *_TEXTS))


def common_type(types: Sequence[KeyType]) -> KeyType | None:
    """The type of a field whose groups have these key types; None where no value can be right for all of them.

    A whole number has one form as digits, so that a bigint and a text column may share a field. A UUID, a date or a
    fraction has several, so that text columns do not go with those. Text that holds digits is text to a column of
    mixed values, and a number to one of numbers: these do not go together either.
    """
    known = [kind for kind in dict.fromkeys(types) if kind not in {ANY, UNCOMPARED}]
    if len(known) <= 1:
        return known[0] if known else UNCOMPARED if UNCOMPARED in types else ANY
    for family in _TOGETHER:
        if all(kind in family for kind in known):
            return next(kind for kind in family if kind in known)
    return None


DECLARED = {"integer": BIGINT, "number": DOUBLE, "text": TEXT, "boolean": BOOLEAN}
"""Key type of each type that ``model.fields`` declares."""


def inferred(values: Sequence[Any]) -> KeyType:
    """The type of a column whose declared type is not known, from the values that it holds."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return BIGINT
    if kinds == {str}:
        return TEXT
    if kinds == {bool}:
        return BOOLEAN
    if kinds and kinds <= {int, float, Decimal}:
        return NUMERIC
    return MIXED if kinds and bool not in kinds else ANY
