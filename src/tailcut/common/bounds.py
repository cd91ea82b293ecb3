"""Limits of a model's inputs, and whether an array keeps them.

A limit is compared in the input's own datatype: FP32 0.1 is not beyond a maximum of 0.1, and whole numbers of any size
are compared exactly. NaN is left to ``allow_nan``; infinity is beyond every maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, inf, isfinite
from reprlib import repr as shown
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import NUMPY_OF, Array
from tailcut.errors import BadRequest

_SHOWN_VALUES = 5

Index = slice | npt.NDArray[np.intp]

_TEXT = "BYTES"

_ANY = 2**31


class Bound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of the values of one input tensor, or of some of its columns, that the model itself has.

    Attributes:
        input: name of the tensor.
        columns: positions in the flattened row (the dimensions behind the first) that it is about; empty: all.
        min, max: smallest and largest value allowed, both included; None: no limit. They do not hold for NaN,
            which ``allow_nan`` allows or not.
        values: the only values allowed; None: any.
        max_length: most characters of a text, or the largest size of a free dimension of a tensor of numbers; None:
            any.
        why: what has this limit, for errors and comments, such as "embedding e.weight has 50 rows".
    """

    input: str
    columns: tuple[int, ...] = ()
    min: float | int | None = None
    max: float | int | None = None
    values: tuple[int | float | str | bool, ...] | None = None
    max_length: int | None = None
    why: str = ""


class Limits:
    """The bounds of one input, compiled.

    Args:
        name: of the input.
        shape: of the input, with -1 for the batch (first) and for every free dimension.
        bounds: all that hold for it, at least one.
        allow_nan: whether the array may hold NaN, which no bound is about.
    """

    __slots__ = ("_bounds", "_checks", "_datatype")

    def __init__(
        self, name: str, datatype: str, shape: Sequence[int], bounds: Iterable[Bound], *, allow_nan: bool = False
    ) -> None:
        self._datatype = datatype
        self._bounds = tuple(bounds)
        self._checks: tuple[Callable[[Array], None], ...] = tuple(
            each
            for bound in self._bounds
            for each in (_length_check(name, datatype, shape, bound), _values_check(name, datatype, bound, allow_nan))
            if each is not None
        )

    def check(self, array: Array) -> None:
        """Refuse an array of the input's datatype and shape that holds a value beyond a bound.

        Raises:
            BadRequest: naming the input, the row, the value and what is allowed.
        """
        if array.size:
            for check in self._checks:
                check(array)

    @property
    def longest(self) -> int:
        """Largest size of a free dimension of a tensor of numbers."""
        lengths = [bound.max_length for bound in self._bounds if bound.max_length is not None]
        return min(lengths) if lengths and self._datatype != _TEXT else _ANY

    def settle(self, array: Array) -> None:
        """Replace in place values that a bound does not allow, by one that it allows."""
        rows = array.reshape(len(array), -1)
        for bound in self._bounds:
            for column in bound.columns or range(rows.shape[1]):
                if column < rows.shape[1]:
                    rows[:, column] = _allowed_value(bound, rows[0, column], self._datatype)


def allowed(low: float | None, high: float | None, values: Iterable[object] | None, why: str = "") -> str:
    """Say what is allowed, as the end of a sentence: "allowed are 0 to 49 (embedding e.weight has 50 rows)"."""
    because = f" ({why})" if why else ""
    if values is not None:
        every = list(values)
        more = f" and {len(every) - _SHOWN_VALUES} more" if len(every) > _SHOWN_VALUES else ""
        return f"allowed are {', '.join(map(shown, every[:_SHOWN_VALUES]))}{more}{because}"
    if low is not None and high is not None:
        return f"allowed are {low} to {high}{because}"
    return f"allowed are values of at {f'most {high}' if low is None else f'least {low}'}{because}"


def too_long(what: str, longest: int, why: str = "") -> str:
    """Say that there is too much of something, with the limit: "has 7 characters, the limit is 5"."""
    return f"{what}, the limit is {longest}{f' ({why})' if why else ''}"


def in_datatype(limit: float, datatype: str) -> float:
    """Return a limit as values of the datatype are compared with it: rounded to it, whole numbers exactly."""
    dtype: Any = NUMPY_OF[datatype]
    if dtype.kind != "f":
        return limit
    largest = float(np.finfo(dtype).max)
    return min(max(as_held(limit, datatype), -largest), largest)


