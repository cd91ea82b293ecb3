"""The property of a request that those which differ have in common, and the others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailcut.parity.analysis.tolerance import as_number, is_missing

_LEAST_LIFT = 0.6
_LEAST_ROWS = 3
_MOST_VALUES = 50
_MOST = 3
_MOST_TOGETHER = 6
_ROWS_PER_VALUE = 4


class Concentration(NamedTuple):
    """A property that separates rows that differ from those that do not.

    Attributes:
        text: the property, such as "origin = 'EWR'".
        differing, equal: shares of the rows that have it.
    """

    text: str
    differing: float
    equal: float

    def __str__(self) -> str:
        return f"{self.text}: {self.differing:.0%} of the rows that differ, {self.equal:.0%} of the others"


def concentrations(rows: Sequence[Mapping[str, Any]], differs: Sequence[bool]) -> list[Concentration]:
    """Find what rows that differ have in common; empty where all or none differ, or nothing separates them.

    Args:
        rows: fields of each row, of the request or the features.
        differs: of each row, whether its answer differs.
    """
    bad, good = sum(differs), len(differs) - sum(differs)
    if bad < _LEAST_ROWS or good < _LEAST_ROWS:
        return []
    found = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        best = max(
            (_judged(text, has, differs, bad, good) for text, has in _properties(name, values, differs)),
            key=lambda one: one.differing - one.equal,
            default=None,
        )
        if best is not None and best.differing - best.equal >= _LEAST_LIFT:
            found.append(best)
    return sorted(found, key=lambda one: one.equal - one.differing)[:_MOST]


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return the plain values of nested objects by their dotted names; lists are left out."""
    if isinstance(value, Mapping):
        return {
            inner: found
            for key, item in value.items()
            for inner, found in flattened(item, f"{name}.{key}" if name else str(key)).items()
        }
    return {} if isinstance(value, list) else {name or "value": value}


def _judged(text: str, has: Sequence[bool], differs: Sequence[bool], bad: int, good: int) -> Concentration:
    inside = sum(one and differ for one, differ in zip(has, differs, strict=True))
    return Concentration(text, inside / bad, (sum(has) - inside) / good)


def _properties(name: str, values: Sequence[Any], differs: Sequence[bool]) -> Iterator[tuple[str, list[bool]]]:
    absent = [is_missing(value) for value in values]
    if any(absent) and not all(absent):
        yield f"{name} is missing", absent
    numbers = [
        math.nan if isinstance(value, (bool, str)) or (number := as_number(value)) is None else number
        for value in values
    ]
    kinds = {str(value) for value in values if not is_missing(value)}
    if all(math.isfinite(number) or missing for number, missing in zip(numbers, absent, strict=True)):
        yield from _thresholds(name, numbers)
    # With few rows per value, values that happen to differ would be listed as a cause.
    if 1 < len(kinds) <= min(_MOST_VALUES, len(values) / _ROWS_PER_VALUE):
        yield from _kinds(name, values, differs)


def _kinds(name: str, values: Sequence[Any], differs: Sequence[bool]) -> Iterator[tuple[str, list[bool]]]:
    """Each value by itself, and those together of which most rows differ."""
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        if not is_missing(value):
            places.setdefault(str(value), []).append(place)
    wrong = [kind for kind in sorted(places) if 2 * sum(differs[place] for place in places[kind]) > len(places[kind])]
    together = [wrong] if 1 < len(wrong) <= _MOST_TOGETHER else []
    for kinds in [*([kind] for kind in sorted(places)), *together]:
        inside = {place for kind in kinds for place in places[kind]}
        shown = " or ".join(repr(values[places[kind][0]]) for kind in kinds)
        yield f"{name} = {shown}", [place in inside for place in range(len(values))]


def _thresholds(name: str, numbers: Sequence[float]) -> Iterator[tuple[str, list[bool]]]:
    known = sorted({number for number in numbers if math.isfinite(number)})
    if len(known) < 3:
        return
    steps = max(1, len(known) // 32)
    for place in range(0, len(known) - 1, steps):
        limit = known[place]
        yield f"{name} <= {limit:g}", [number <= limit for number in numbers]
        yield f"{name} > {limit:g}", [number > limit for number in numbers]
