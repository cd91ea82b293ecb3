"""Consistent changes of a value, such as "+ 1" or "lower case": learned from two columns, or taken from a list."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tailcut.parity.analysis.tolerance import Tolerance, as_number, compare, is_missing

EXACT = Tolerance(1e-6, 1e-6)
"""Of model inputs: one side may hold float64 where the other has float32."""
_HOLDS = 0.95
"""Share of rows that a change has to explain: a row or two may have more than one fault."""
_UNITS = (60.0, 3600.0, 24.0, 7.0, 12.0, 30.0, 10.0, 100.0, 1000.0, 1024.0, 2.54, 0.3048, 1.609344, 1.852, 0.45359237)
_OFFSETS = (1.0, 2.0, 0.5)
_FILLS = (0.0, -1.0, 1.0)


class Change(NamedTuple):
    """A function of one value.

    Attributes:
        text: the pilot's value in words, where the deployment's is ``x``.
        apply: the deployment's value -> the pilot's.
    """

    text: str
    apply: Callable[[Any], Any]


def learn_change(theirs: Sequence[Any], ours: Sequence[Any], tolerance: Tolerance = EXACT) -> Change | None:
    """Find the change that turns one column into the other, row by row; None where no known one does.

    Args:
        theirs: the pilot's values.
        ours: the deployment's.
        tolerance: of numbers.
    """
    for change in _learned(theirs, ours):
        if explains(change, theirs, ours, tolerance):
            return change
    return None


def explains(change: Change, theirs: Sequence[Any], ours: Sequence[Any], tolerance: Tolerance = EXACT) -> bool:
    """Whether a change gives the pilot's values, both of the rows that differ and of all."""
    unequal = [not compare(one, other, tolerance).equal for one, other in zip(theirs, ours, strict=True)]
    right = [compare(one, change.apply(other), tolerance).equal for one, other in zip(theirs, ours, strict=True)]
    mended = [fits for fits, differs in zip(right, unequal, strict=True) if differs]
    return bool(mended) and _share(mended) >= _HOLDS and _share(right) >= _HOLDS


def usual_changes(values: Sequence[Any]) -> Iterator[Change]:
    """List changes to try on a feature without knowing the pilot's values.

    Args:
        values: the deployment's, of the rows at hand; they say which kinds of change make sense.
    """
    numbers = [number for value in values if not isinstance(value, str) and (number := as_number(value)) is not None]
    numbers = [number for number in numbers if math.isfinite(number)]
    texts = [value for value in values if isinstance(value, str)]
    if numbers:
        for offset in _OFFSETS:
            yield _offset(offset)
            yield _offset(-offset)
        for unit in _UNITS:
            yield _factor(unit)
            yield _factor(1 / unit)
        yield _line(1.8, 32.0)
        yield _line(1 / 1.8, -32.0 / 1.8)
        yield Change("always missing", lambda _: None)
        for value in dict.fromkeys((*_FILLS, *sorted(set(numbers), key=numbers.count, reverse=True)[:6])):
            yield _always(value)
        yield Change("whole numbers (cut)", _whole)
    if any(is_missing(value) for value in values):
        fills = [*_FILLS, *([median(numbers), sum(numbers) / len(numbers)] if numbers else [])]
        for value in dict.fromkeys(fills):
            yield _filled(value)
        yield _filled("")
    if texts:
        yield from _TEXTS
        for text in sorted(set(texts), key=texts.count, reverse=True)[:3]:
            yield _always(text)


def _learned(theirs: Sequence[Any], ours: Sequence[Any]) -> Iterator[Change]:
    both = [(one, other) for one, other in zip(theirs, ours, strict=True) if not is_missing(one)]
    if not both:
        yield Change("always missing", lambda _: None)
        return
    if len({str(one) for one in theirs}) == 1 and len({str(other) for other in ours}) > 1 and _is_plain(theirs[0]):
        yield _always(theirs[0])
    filled = [one for one, other in both if is_missing(other) and _is_plain(one)]
    known = [(one, other) for one, other in both if not is_missing(other)]
    if filled:
        yield _filled(filled[0])
    numbers = [
        (first, second)
        for one, other in known
        if (first := as_number(one)) is not None and (second := as_number(other)) is not None
    ]
    numbers = [pair for pair in numbers if math.isfinite(pair[0]) and math.isfinite(pair[1])]
    if numbers:
        yield from _learned_of_numbers(numbers)
    elif all(isinstance(one, str) and isinstance(other, str) for one, other in known):
        yield from _TEXTS
        yield from _renamed(known)
    elif all(isinstance(one, list) for one, _ in known):
        yield Change("its values in reverse order", lambda x: x[::-1] if isinstance(x, list) else x)


