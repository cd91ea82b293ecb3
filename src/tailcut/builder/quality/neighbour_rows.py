"""Company for the rows of a holdout: other rows to run beside them, real, random and extreme.

Floats of extreme rows go up to the largest of their datatype. Integers stay within what the holdout has in their place:
an index beyond a table would only make the model fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import Tensor

BATCHES = (2, 8, 32)
"""Rows of batches of the holdout, in its order."""

_SEED = 0
_SHARED = 8
"""Rows that share one pair of extreme neighbours, which come first and last."""

Change = Callable[[Array, Tensor], Array]
"""Input of two rows of the holdout -> the same input of two extreme rows."""


class Neighbours(NamedTuple):
    """One batch.

    Attributes:
        kind: such as "batch of 8".
        rows: numbers of the rows whose answers are compared.
        places: (len(rows),) where each is in the batch.
        inputs: of the batch, padded together.
        is_real: whether all of its rows are the holdout's own.
    """

    kind: str
    rows: Sequence[int]
    places: Array
    inputs: Arrays
    is_real: bool


def companies(holdout: Holdout, inputs: Sequence[Tensor], count: int) -> Iterator[Neighbours]:
    """Yield batches in which the first ``count`` rows of the holdout have company; of extreme company half of them."""
    for size in BATCHES:
        for start in range(0, count, size):
            rows = range(start, min(start + size, count))
            yield Neighbours(f"batch of {size}", rows, np.arange(len(rows)), holdout.take(size, start), is_real=True)
    draw = np.random.default_rng(_SEED)
    for rows in _groups(count, _SHARED // 2):
        places = draw.permutation(_SHARED)[: len(rows)]
        numbers = draw.integers(holdout.rows, size=_SHARED)
        numbers[places] = rows
        yield Neighbours("random", rows, places, holdout.at(numbers), is_real=True)
    for kind, change in _extremes(holdout, inputs).items():
        for rows in _groups(-(-count // 2), _SHARED):
            first, last = draw.integers(holdout.rows, size=2).tolist()
            found = holdout.at(np.array([first, *rows, last]))
            changed = {tensor.name: _changed(found[tensor.name], tensor, change) for tensor in inputs}
            yield Neighbours(kind, rows, np.arange(1, len(rows) + 1), changed, is_real=False)
    if holdout.padding:
        longest = int(np.argmax(holdout.inputs[holdout.padding].astype(bool).sum(axis=1)))
        for rows in _groups(count, _SHARED):
            found = holdout.at(np.array([longest, *rows]))
            yield Neighbours("longest", rows, np.arange(1, len(rows) + 1), found, is_real=True)


def _groups(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _changed(array: Array, tensor: Tensor, change: Change) -> Array:
    found = array.copy()
    found[[0, -1]] = change(array[[0, -1]], tensor)
    return found


def _extremes(holdout: Holdout, inputs: Sequence[Tensor]) -> dict[str, Change]:
    """Return what makes rows extreme, by kind; none for datatypes that the model does not take."""
    found: dict[str, Change] = {}
    if any(_is_float(holdout.inputs[tensor.name]) for tensor in inputs):
        found |= {
            "zeros": _floats(np.zeros_like),
            "1000 times": _floats(lambda array: np.multiply(array, 1e3)),
            "-1000 times": _floats(lambda array: np.multiply(array, -1e3)),
            "1e7": _floats(lambda array: np.full_like(array, 1e7)),
            "-1e7": _floats(lambda array: np.full_like(array, -1e7)),
            "1e-3 to 1e7": _floats(_mixed),
            "largest": _floats(lambda array: np.full_like(array, np.inf)),
        }
    if any(_is_float(holdout.inputs[tensor.name]) and tensor.allow_nan for tensor in inputs):
        found["NaN and infinity"] = _not_finite
    if any(holdout.inputs[tensor.name].dtype.kind in "iub" for tensor in inputs):
        found |= {"least integers": _integers(holdout, np.min), "greatest integers": _integers(holdout, np.max)}
    return found


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _floats(make: Callable[[Array], Array]) -> Change:
    """Change floats, in float64 and then clipped to their datatype; leave other inputs as they are."""

    def change(array: Array, tensor: Tensor) -> Array:
        if not _is_float(array):
            return array
        largest = float(np.finfo(np.dtype(array.dtype.str)).max)
        return np.clip(make(array.astype(np.float64)), -largest, largest).astype(array.dtype)

    return change


def _mixed(array: Array) -> Array:
    """Return values of many magnitudes and both signs."""
    draw = np.random.default_rng(_SEED)
    found: Array = draw.choice([-1.0, 1.0], size=array.shape) * 10.0 ** draw.uniform(-3.0, 7.0, size=array.shape)
    return found


def _not_finite(array: Array, tensor: Tensor) -> Array:
    """Return a row of NaN and a row of infinity where the input takes them."""
    if not _is_float(array) or not tensor.allow_nan:
        return array
    found = np.full_like(array, np.nan)
    found[-1] = np.inf
    return found


def _integers(holdout: Holdout, most: Callable[..., Array]) -> Change:
    """Give integers the least or greatest value that the holdout has in the same place of a row."""

    def change(array: Array, tensor: Tensor) -> Array:
        if array.dtype.kind not in "iub":
            return array
        found = most(holdout.inputs[tensor.name], axis=0)
        wanted = tuple(slice(0, size) for size in array.shape[1:])  # padding may be cut off
        return np.broadcast_to(found[wanted], array.shape).astype(array.dtype)

    return change
