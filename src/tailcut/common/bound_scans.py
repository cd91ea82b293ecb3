"""Searches of arrays for values beyond a limit: fast where there is none, and by NumPy where there is one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, floor, isfinite
from typing import Any

import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array

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
