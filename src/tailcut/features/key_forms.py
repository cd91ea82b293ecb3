"""Normal forms of keys: one value for all that a database column takes for equal. Pure.

Every function raises ``ValueError`` for a value that is not of its type, with the reason if there is more to say.
Normal forms are what a cache key can hold (text, int, float, bool): a UUID, a date and bytes are text.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tailcut.common.scalars import Scalar, is_exact_whole

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
_HEX = re.compile(r"\\x(?:[0-9a-f]{2})*", re.ASCII | re.IGNORECASE)


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


def real(value: Any) -> Scalar:
    """A single, as a double of the same value."""
    number = float(double(value))
    try:
        single: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError as error:
        raise ValueError("it is beyond the largest real") from error
    if number.is_integer() and single != number:
        raise ValueError("it has more digits than a real holds")
    return single


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


def bytea(value: Any) -> Scalar:
    """Hexadecimal digits behind a backslash and an x, as PostgreSQL writes bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if type(value) is str and _HEX.fullmatch(value):
        return value.lower()
    raise ValueError


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
    """Whole floats are ints; otherwise every type is its own."""
    kind = type(value)
    if kind is str or kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return bigint(value)
    if kind is float and math.isfinite(value):
        return int(value) if is_exact_whole(value) else float(value)
    return _any_stored(value)


def _any_stored(value: Any) -> Scalar:
    """What drivers return and JSON does not have."""
    if isinstance(value, Decimal):
        return numeric(value)
    if isinstance(value, UUID):
        return uuid(value)
    if isinstance(value, date):
        return value.isoformat()
    return bytea(value)
