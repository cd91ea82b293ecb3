"""Values of feature rows and of hooks -> arrays in an input's datatype, or a refusal of what would not survive."""

from __future__ import annotations

from decimal import Decimal
from itertools import chain
from reprlib import repr as shown
from typing import Any

import numpy as np

from tailcut.common.scalars import EXACT
from tailcut.common.tensors import Array
from tailcut.common.texts import MISSING_TEXT, text_of
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.models.tensor_bytes import objects

_NUMBERS = (int, float, Decimal, np.number, type(None))


def converted(values: Any, spec: InputSpec) -> Array:
    """Return values in the input's datatype; refuse those that would not survive (text, fractions, overflow).

    NumPy alone would parse text, cut fractions off and wrap integers around. None becomes NaN in a float input, and a
    missing text in one of BYTES that allows it. Bytes become text, which is what models take.

    Raises:
        BadRequest: naming the input and a value.
    """
    if spec.datatype == "BYTES":
        return _texts(values, spec)
    if not isinstance(values, np.ndarray):
        _refuse_text(values, spec)
    try:
        array: Array = np.asarray(values)
    except ValueError:
        raise BadRequest(
            f"input {spec.name!r} is not a regular array: lists differ in length, are too deep, or stand beside single "
            "values",
            hint="send numbers",
        ) from None
    kind = array.dtype.kind
    if kind not in "biufO" or (kind != "b" and spec.datatype == "BOOL"):
        # Of mixed values NumPy made text, so the wrong one is looked for in what was given.
        _only(np.array(values, dtype=object), _NUMBERS if spec.datatype != "BOOL" else (bool,), spec)
        if spec.datatype == "BOOL":
            return array.astype(spec.dtype)
    if kind == "O":
        _only(array, _NUMBERS, spec)
    if spec.is_float:
        # A number of a row is a double first, as in a tensor of JSON.
        doubles = array if isinstance(values, np.ndarray) and kind != "O" else _floats(array, spec)
        return _cast(doubles, array, spec)
    if kind == "O" or (kind == "f" and not isinstance(values, np.ndarray)):
        # NumPy makes doubles of whole numbers beside a float, and of small ones beside those of 2**63 and more.
        return _whole(np.array(values, dtype=object), spec)
    if kind != "b" and array.size:
        _check_whole(array, spec)
    return array.astype(spec.dtype)


def _cast(array: Array, given: Array, spec: InputSpec) -> Array:
    try:
        with np.errstate(over="raise"):
            return array.astype(spec.dtype)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            lost = ~np.isfinite(array.astype(spec.dtype))
        raise _unfit(given[np.isfinite(array) & lost][0], spec) from None


def _texts(given: Any, spec: InputSpec) -> Array:
    array: Array = np.array(given, dtype=object)
    _only(array, (str, bytes, type(None)) if spec.allow_nan else (str, bytes), spec)
    values = array.ravel().tolist()
    if set(map(type, values)) <= {str}:
        return array
    texts = [text_of(value, spec.name) if isinstance(value, bytes) else value for value in values]
    return objects([MISSING_TEXT if text is None else text for text in texts], array.shape)


def _floats(array: Array, spec: InputSpec) -> Array:
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise _unfit(max(filter(None, array.ravel().tolist()), key=abs), spec) from None


def _whole(array: Array, spec: InputSpec) -> Array:
    """Return an array of Python's numbers as whole ones, each by itself and exactly."""
    limits: Any = np.iinfo(spec.dtype.str)
    found = []
    for value in array.ravel().tolist():
        try:
            whole = int(value)
        except (TypeError, ValueError, OverflowError):  # None, NaN, infinity
            raise _unfit(value, spec) from None
        is_exact = isinstance(value, int | np.integer | Decimal) or abs(whole) < EXACT
        if whole != value or not is_exact or not limits.min <= whole <= limits.max:
            raise _unfit(value, spec)
        found.append(whole)
    return np.array(found, spec.dtype).reshape(array.shape)


def _check_whole(array: Array, spec: InputSpec) -> None:
    limits: Any = np.iinfo(spec.dtype.str)
    if array.dtype.kind == "f":
        bad = ~((np.rint(array) == array) & (np.abs(array) < EXACT))
        if bad.any():
            raise _unfit(array[bad][0], spec)
    for value in (array.min(), array.max()):
        if not limits.min <= int(value) <= limits.max:
            raise _unfit(value, spec)


def _refuse_text(values: Any, spec: InputSpec) -> None:
    """Refuse text before NumPy sees it: it would give every value as much memory as the longest text needs."""
    level = values
    while True:
        kinds = set(map(type, level))
        if any(issubclass(kind, str | bytes) for kind in kinds):
            raise _unfit(next(value for value in level if isinstance(value, str | bytes)), spec)
        if not kinds or not kinds <= {list, tuple}:
            return  # numbers, or unevenly nested lists, of which NumPy makes nothing
        level = list(chain.from_iterable(level))


def _only(array: Array, kinds: tuple[type, ...], spec: InputSpec) -> None:
    for value in array.ravel().tolist():
        if not isinstance(value, kinds):
            raise _unfit(value, spec)


def _unfit(value: Any, spec: InputSpec) -> BadRequest:
    value = value.item() if isinstance(value, np.generic) else value
    return BadRequest(f"input {spec.name!r} holds {shown(value)}, which is no {spec.datatype}")
