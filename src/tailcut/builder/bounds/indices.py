"""Bounds of inputs that are indices into a table: from what the model was seen to do, proven by the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from tailcut.builder.bounds.trials import Trials, fits, sample
from tailcut.common.bounds import Bound
from tailcut.common.tensors import NUMPY_OF
from tailcut.manifest import TensorSpec

_TRIED_COLUMNS = 3


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """One column of an input that reaches a table, unchanged or with an offset of its own in it.

    Attributes:
        input: name of the tensor.
        column: position in the flattened row.
        size: of the indexed dimension.
        table: what it is, such as "embedding e.weight".
        wraps: whether the table counts negative indices from its end instead of refusing them.
        shift: what is added to the column on the way.
    """

    input: str
    column: int
    size: int
    table: str
    wraps: bool = False
    shift: int = 0


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
        if place not in tightest or each.size - each.shift < tightest[place].size - tightest[place].shift:
            tightest[place] = each
    groups: dict[Index, list[int]] = {}
    for each in tightest.values():
        groups.setdefault(msgspec.structs.replace(each, column=0), []).append(each.column)
    for index, columns in groups.items():
        tensor = next(tensor for tensor in trials.inputs if tensor.name == index.input)
        bound = _proven(trials, tensor, sorted(columns), index)
        if bound is not None:
            yield bound


def _proven(trials: Trials, tensor: TensorSpec, columns: list[int], index: Index) -> Bound | None:
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
        why=f"{index.table} has {index.size} rows{f', from {index.shift} on' if index.shift else ''}",
    )


def _largest(trials: Trials, tensor: TensorSpec, columns: Sequence[int], index: Index) -> float | int | None:
    end = index.size - index.shift
    beyond = [value for value in (end, end + 1, end + index.size + 7) if fits(tensor, value)]
    if not beyond or not trials.refuses(tensor, columns, beyond):
        return None
    return next((limit for limit in _next_to(tensor, end, -1) if trials.takes(tensor, columns, [limit])), None)


def _smallest(
    trials: Trials, tensor: TensorSpec, columns: Sequence[int], tried: Sequence[int], index: Index
) -> float | int | None:
    before = -1 - index.shift
    if not fits(tensor, before):
        return None
    limits = _next_to(tensor, before, 1)
    if not trials.refuses(tensor, tried, [before, before - 1] if fits(tensor, before - 1) else [before]):
        if not index.wraps or not trials.refuses(tensor, tried, [before - index.size]):
            return None
        first = before + 1
        if (tensor.min is not None and tensor.min < first) or bool((trials.observed(tensor, columns) < first).any()):
            # Counting from the end is meant.
            limits = [first - index.size]
    return next((limit for limit in limits if trials.takes(tensor, tried, [limit])), None)


def _next_to(tensor: TensorSpec, edge: int, step: int) -> list[float | int]:
    """Return the numbers next to ``edge`` that may reach the table as ``edge + step``, the nearest to it first.

    A fraction is cut off on the way to an integer, after a number may have been rounded to float32.
    """
    dtype = NUMPY_OF[tensor.datatype]
    if dtype.kind != "f":
        return [edge + step]
    kinds = [dtype, np.dtype(np.float32)] if dtype.itemsize > np.dtype(np.float32).itemsize else [dtype]
    return [*(float(np.nextafter(kind.type(edge), kind.type(edge + step))) for kind in kinds), float(edge + step)]
