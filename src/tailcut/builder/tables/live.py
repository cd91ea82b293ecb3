"""Values that fitted steps take and give, as tables of a graph and arrays that feed it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailcut.builder.tables.columns import Block, ColumnTable, Unconvertible
from tailcut.builder.tables.nodes import DOUBLE, TEXT, WHOLE
from tailcut.common.tensors import Array


@dataclass(frozen=True)
class Live:
    """A fitted step at work.

    Attributes:
        given: what it got: an array, a SciPy matrix, a DataFrame or a Series.
        out: what it made of that.
    """

    given: Any
    out: Any


def is_frame(value: Any) -> bool:
    """Tell a DataFrame or a Series; imports nothing."""
    return hasattr(value, "dtypes") and hasattr(value, "iloc")


def is_sparse(value: Any) -> bool:
    """Tell a SciPy matrix."""
    return hasattr(value, "tocsr") and hasattr(value, "toarray")


def width(value: Any) -> int:
    """Number of columns."""
    return int(value.shape[1]) if len(value.shape) == 2 else 1


def dense(value: Any) -> Any:
    """Return an array; DataFrames stay."""
    return value.toarray() if is_sparse(value) else value


def names(value: Any) -> tuple[str, ...] | None:
    """Return a DataFrame's column names; None for others."""
    return tuple(str(name) for name in value.columns) if is_frame(value) and hasattr(value, "columns") else None


def columns(value: Any) -> list[Array]:
    """Return the columns one by one: numbers, or objects."""
    value = dense(value)
    if not is_frame(value):
        table = np.asarray(value)
        return [table[:, at] for at in range(table.shape[1])] if table.ndim == 2 else [table]
    series = [value.iloc[:, at] for at in range(value.shape[1])] if hasattr(value, "columns") else [value]
    return [
        each.to_numpy()
        if isinstance(each.dtype, np.dtype) and each.dtype != TEXT
        else each.to_numpy(dtype=object, na_value=np.nan)
        for each in series
    ]


def table_of(value: Any, prefix: str = "given") -> tuple[ColumnTable, dict[str, Array]]:
    """Return a value as a table whose blocks are inputs of a graph, and the arrays that feed them.

    Raises:
        Unconvertible: a column holds neither numbers nor text.
    """
    shaped = ColumnTable((), sparse=is_sparse(value), flat=len(value.shape) == 1)
    array = dense(value)
    if not is_frame(array) and array.dtype != TEXT and array.dtype.kind not in "US":
        found = np.ascontiguousarray(np.asarray(array).reshape(len(array), -1))
        return replace(shaped, blocks=(Block(prefix, found.shape[1], found.dtype),)), {prefix: found}
    blocks, feeds = [], {}
    for number, column in enumerate(columns(array)):
        name = f"{prefix}_{number}"
        feeds[name], missing = typed(column)
        blocks.append(Block(name, 1, feeds[name].dtype, missing))
    return replace(shaped, blocks=tuple(blocks), names=names(array), mixed=not is_frame(array)), feeds


def typed(column: Array) -> tuple[Array, bool]:
    """Return a column as (rows, 1) of numbers or text, and whether "" stands for a missing text.

    Raises:
        Unconvertible: it holds neither, or both.
    """
    if column.dtype != TEXT and column.dtype.kind not in "US":
        return np.ascontiguousarray(column.reshape(-1, 1)), False
    values = column.tolist()
    present = [value for value in values if not is_nan(value)]
    if all(isinstance(value, str) for value in present):
        texts = ["" if is_nan(value) else value for value in values]
        return np.array(texts, dtype=object).reshape(-1, 1), len(present) < len(values)
    if all(isinstance(value, (bool, int, np.integer, np.bool_)) for value in values):
        return np.array(values, dtype=WHOLE).reshape(-1, 1), False
    if all(isinstance(value, (int, float, np.number)) for value in present):
        return np.array(values, dtype=DOUBLE).reshape(-1, 1), False
    raise Unconvertible("a column holds both numbers and text")


def is_nan(value: Any) -> bool:
    """Tell NaN, of any float type; None is none."""
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))
