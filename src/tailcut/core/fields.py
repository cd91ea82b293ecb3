"""Limits of the fields of entities and rows, which come as plain values, and whether a value keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isnan
from reprlib import repr as shown
from typing import Any, Literal

from tailcut.core.bounds import allowed, as_held, in_datatype, too_long

Kind = Literal["any", "integer", "number", "text", "boolean"]

_EXACT = 2.0**53
"""Floats hold every whole number up to here."""


class FieldRule:
    """What the values of one field must be.

    A missing value (null, NaN) passes: whether the model takes it is for its input's ``allow_nan``, or the hook, to
    say. Each element of a list is held to the rule, and its length to ``max_length``.

    Args:
        kind: what values must be. A whole float is an integer where it is exact, a boolean is no number.
        low, high: smallest and largest number allowed, both included; None: no limit.
        values: the only values allowed; None: any.
        max_length: most characters of a text, or most elements of a list; None: any.
        datatype: of the input that the field fills, which numbers and limits are rounded to before they are compared,
            as in a tensor; empty: none.
        why: what has this limit; for errors.
    """

    __slots__ = ("_datatype", "_kind", "_max_length", "_range", "_said", "_values", "why")

    def __init__(
        self,
        kind: Kind = "any",
        *,
        low: float | None = None,
        high: float | None = None,
        values: Sequence[Any] | None = None,
        max_length: int | None = None,
        datatype: str = "",
        why: str = "",
    ) -> None:
        self._kind = kind
        self._datatype = datatype
        least, greatest = -inf if low is None else self._limit(low), inf if high is None else self._limit(high)
        self._range = None if low is None and high is None else (least, greatest)
        self._values = None if values is None else frozenset(map(self._limit, values))
        self._said = allowed(low, high, values, why) if self._range or values is not None else ""
        self._max_length = max_length
        self.why = why

    def problem(self, value: Any) -> str:
        """Say what is wrong with a value, to follow the field's name; empty where nothing is."""
        if value is None or (isinstance(value, float) and isnan(value)):
            return ""
        if isinstance(value, list | tuple):
            return self._problem_of_list(value)
        if not isinstance(value, str | int | float):
            return f"is of type {type(value).__name__}, which is no {self._word}"
        if self._kind != "any" and not _is_kind(value, self._kind):
            return f"is {shown(value)}, which is no {self._kind}"
        return self._problem_of_text(value) if isinstance(value, str) else self._problem_of_number(value)

    def limits(self) -> str:
        """Say what is allowed, without any value."""
        if self._said:
            return self._said
        if self._max_length is not None:
            return f"its length is at most {self._max_length}{f' ({self.why})' if self.why else ''}"
        return f"it is no {self._word}"

    def _problem_of_text(self, value: str) -> str:
        if self._range is not None:
            return f"is {shown(value)}, which is no number"
        if self._max_length is not None and len(value) > self._max_length:
            return too_long("has a text whose characters are", len(value), self._max_length, self.why)
        return self._refused(value) if self._values is not None and value not in self._values else ""

    def _problem_of_number(self, value: float) -> str:
        if self._takes(value) or (self._datatype and self._takes(as_held(value, self._datatype))):
            return ""
        return self._refused(value)

    def _takes(self, value: float) -> bool:
        """Return whether a number is within the limits, which are rounded to the datatype; rounding keeps it within."""
        if self._range is not None and not self._range[0] <= value <= self._range[1]:
            return False
        return self._values is None or value in self._values

    def _limit(self, limit: Any) -> Any:
        return limit if self._datatype in {"", "BYTES"} else in_datatype(limit, self._datatype)

    @property
    def _word(self) -> str:
        return "plain value" if self._kind == "any" else self._kind

    def _problem_of_list(self, value: Sequence[Any]) -> str:
        if self._max_length is not None and len(value) > self._max_length:
            return too_long("is a list whose elements are", len(value), self._max_length, self.why)
        for each in value:
            if found := self.problem(each):
                return f"has an element that {found}"
        return ""

    def _refused(self, value: object) -> str:
        return f"is {shown(value)}, {self._said}"


Rules = dict[str, tuple[FieldRule, ...]]
"""The rules of each field that has any, by its name."""


def first_problem(rules: Iterable[FieldRule], value: Any) -> str:
    """Say what is wrong with a value by the first rule that it breaks; empty where it breaks none."""
    for rule in rules:
        if found := rule.problem(value):
            return found
    return ""


def _is_kind(value: str | float, kind: Kind) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "integer" and isinstance(value, float):
        return value.is_integer() and abs(value) <= _EXACT
    return isinstance(value, int | float)
