"""Four explanations of two columns that differ: an offset, a factor, rounding, a missing value treated differently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from tailcut.parity.analysis.tolerance import Tolerance, as_number, compare, is_missing

EXACT = Tolerance(1e-6, 1e-6)
"""Of model inputs: one side may hold float64 where the other has float32."""
_HOLDS = 0.95
"""Share of rows that an explanation must cover: a row or two may have more than one fault."""


def explain(theirs: Sequence[Any], ours: Sequence[Any], tolerance: Tolerance = EXACT) -> str:
    """Give the pilot's values by the deployment's x, such as "x + 1"; empty where no explanation covers the rows.

    Args:
        theirs: the pilot's values, row by row.
        ours: the deployment's.
        tolerance: of numbers.
    """
    rows = list(zip(theirs, ours, strict=True))
    unequal = [not compare(one, other, tolerance).equal for one, other in rows]
    for text, apply in _candidates(rows):
        right = [compare(one, apply(other), tolerance).equal for one, other in rows]
        mended = [fits for fits, differs in zip(right, unequal, strict=True) if differs]
        if mended and min(sum(mended) / len(mended), sum(right) / len(right)) >= _HOLDS:
            return text
    return ""


def _candidates(rows: Sequence[tuple[Any, Any]]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "always missing", lambda _: None
    filled = [one for one, other in rows if is_missing(other) and isinstance(one, (bool, int, float, str))]
    if filled:
        value = filled[0]
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        yield f"{shown} where x is missing", lambda x: value if is_missing(x) else x
    pairs = [(as_number(one), as_number(other)) for one, other in rows]
    numbers = [
        (one, other)
        for one, other in pairs
        if one is not None and other is not None and math.isfinite(one) and math.isfinite(other)
    ]
    if not numbers:
        return
    offset = median(one - other for one, other in numbers)
    yield f"x {'+' if offset >= 0 else '-'} {abs(offset):g}", lambda x: _computed(x, lambda number: number + offset)
    factor = median([one / other for one, other in numbers if other] or [0.0])
    if factor:  # 0 fits every column of zeros
        yield f"x * {factor:g}", lambda x: _computed(x, lambda number: number * factor)
    for digits in range(7):
        yield f"x rounded to {digits} decimals", partial(_computed, function=partial(round, ndigits=digits))


def _computed(value: Any, function: Callable[[float], float]) -> Any:
    number = as_number(value)
    return value if number is None or not math.isfinite(number) else function(number)
