"""Bounds of free dimensions: how many positions a model has. Candidates come from its tables, the proof from trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, product

import numpy as np

from tailcut.builder.bounds.trials import Trials
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import TensorSpec

LONGEST = 2048
"""Longer rows are not tried: attention over them takes gigabytes."""

_MOST_CANDIDATES = 8
_SHORTEST = 2
"""A dimension of size 1 fits any other by broadcasting, so that it says nothing."""

_PADS = (0, 1)
"""Values that stand for padding in ids and masks."""

_MOST_PADDED = 4
"""Inputs whose padding is tried in every combination."""


def bounds_of(candidates: Iterable[int], trials: Trials) -> Iterator[Bound]:
    """Yield the largest sizes of the free dimensions that the model proves: it answers there and raises beyond.

    Args:
        candidates: sizes of tables that may be tables of positions.
        trials: of the user's object.
    """
    sizes = sorted(size for size in set(candidates) if _SHORTEST <= size <= LONGEST)[:_MOST_CANDIDATES]
    for group in together(trials.inputs, trials.rows):
        limit = next(_limits(trials, group, sizes, length(group[0], trials.rows)), None)
        for tensor in group:
            # It is this input of a group that may not be longer.
            if limit is not None and (
                len(group) == 1 or not trials.answers(lengthened(trials.rows, [tensor], limit + 1, 0))
            ):
                yield _bound(tensor, limit)
            elif len(group) > 1:
                # An input that its neighbours do not hold back may have another limit.
                other = next(_limits(trials, [tensor], sizes, length(tensor, trials.rows) + 1), None)
                if other is not None:
                    yield _bound(tensor, other)


def _bound(tensor: TensorSpec, limit: int) -> Bound:
    return Bound(input=tensor.name, max_length=limit, why=f"the model has {limit} positions")


def _limits(trials: Trials, group: Sequence[TensorSpec], sizes: Sequence[int], shortest: int) -> Iterator[int]:
    for size in sizes:
        limit = _proven(trials, group, size) if size >= shortest else None
        if limit is not None and limit >= shortest:
            yield limit


def dimension(tensor: TensorSpec) -> int | None:
    """Return the free dimension of a tensor of numbers; None where there is none or more than one."""
    free = [place for place, size in enumerate(tensor.shape) if size == -1 and place > 0]
    return free[0] if len(free) == 1 and tensor.datatype != "BYTES" else None


def lengthened(rows: Arrays, group: Sequence[TensorSpec], wanted: int, source: int) -> Arrays:
    """Return the first row with the free dimension of some inputs made as long as wanted.

    Args:
        rows: of the holdout.
        group: inputs to change.
        wanted: size of the free dimension.
        source: place in the dimension whose value is repeated: 0 for the first, -1 for the last.
    """
    found = {name: array[:1] for name, array in rows.items()}
    for tensor in group:
        axis = dimension(tensor)
        value = np.take(found[tensor.name], [source], axis=axis)
        found[tensor.name] = np.ascontiguousarray(np.repeat(value, wanted, axis=axis))
    return found


def length(tensor: TensorSpec, rows: Arrays) -> int:
    """Return the size of an input's free dimension in the holdout; 0 where it has none."""
    axis = dimension(tensor)
    return rows[tensor.name].shape[axis] if axis is not None else 0


def together(tensors: Sequence[TensorSpec], rows: Arrays) -> list[list[TensorSpec]]:
    """Return the inputs with a free dimension, those of one size in the holdout together (ids and their mask)."""
    groups: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        if dimension(tensor) is not None:
            groups.setdefault(length(tensor, rows), []).append(tensor)
    return list(groups.values())


def _proven(trials: Trials, group: Sequence[TensorSpec], size: int) -> int | None:
    # Of padded rows the first or the last place is not padding.
    for source in (0, -1):
        if any(trials.answers(lengthened(trials.rows, group, longer, source)) for longer in (size + 1, 2 * size)):
            continue
        if any(trials.answers(each) for each in _padded(trials, group, size + 1, source)):
            return None  # positions are counted without padding (RoBERTa): the length alone is no limit
        if trials.answers(lengthened(trials.rows, group, size, source)):
            return size
    return None


def _padded(trials: Trials, group: Sequence[TensorSpec], wanted: int, source: int) -> Iterator[Arrays]:
    """Yield a row of the wanted length whose second half is padding, for every way in which inputs may have some."""
    for pads in product(_PADS, repeat=len(group) if len(group) <= _MOST_PADDED else 1):
        found = lengthened(trials.rows, group, wanted, source)
        for tensor, pad in zip(group, cycle(pads)):
            np.moveaxis(found[tensor.name], dimension(tensor) or 1, 0)[wanted // 2 :] = pad
        yield found
