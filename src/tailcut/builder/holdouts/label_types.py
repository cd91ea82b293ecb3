"""Checks a holdout's labels, and gives label objects (as pandas and lists of Python values have them) a datatype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.common.scalars import is_missing, scalar_of
from tailcut.common.tensors import Array
from tailcut.errors import BuildError

_TYPES = {
    "boolean": (bool, np.bool_),
    "number": (int, float, np.integer, np.floating),
    "text": (str, bytes),
}
"""Of label objects; the first that fits counts, as a Python boolean is an integer, too."""


def checked(labels: Array) -> Array:
    """Refuse labels that cannot be classes or values, and give objects of numbers or booleans a datatype.

    Args:
        labels: (rows,) or (rows, columns).

    Returns:
        booleans, numbers or fixed-width text as they are; of objects booleans as bool, numbers as int64, uint64 or
        float64, and text as objects of str.

    Raises:
        BuildError: of another type or of several types, of shape (rows, 1), missing in a row, or out of range.
    """
    if labels.dtype.kind not in "biufUSO":
        raise _wrong_type(str(labels.dtype))
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise BuildError(
            f"the holdout's labels have shape {list(labels.shape)}, expected one per row: ({len(labels)},)",
            hint='write labels.ravel(), or take the column by name: frame["y"], not frame[["y"]]',
        )
    if labels.dtype.kind == "O":
        flat = labels.ravel().tolist()
        _refuse_missing(np.array([is_missing(each) for each in flat]).reshape(labels.shape))
        labels = _typed(flat).reshape(labels.shape)
    if labels.dtype.kind == "f":
        _refuse_missing(~np.isfinite(labels))
    return labels


def _wrong_type(found: str) -> BuildError:
    return BuildError(
        f"the holdout's labels are {found}, expected numbers, text or booleans",
        hint="give classes as text, numbers or booleans, and values as numbers",
    )


def _refuse_missing(missing: Array) -> None:
    """Raise BuildError where a label, (rows, ...) of booleans, is missing."""
    rows = np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))
    if rows.size:
        raise BuildError(
            f"{rows.size} of {len(missing)} labels are NaN, infinite or missing, the first in row {rows[0]}",
            hint="leave out rows without a known outcome",
        )


def _typed(labels: Sequence[Any]) -> Array:
    """Return label objects, flat, as an array of their type."""
    types = [_type_of(each) for each in labels]
    counts = Counter(types)
    if odd := counts.keys() - _TYPES:
        raise _wrong_type(f"of type {', '.join(sorted(odd))}")
    if len(counts) > 1:
        found = "; ".join(f"{name} in {rows}, such as {labels[types.index(name)]!r}" for name, rows in counts.items())
        raise BuildError(
            f"the holdout's {len(labels)} labels are of several types: {found}",
            hint="give all labels as text, all as numbers or all as booleans, of the same type as the classes",
        )
    return _text(labels) if "text" in counts else _numeric(labels)


def _type_of(label: Any) -> str:
    return next((name for name, types in _TYPES.items() if isinstance(label, types)), type(label).__name__)


def _text(labels: Sequence[Any]) -> Array:
    found = np.empty(len(labels), np.object_)
    try:
        found[:] = [scalar_of(each) for each in labels]
    except UnicodeDecodeError as error:
        raise BuildError(
            f"the holdout's labels hold {error.object!r}, which is not UTF-8", hint="decode the labels to text"
        ) from error
    return found


def _numeric(labels: Sequence[Any]) -> Array:
    """Return numbers or booleans as an array; refuse numbers that would not stay what they are."""
    plain = [each.item() if isinstance(each, np.generic) else each for each in labels]
    array: Array = np.array(plain)
    if array.dtype.kind not in "biuf" or array.tolist() != plain:
        raise BuildError(
            f"the holdout's labels hold integers from {min(plain)} to {max(plain)}, more than 64 bits hold",
            hint="give such labels as text",
        )
    return array
