"""Limits of the fields of entities and rows, which come as plain values, and whether a value keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from reprlib import repr as shown
from typing import Any, Literal

from tailcut.core.bounds import allowed, too_long

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
        why: what has this limit; for errors.
    """

    __slots__ = ("_high", "_kind", "_listed", "_low", "_max_length", "_values", "why")

    def __init__(
        self,
        kind: Kind = "any",
        *,
        low: float | None = None,
        high: float | None = None,
        values: Sequence[Any] | None = None,
        max_length: int | None = None,
        why: str = "",
    ) -> None:
        self._kind = kind
        self._low = low
        self._high = high
        self._listed = values
        self._values = None if values is None else frozenset(values)
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
        if self._low is not None or self._high is not None or self._listed is not None:
            return allowed(self._low, self._high, self._listed, self.why)
        if self._max_length is not None:
            return f"its length is at most {self._max_length}{f' ({self.why})' if self.why else ''}"
        return f"it is no {self._word}"

    def _problem_of_text(self, value: str) -> str:
        if self._low is not None or self._high is not None:
            return f"is {shown(value)}, which is no number"
        if self._max_length is not None and len(value) > self._max_length:
            return too_long("has a text whose characters are", len(value), self._max_length, self.why)
        return self._refused(value) if self._values is not None and value not in self._values else ""

    def _problem_of_number(self, value: float) -> str:
        outside = (self._low is not None and value < self._low) or (self._high is not None and value > self._high)
        unknown = self._values is not None and value not in self._values
        return self._refused(value) if outside or unknown else ""

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
        return f"is {shown(value)}, {allowed(self._low, self._high, self._listed, self.why)}"


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
