"""One value as plain Python: text, a number or a boolean; and which doubles are whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

Scalar = int | float | str | bool

EXACT = 2**53
"""A double below is the number that was sent; from here on it may stand for its neighbour, too."""


def is_exact_whole(number: float) -> bool:
    """Return whether a double is a whole number that stands for no other."""
    return number.is_integer() and abs(number) < EXACT


def scalar_of(value: Any) -> Scalar:
    """Return a value as the plain scalar that it stands for.

    NumPy's scalars become Python's, bytes become text, and floats that are whole numbers integers: a label 1.0 is the
    class 1. A boolean stays one, but is equal to 0 or 1, as everywhere in Python.

    Raises:
        TypeError: it is none.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode()
    if isinstance(plain, float):
        return int(plain) if plain.is_integer() else plain
    if isinstance(plain, str | int):
        return plain
    raise TypeError(f"a {type(plain).__name__} is no text, number or boolean")


def is_missing(value: Any) -> bool:
    """Tell whether a value stands for no value: None, NaN, pandas.NaT or pandas.NA."""
    if value is None:
        return True
    differs = value != value  # noqa: PLR0124  # NaN and NaT are unlike themselves
    # pandas.NA answers every comparison with itself, and has no truth value.
    return bool(differs) if isinstance(differs, bool | np.bool_) else differs is value