def _learned_of_numbers(pairs: Sequence[tuple[float, float]]) -> Iterator[Change]:
    gaps = [one - other for one, other in pairs]
    yield _offset(_tidy(median(gaps)))
    ratios = [one / other for one, other in pairs if other]
    if ratios and (ratio := median(ratios)):
        yield _factor(_tidy(ratio))
        yield _factor(1 / _tidy(1 / ratio))
    yield _line(-1.0, 1.0)
    for digits in range(7):
        yield Change(f"x rounded to {digits} decimals", partial(_rounded, digits))
    yield Change("whole numbers (cut)", _whole)
    least, most = min(pairs, key=lambda pair: pair[1]), max(pairs, key=lambda pair: pair[1])
    if most[1] > least[1] and len({other for _, other in pairs}) > 2:
        slope = (most[0] - least[0]) / (most[1] - least[1])
        if not slope:
            return
        yield _line(_tidy(slope), _tidy(least[0] - slope * least[1]))


def _renamed(known: Sequence[tuple[str, str]]) -> Iterator[Change]:
    """Labels that stand for one another, one to one."""
    names = dict.fromkeys((other, one) for one, other in known)
    table = {other: one for other, one in names}
    if len(table) == len(names) == len(set(table.values())) and 2 <= len(table) <= 20:
        shown = ", ".join(f"{other!r} is {one!r}" for other, one in sorted(table.items()))
        yield Change(f"other labels: {shown}", lambda x: table.get(x, x))


def _offset(by: float) -> Change:
    return Change(f"x {'+' if by >= 0 else '-'} {abs(by):g}", partial(_computed, 1.0, by))


def _factor(by: float) -> Change:
    text = f"x / {1 / by:g}" if 0 < abs(by) < 1 and float(f"{1 / by:.6g}") == round(1 / by, 6) else f"x * {by:g}"
    return Change(text, partial(_computed, by, 0.0))


def _line(slope: float, start: float) -> Change:
    if slope == -1:
        return Change(f"{start:g} - x", partial(_computed, slope, start))
    return Change(f"x * {slope:g} {'+' if start >= 0 else '-'} {abs(start):g}", partial(_computed, slope, start))


def _always(value: Any) -> Change:
    return Change(f"always {_shown(value)}", lambda _: value)


def _filled(value: Any) -> Change:
    return Change(f"{_shown(value)} where x is missing", lambda x: value if is_missing(x) else x)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _computed(slope: float, start: float, value: Any) -> Any:
    number = None if isinstance(value, str) and start == 0 and slope == 1 else as_number(value)
    if number is None or is_missing(value):
        return value
    found = slope * number + start
    # A whole number stays one: a code or a key that becomes 3.0 would be another value.
    return int(found) if isinstance(value, int) and not isinstance(value, bool) and found.is_integer() else found


def _rounded(digits: int, value: Any) -> Any:
    number = as_number(value)
    return value if number is None or not math.isfinite(number) else round(number, digits)


def _whole(value: Any) -> Any:
    number = as_number(value)
    return value if number is None or not math.isfinite(number) else int(number)


def _text_change(text: str, function: Callable[[str], str]) -> Change:
    return Change(text, lambda x: function(x) if isinstance(x, str) else x)


_TEXTS = (
    _text_change("x in lower case", str.lower),
    _text_change("x in upper case", str.upper),
    _text_change("x without spaces around it", str.strip),
    _text_change("x in lower case, without spaces around it", lambda x: x.strip().lower()),
    _text_change("x without its first character", lambda x: x[1:]),
    _text_change("the empty text", lambda _: ""),
)


def _tidy(value: float) -> float:
    """A number without the noise of float32: 0.99999994 is 1."""
    return float(f"{value:.6g}")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)
