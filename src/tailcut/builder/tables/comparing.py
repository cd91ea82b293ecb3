"""Answers beside answers: what counts as rounding, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.common.tensors import Array

SINGLE = 2e-5
"""Of the largest answer, where something is computed in float32: sums over a thousand leaves stay under it, a row in
the wrong leaf does not."""

DOUBLE = 1e-9
"""Of the answer and of the largest, where all is computed in double."""

ROUNDED = 5e-7
"""Of the answer, a few units in the last place of float32, where double is rounded to it in the end."""


def wrong_rows(expected: Array, given: Array, *, single: bool, size: float | None = None) -> tuple[Any, float]:
    """Return which rows differ by more than rounding, and the largest difference.

    Args:
        expected: (rows, ...) answers of the source.
        given: the same of the other; where the source gives NaN or infinity, it may give either.
        single: whether something was computed in float32.
        size: of usual answers; default: the largest expected.
    """
    source, other = (np.asarray(array, dtype=np.float64).reshape(len(array), -1) for array in (expected, given))
    finite = np.isfinite(source)
    largest = float(np.abs(source[finite]).max(initial=0.0)) if size is None else size
    relative = ROUNDED if expected.dtype == np.float32 else DOUBLE
    with np.errstate(invalid="ignore"):
        error = np.abs(source - other)
        limit = (SINGLE if single else DOUBLE) * largest + (SINGLE if single else relative) * np.abs(source)
        right = np.where(finite, error <= limit, ~np.isfinite(other))
    return ~right.all(axis=1), float(np.nanmax(np.where(finite, error, 0.0), initial=0.0))
