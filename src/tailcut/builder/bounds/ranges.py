"""Bounds of numbers that a model of tables refuses: infinity, what float32 cannot hold, and other limits it has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
import numpy as np

from tailcut.builder.bounds.trials import MOST_COLUMNS, OutOfTime, Trials, sample
from tailcut.common.bounds import Bound
from tailcut.common.tensors import NUMPY_OF
from tailcut.manifest import TensorSpec

FLOAT32 = 3.4028235e38
"""Largest float32 as it is written; as float64 it is a little more, and rounds to it."""

_BEYOND_FLOAT32 = (3.4028236e38, 1e300)
_INSIDE = 64
"""Values between the limits that are tried; of whole numbers all, where they are at most _MOST_WHOLE."""

_MOST_WHOLE = 4096

_BITS = 5
"""Of a limit's mantissa where it is beyond all whole numbers."""

Sign = Literal[-1, 1]


class Limit(msgspec.Struct, frozen=True):
    """The last value that is answered in one direction, and what holds it there."""

    value: float | int
    why: str


def bounds_of(trials: Trials, tensor: TensorSpec, columns: Sequence[int], most: int = MOST_COLUMNS) -> list[Bound]:
    """Return the limits of numbers in these columns, each proven: the limit is answered, what lies beyond raises.

    Args:
        trials: of the user's object.
        tensor: the input.
        columns: positions in its flattened row.
        most: columns that are tried one by one; if all are alike, all of ``columns`` are.
    """
    dtype = NUMPY_OF[tensor.datatype]
    places = [columns[place] for place in sample(len(columns), most)]
    if dtype.kind not in "iuf" or not places:
        return []
    free = {sign: trials.answers(trials.changed(tensor.name, places, [_extreme(tensor, sign)])) for sign in (-1, 1)}
    if all(free.values()):
        return []
    found: dict[tuple[Limit | None, Limit | None], list[int]] = {}
    # Columns that were tried in time keep their limits.
    with suppress(OutOfTime):
        for place in places:
            low = None if free[-1] else _limit(trials, tensor, place, -1)
            high = None if free[1] else _limit(trials, tensor, place, 1)
            if (low or high) and _answers_inside(trials, tensor, place, low, high):
                found.setdefault((low, high), []).append(place)
    if len(found) == 1 and list(found.values()) == [places]:
        # Where all that were tried are alike, those between them are too: the model looks at the whole table.
        found = {limits: list(columns) for limits in found}
    every = trials.columns(tensor)
    return [
        Bound(
            input=tensor.name,
            columns=() if len(places) == every else tuple(places),
            min=None if low is None else low.value,
            max=None if high is None else high.value,
            why=(high or low or Limit(0, "")).why,
        )
        for (low, high), places in found.items()
    ]


def _extreme(tensor: TensorSpec, sign: Sign) -> Any:
    """Return the farthest value that clients may send."""
    if NUMPY_OF[tensor.datatype].kind == "f" and tensor.allow_nan:
        return sign * np.inf
    return _largest(tensor, sign)


def _largest(tensor: TensorSpec, sign: Sign) -> Any:
    dtype = NUMPY_OF[tensor.datatype]
    if dtype.kind == "f":
        return sign * float(np.finfo(dtype.str).max)
    limits = np.iinfo(dtype.str)
    return int(limits.max) if sign > 0 else int(limits.min)


def _limit(trials: Trials, tensor: TensorSpec, place: int, sign: Sign) -> Limit | None:
    """Return where the answers of one column end; None where they do not, or not in an orderly way."""

    def answers(value: Any) -> bool:
        return trials.answers(trials.changed(tensor.name, [place], [value]))

    extreme, largest = _extreme(tensor, sign), _largest(tensor, sign)
    if answers(extreme):
        return None
    if extreme != largest and answers(largest):
        value = sign * FLOAT32 if tensor.datatype == "FP32" else largest
        return Limit(value, "the model refuses infinity")
    if tensor.datatype == "FP64" and answers(sign * FLOAT32) and not any(answers(sign * v) for v in _BEYOND_FLOAT32):
        return Limit(sign * FLOAT32, "the model computes in float32")
    observed = trials.observed(tensor, [place])
    observed = observed[np.isfinite(observed)] if observed.dtype.kind == "f" else observed
    if not observed.size:
        return None
    start = (observed.max() if sign > 0 else observed.min()).item()
    if not answers(start):
        return None
    return Limit(_between(tensor, start, largest, answers), "the model raises beyond")


def _between(tensor: TensorSpec, inside: Any, outside: Any, answers: Any) -> float | int:
    """Return the last value from ``inside`` on that is answered, by halving.

    Exact up to the largest whole numbers that all have a float of their own; of larger ones a few bits are enough.
    """
    dtype = NUMPY_OF[tensor.datatype]
    if dtype.kind != "f":
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if answers(middle) else (inside, middle)
        return int(inside)
    whole = np.dtype(f"i{dtype.itemsize}")
    low, high = _ordered(inside, dtype, whole), _ordered(outside, dtype, whole)
    exact = 1 << np.finfo(dtype.str).nmant
    while abs(high - low) > (1 if abs(_float(low, dtype, whole)) < exact else exact >> _BITS):
        middle = (low + high) // 2
        low, high = (middle, high) if answers(_float(middle, dtype, whole)) else (low, middle)
    return _float(low, dtype, whole)


def _ordered(value: float, dtype: np.dtype[Any], whole: np.dtype[Any]) -> int:
    """Return the number of a float in the order of all floats of its kind."""
    bits = int(np.array(abs(value), dtype=dtype).view(whole))
    return bits if value >= 0 else -bits


def _float(number: int, dtype: np.dtype[Any], whole: np.dtype[Any]) -> float:
    value = float(np.array(abs(number), dtype=whole).view(dtype))
    return value if number >= 0 else -value


def _answers_inside(trials: Trials, tensor: TensorSpec, place: int, low: Limit | None, high: Limit | None) -> bool:
    """Tell whether values between the limits are answered: a list of codes with gaps has no limits."""
    observed = trials.observed(tensor, [place])
    first: Any = low.value if low else observed.min().item()
    last: Any = high.value if high else observed.max().item()
    if NUMPY_OF[tensor.datatype].kind == "f":
        finite = [value for value in (first, last) if np.isfinite(value)]
        values: list[Any] = list(np.linspace(-1, 1, _INSIDE) * max(map(abs, finite), default=0.0))
        values = [value for value in values if first <= value <= last]
    elif last - first <= _MOST_WHOLE:
        values = list(range(first, last + 1))
    else:
        values = [first + (last - first) * step // _INSIDE for step in range(_INSIDE + 1)]
    return not values or trials.answers(trials.changed(tensor.name, [place], values))