def as_held(value: float, datatype: str) -> float:
    """Return a number as an array of the datatype holds it; beyond the range of floats infinity."""
    dtype: Any = NUMPY_OF[datatype]
    if dtype.kind != "f":
        return value
    try:
        with np.errstate(over="ignore"):
            return float(dtype.type(float(value)))
    except OverflowError:  # a whole number beyond the range of a double
        return inf if value > 0 else -inf


def _length_check(name: str, datatype: str, shape: Sequence[int], bound: Bound) -> Callable[[Array], None] | None:
    longest, why = bound.max_length, bound.why
    if longest is None:
        return None
    if datatype == _TEXT:
        return _text_check(name, longest, bound)
    free = [axis for axis, size in enumerate(shape) if axis and size == -1]

    def check(array: Array) -> None:
        for axis in free:
            size = array.shape[axis]
            if size > longest:
                what = f"input {name!r} has shape {list(array.shape)}, of which dimension {axis} is {size}"
                raise BadRequest(too_long(what, longest, why), hint=f"send at most {longest} values per row there")

    return check if free else None


def _text_check(name: str, longest: int, bound: Bound) -> Callable[[Array], None]:
    columns = sorted(set(bound.columns))
    index = _index(columns)

    def check(array: Array) -> None:
        found = texts(_part(array, index))
        if not found or max(map(len, found)) <= longest:
            return
        at = next(at for at, text in enumerate(found) if len(text) > longest)
        what = f"input {name!r} has a text of {len(found[at])} characters in {_place(array, at, columns)}"
        raise BadRequest(too_long(what, longest, bound.why), hint=f"send texts of at most {longest} characters")

    return check


def _values_check(name: str, datatype: str, bound: Bound, allow_nan: bool) -> Callable[[Array], None] | None:
    low, high = (None if one is None else in_datatype(one, datatype) for one in (bound.min, bound.max))
    values = None if bound.values is None else frozenset(_value(one, datatype) for one in bound.values)
    if low is None and high is None and values is None:
        return None
    columns = sorted(set(bound.columns))
    index = _index(columns)
    may_be_nan = allow_nan and NUMPY_OF[datatype].kind == "f"
    holds_only = membership(values or frozenset(), datatype, may_be_nan=may_be_nan)
    first_beyond = finder(low, high, values, datatype)

    def check(array: Array) -> None:
        part = array if index is None else _part(array, index)
        if not part.size:
            return
        within = (low is None and high is None) or inside(part, low, high, may_be_nan=may_be_nan)
        if within and (values is None or holds_only(part)):
            return
        at = first_beyond(part)
        if at is not None:
            value = part.ravel()[at]
            said = shown(value) if isinstance(value, str | bytes) else str(value)
            raise BadRequest(
                f"input {name!r} holds {said} in {_place(array, at, columns)}, "
                + allowed(bound.min, bound.max, bound.values, bound.why),
                hint="send an allowed value; /openapi.json lists the limits of every input",
            )

    return check


def _index(columns: Sequence[int]) -> Index | None:
    """Return what picks ascending columns fastest: a slice where they are evenly spaced; None for all."""
    if not columns:
        return None
    step = columns[1] - columns[0] if len(columns) > 1 else 1
    if list(columns) == list(range(columns[0], columns[-1] + 1, step)):
        return slice(columns[0], columns[-1] + 1, step)
    return np.array(columns, np.intp)


def _part(array: Array, index: Index | None) -> Array:
    if index is None:
        return array
    rows = array.reshape(len(array), -1)
    if not isinstance(index, slice) and index[-1] >= rows.shape[1]:
        index = index[index < rows.shape[1]]  # a free dimension may leave some out
    return rows[:, index]


def _value(value: Any, datatype: str) -> Any:
    return value if datatype in {_TEXT, "BOOL"} else in_datatype(value, datatype)


