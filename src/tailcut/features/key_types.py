"""Types of keys: which values a key column takes, and the one form that equal values share. Pure.

A key is compared by caches, tables in memory and databases, each of which has its own idea of equality: "42", 42 and
42.0 are one key to a bigint column, and three to a dictionary of Python or to Redis. So every key has one type, and
every value is brought into that type's normal form before anything looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tailcut.common.scalars import Scalar
from tailcut.features import key_forms

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

BIGINT = _type("bigint", _DIGITS, key_forms.bigint)
NUMERIC = _type("numeric", "send a number, or its digits as text", key_forms.numeric)
DOUBLE = _type("double precision", "send a number, or its digits as text", key_forms.double)
REAL = _type("real", "send a number, or its digits as text", key_forms.real)
TEXT = _type("text", "send text; a whole number counts as its digits", key_forms.text)
CHAR = _type("char", "send text; a whole number counts as its digits", key_forms.padded)
CITEXT = _type("citext", "send text; a whole number counts as its digits", key_forms.text)
"""Sent as it is: which letters are the same without their case, the database's locale says."""
UUID_TYPE = _type("uuid", 'send text such as "2b7b1a5e-7f0e-4c80-9b3f-0c8f6a4f6c1d"', key_forms.uuid)
DATE = _type("date", 'send text such as "2026-01-31"', key_forms.day)
TIMESTAMP = _type("timestamp", 'send text such as "2026-01-31T12:00:00"', key_forms.timestamp)
TIMESTAMPTZ = _type("timestamp with time zone", 'send text such as "2026-01-31T12:00:00Z"', key_forms.timestamptz)
BOOLEAN = _type("boolean", "send true or false", key_forms.boolean, key_forms.stored_boolean)
BYTEA = _type("bytea", 'send its hexadecimal digits as text such as "\\\\x01ff"', key_forms.bytea)
MIXED = _type("number or text", "send a number or text", key_forms.number_or_text)
NUMERIC_OR_TEXT = _type(
    "numeric or text", "send a number without blanks or a plus sign, or text", key_forms.numeric_or_text
)
ANY = _type("any", "send text, a finite number or a boolean", key_forms.any_scalar)
"""Where the type is not known."""

SENT_AS_TEXT = frozenset({UUID_TYPE, DATE, TIMESTAMP, TIMESTAMPTZ, BYTEA})
"""Types whose values are text in JSON."""

# From what keeps most apart: of two types that one field has, the one further to the left is the field's own.
_TEXTS = (TEXT, CITEXT, CHAR)
_TOGETHER = ((BIGINT, NUMERIC, DOUBLE, NUMERIC_OR_TEXT, REAL), (BIGINT, *_TEXTS), (MIXED, *_TEXTS))


def common_type(types: Sequence[KeyType]) -> KeyType | None:
    """The type of a field whose groups have these key types; None where no value can be right for all of them.

    A whole number has one form as digits, so that a bigint and a text column may share a field. A UUID, a date or a
    fraction has several, so that text columns do not go with those. Text that holds digits is text to a column of
    mixed values, and a number to one of numbers: these do not go together either.
    """
    known = [kind for kind in dict.fromkeys(types) if kind != ANY]
    if len(known) <= 1:
        return known[0] if known else ANY
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
