"""Bounds of inputs that are indices into a table: from what the model was seen to do, proven by the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from tailcut.build.bounds.trials import Trials, fits, sample
from tailcut.core.bounds import Bound
from tailcut.core.tensors import NUMPY_OF
from tailcut.manifest import Tensor

_TRIED_COLUMNS = 3


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """One column of an input that reaches a table unchanged.

    Attributes:
        input: name of the tensor.
        column: position in the flattened row.
        size: of the indexed dimension.
        table: what it is, such as "embedding e.weight".
        wraps: whether the table counts negative indices from its end instead of refusing them.
    """

    input: str
    column: int
    size: int
    table: str
    wraps: bool = False


class Seen(msgspec.Struct, kw_only=True):
    """Indices and tables found in a run of the model, or in its graph.

    Attributes:
        indices: columns that reach tables.
        lengths: sizes of tables that may limit the size of a free dimension: tables of positions.
        sizes: of all tables, for trials at their edges.
    """

    indices: list[Index] = []
    lengths: set[int] = set()
    sizes: set[int] = set()


def bounds_of(found: Iterable[Index], trials: Trials) -> Iterator[Bound]:
    """Yield the bounds that the model proves: it answers at the limits and raises beyond them."""
    tightest: dict[tuple[str, int], Index] = {}
    for each in found:
        place = each.input, each.column
        if place not in tightest or each.size < tightest[place].size:
            tightest[place] = each
    groups: dict[tuple[str, int, str, bool], list[int]] = {}
    for each in tightest.values():
        groups.setdefault((each.input, each.size, each.table, each.wraps), []).append(each.column)
    for (name, size, table, wraps), columns in groups.items():
        tensor = next(tensor for tensor in trials.inputs if tensor.name == name)
        bound = _proven(
            trials, tensor, sorted(columns), Index(input=name, column=0, size=size, table=table, wraps=wraps)
        )
        if bound is not None:
            yield bound


def _proven(trials: Trials, tensor: Tensor, columns: list[int], index: Index) -> Bound | None:
    every = len(columns) == trials.columns(tensor)
    if -1 in tensor.shape[1:] and not every:
        # Which positions these are in a row of another length is not known.
        return None
    tried = [columns[place] for place in sample(len(columns), _TRIED_COLUMNS)]
    largest = _largest(trials, tensor, tried, index)
    if largest is None:
        return None
    return Bound(
        input=tensor.name,
        columns=() if every else tuple(columns),
        min=_smallest(trials, tensor, columns, tried, index),
        max=largest,
        why=f"{index.table} has {index.size} rows",
    )


def _largest(trials: Trials, tensor: Tensor, columns: Sequence[int], index: Index) -> float | int | None:
    beyond = [value for value in (index.size, index.size + 1, 2 * index.size + 7) if fits(tensor, value)]
    if not beyond or not trials.refuses(tensor, columns, beyond):
        return None
    for limit in _below(tensor, index.size):
        if trials.takes(tensor, columns, [limit]):
            return limit
    return None


def _smallest(
    trials: Trials, tensor: Tensor, columns: Sequence[int], tried: Sequence[int], index: Index
) -> float | int | None:
    if not fits(tensor, -1):
        return None
    limits = [-limit for limit in _below(tensor, 1)]
    if not trials.refuses(tensor, tried, [-1, -2] if fits(tensor, -2) else [-1]):
        if not index.wraps or not trials.refuses(tensor, tried, [-index.size - 1]):
            return None
        declared = getattr(tensor, "min", None)
        if (declared is not None and declared < 0) or bool((trials.observed(tensor, columns) < 0).any()):
            # Counting from the end is meant.
            limits = [-index.size]
    return next((limit for limit in limits if trials.takes(tensor, tried, [limit])), None)


def _below(tensor: Tensor, size: int) -> list[float | int]:
    """Return the largest numbers below ``size`` that may reach the table as ``size - 1``, the largest first.

    A fraction is cut off on the way to an integer, after a number may have been rounded to float32.
    """
    dtype = NUMPY_OF[tensor.datatype]
    if dtype.kind != "f":
        return [size - 1]
    kinds = [dtype, np.dtype(np.float32)] if dtype.itemsize > np.dtype(np.float32).itemsize else [dtype]
    return [*(float(np.nextafter(kind.type(size), kind.type(0))) for kind in kinds), float(size - 1)]
