"""Rows at the edges of what the inputs can hold: missing values, unseen categories, numbers beyond float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder.bounds.trials import MOST_COLUMNS, sample
from tailcut.builder.tables.reference import tensor_columns
from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.manifest import TensorSpec

_NUMBERS = (0, 1, -1, 2, 2**24 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1, -(2**31) - 1)
_FLOATS = (-0.0, 0.1, 0.5, -0.5, 1e-30, 1e30, -1e30)
_TEXTS = ("", " ", "\x00unseen", "0", "nan")


@dataclass(frozen=True)
class EdgeRows:
    """Rows that differ from a usual one in one column.

    Attributes:
        inputs: the tensors.
        said: (rows,) which column holds what.
    """

    inputs: Arrays
    said: list[str]


def edges(tensors: Sequence[TensorSpec], background: Arrays, seed: int = 0) -> EdgeRows:
    """Make rows at the edges.

    Args:
        tensors: model.inputs.
        background: rows that all other columns are taken from.
        seed: of the draw of rows.
    """
    rng = np.random.default_rng(seed)
    places = [(number, at) for number, tensor in enumerate(tensors) for at in range(len(tensor_columns(tensor)))]
    tried = [places[each] for each in sample(len(places), MOST_COLUMNS)]
    changes = [(number, at, value) for number, at in tried for value in _values(tensors[number], background, at)]
    rows = rng.integers(len(next(iter(background.values()))), size=len(changes))
    inputs = {tensor.name: background[tensor.name][rows].copy() for tensor in tensors}
    said = []
    for row, (number, at, value) in enumerate(changes):
        tensor = tensors[number]
        if len(tensor.shape) == 2:
            inputs[tensor.name][row, at] = value
        else:
            inputs[tensor.name][row] = value
        said.append(f"{tensor_columns(tensor)[at]} = {value!r}")
    return EdgeRows(inputs, said)


def _values(tensor: TensorSpec, background: Arrays, at: int) -> list[Any]:
    dtype: Any = NUMPY_OF[tensor.datatype]
    if tensor.datatype == "BYTES":
        return [np.array(text, dtype=object)[()] for text in _TEXTS]
    column: Any = background[tensor.name].reshape(len(background[tensor.name]), -1)[:, at]
    if tensor.datatype == "BOOL":
        return [np.bool_(False), np.bool_(True)]
    with np.errstate(over="ignore", invalid="ignore"):
        seen = [np.nanmin(column), np.nanmax(column)] if not np.isnan(column.astype(np.float64)).all() else []
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            beside = (int(value) + one for value in seen for one in (-1, 1))
            found = {*_NUMBERS, int(limits.min), int(limits.max), *beside}
            return [dtype.type(value) for value in sorted(found) if limits.min <= value <= limits.max]
        values = [dtype.type(value) for value in (*_NUMBERS, *_FLOATS)]
        values += [dtype.type(edge) for value in seen for edge in (np.nextafter(value, -np.inf), value + dtype.type(1))]
    values = [value for value in values if np.isfinite(value)]
    return [*values, dtype.type(np.nan), dtype.type(np.inf), dtype.type(-np.inf)] if tensor.allow_nan else values


def answered(call: Callable[[Arrays], Array], inputs: Arrays) -> tuple[Any, Array]:
    """Call a model on rows of which it may refuse some.

    Returns:
        which rows it answers, and those answers.
    """
    rows = len(next(iter(inputs.values())))
    found: dict[int, Array] = {}

    def attempt(start: int, stop: int) -> None:
        try:
            answers = call({name: array[start:stop] for name, array in inputs.items()})
        except Exception:  # whatever the user's object raises: it refuses
            if stop - start > 1:
                middle = (start + stop) // 2
                attempt(start, middle)
                attempt(middle, stop)
            return
        found.update(zip(range(start, stop), answers, strict=True))

    if rows:
        attempt(0, rows)
    mask = np.array([row in found for row in range(rows)], dtype=bool)
    return mask, np.array([found[row] for row in range(rows) if row in found])