def _allowed_value(bound: Bound, value: Any, datatype: str) -> Any:
    """Return the value where the bound allows it, else the one at its limit or the first that it lists."""
    if bound.values is not None:
        return value if value in bound.values else _value(bound.values[0], datatype)
    if bound.min is not None and value < bound.min:
        return in_datatype(bound.min, datatype)
    if bound.max is not None and value > bound.max:
        return in_datatype(bound.max, datatype)
    return value


def _place(array: Array, at: int, columns: Sequence[int]) -> str:
    """Name the row, and the position in it where it has several, of a value of the part that a bound is about."""
    width = array.size // len(array)
    present = [column for column in columns if column < width] or range(width)
    row, position = at // len(present), present[at % len(present)]
    return f"row {row}" if width == 1 else f"row {row}, position {position}"


# -- Scans -------------------------------------------------------------------------------------------------------------


# Searches of arrays for values beyond a limit: fast where there is none, and by NumPy where there is one. Pure.

_FEW = 32
"""Up to here a list's least and greatest value are found faster than an array's."""


def membership(values: frozenset[Any], datatype: str, *, may_be_nan: bool) -> Callable[[Array], bool]:
    """Return what says of a part whether it holds nothing else; it may take NaN for something else."""
    dtype = NUMPY_OF[datatype]
    if dtype.kind != "f":
        return lambda part: values.issuperset(_plain(part))
    # By their bits: hashing fractions takes several times as long as hashing whole numbers.
    as_bits = np.dtype(f"u{dtype.itemsize}")
    zeros, nans = (0.0, -0.0) if 0 in values else (), (np.nan, -np.nan) if may_be_nan else ()
    listed: Any = np.array([*values, *zeros, *nans], dtype)
    bits = frozenset(listed.view(as_bits).tolist())
    return lambda part: bits.issuperset(part.ravel().view(as_bits).tolist())


def finder(
    low: float | None, high: float | None, values: frozenset[Any] | None, datatype: str
) -> Callable[[Array], int | None]:
    """Return what finds the first value of a part that is beyond a limit, NaN left out."""
    dtype = NUMPY_OF[datatype]
    if dtype.hasobject:
        listed_texts = values or frozenset()
        return lambda part: next((at for at, text in enumerate(texts(part)) if text not in listed_texts), None)
    if dtype.kind != "f":  # whole numbers compare exactly with whole numbers only
        low, high = (None if low is None else _whole(low, ceil)), (None if high is None else _whole(high, floor))
    listed = None if values is None else _listed(values, dtype)

    def find(part: Array) -> int | None:
        flat: Any = part.ravel()
        beyond = np.zeros(len(flat), np.bool_)
        if low is not None:
            beyond |= flat < low
        if high is not None:
            beyond |= flat > high
        if listed is not None:
            beyond |= np.isin(flat, listed, invert=True)
            if dtype.kind == "f":
                beyond &= ~np.isnan(flat)
        at = int(beyond.argmax())
        return at if beyond[at] else None

    return find


def _whole(limit: float, rounded: Callable[[float], int]) -> float:
    return rounded(limit) if isinstance(limit, float) and isfinite(limit) else limit


def _listed(values: Iterable[Any], dtype: np.dtype[np.generic]) -> Array:
    """Return those of the values that an array of the datatype can hold."""
    if dtype.kind in "iu":
        info: Any = np.iinfo(dtype.str)
        values = [int(one) for one in values if info.min <= one <= info.max and one == int(one)]
    elif dtype.kind == "b":
        values = [bool(one) for one in values if one in {0, 1}]
    return np.array(list(values), dtype)


def inside(part: Array, low: float | None, high: float | None, *, may_be_nan: bool) -> bool:
    """Return whether all values are within two limits, NaN left out."""
    numbers: Any = part
    if may_be_nan:
        least, greatest = np.fmin.reduce(numbers, axis=None), np.fmax.reduce(numbers, axis=None)
    elif part.size <= _FEW:
        flat = part.ravel().tolist()
        least, greatest = min(flat), max(flat)
    else:
        least, greatest = numbers.min().item(), numbers.max().item()
    return not ((low is not None and least < low) or (high is not None and greatest > high))


def _plain(part: Array) -> list[Any]:
    return texts(part) if part.dtype.hasobject else part.ravel().tolist()


def texts(part: Array) -> list[str]:
    """Return text elements; a hook may have made them bytes."""
    return [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in part.ravel().tolist()]
