"""Steps that move, stretch and cut numbers.

NumPy works in place: of a float32 array and float64 parameters it computes in double and rounds after every operation;
so do these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.tables.columns import ColumnTable, floats, one
from tailcut.builder.tables.live import Live
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, Graph


def in_place(graph: Graph, operator: str, name: str, dtype: Any, value: Any) -> str:
    """Do what ``x op= value`` does in NumPy: computed in the wider dtype, rounded to that of x."""
    parameter = np.asarray(value)
    wide = np.result_type(dtype, parameter.dtype) if parameter.ndim else np.dtype(dtype)
    found = graph.add(operator, [graph.cast(name, dtype, wide), graph.constant(parameter, wide)])
    return graph.cast(found, wide, dtype)


def standard(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """StandardScaler."""
    name, dtype = floats(graph, table)
    mean = step.mean_ if step.with_mean else None
    scale = step.scale_ if step.with_std else None
    if table.sparse:
        return one(_scaled(graph, name, dtype, scale, table), table.width, dtype, table)
    if dtype == FLOAT and _rounds_parameters(step, live):
        # Newer releases of scikit-learn round them to the array's dtype first.
        mean, scale = (None if each is None else each.astype(np.float32) for each in (mean, scale))
    if mean is not None:
        name = in_place(graph, "Sub", name, dtype, mean)
    if scale is not None:
        name = in_place(graph, "Div", name, dtype, scale)
    return one(name, table.width, dtype, table)


def _rounds_parameters(step: Any, live: Live) -> bool:
    rows = np.array(live.given, dtype=np.float32)
    rounded = rows.copy()
    if step.with_mean:
        rounded -= step.mean_.astype(np.float32)
    if step.with_std:
        rounded /= step.scale_.astype(np.float32)
    return np.array_equal(rounded, np.asarray(step.transform(rows)), equal_nan=True)


def max_abs(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """MaxAbsScaler."""
    name, dtype = floats(graph, table)
    name = _scaled(graph, name, dtype, step.scale_, table)
    if getattr(step, "clip", False):
        name = clip(graph, name, dtype, -1.0, 1.0)
    return one(name, table.width, dtype, table)


def robust(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """RobustScaler."""
    name, dtype = floats(graph, table)
    if step.with_centering:
        name = in_place(graph, "Sub", name, dtype, step.center_)
    if step.with_scaling:
        name = _scaled(graph, name, dtype, step.scale_, table)
    return one(name, table.width, dtype, table)


def normalizer(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """Normalizer."""
    name, dtype = floats(graph, table)
    axis = graph.whole([1])
    if step.norm == "l1":
        size = graph.add("ReduceSum", [graph.add("Abs", [name]), axis], keepdims=1)
    elif step.norm == "l2":
        size = graph.add("Sqrt", [graph.add("ReduceSum", [graph.add("Mul", [name, name]), axis], keepdims=1)])
    else:
        size = graph.add("ReduceMax", [graph.add("Abs", [name]), axis], keepdims=1)
    graph.single |= dtype == FLOAT
    # What is nearly zero divides by one (sklearn.preprocessing._data._handle_zeros_in_scale); sparse rows: zero only.
    least = np.nextafter(0.0, 1.0) if table.sparse else 10 * np.finfo(dtype).eps
    small = graph.add("Less", [size, graph.constant(least, dtype)])
    size = graph.add("Where", [small, graph.constant(1.0, dtype), size])
    return one(graph.add("Div", [name, size]), table.width, dtype, table)


def binarizer(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """Binarizer."""
    name, dtype = floats(graph, table, nan=False)
    above = graph.add("Greater", [name, graph.constant(step.threshold, dtype)])
    return one(graph.cast(above, np.bool_, dtype), table.width, dtype, table)


def bins(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """KBinsDiscretizer: the number of inner edges that are not above the value."""
    name, dtype = floats(graph, table, nan=False)
    name = graph.cast(name, dtype, DOUBLE)
    parts = []
    for column, edges in enumerate(step.bin_edges_):
        value = graph.add("Gather", [name, graph.whole([column])], axis=1)
        inner = graph.constant(np.asarray(edges, dtype=np.float64)[None, 1:-1], DOUBLE)
        if len(edges) > 2:
            reached = graph.cast(graph.add("GreaterOrEqual", [value, inner]), np.bool_, np.int64)
            number = graph.add("ReduceSum", [reached, graph.whole([1])], keepdims=1)
        else:
            number = graph.cast(graph.add("IsNaN", [value]), np.bool_, np.int64)  # one bin: zeros
        if step.encode == "ordinal":
            parts.append(number)
        else:
            parts.append(one_hot(graph, number, int(step.n_bins_[column])))
    kind = np.int64 if step.encode == "ordinal" else np.bool_
    found = graph.concat(parts)
    out = live.out.dtype
    columns = table.width if step.encode == "ordinal" else int(sum(step.n_bins_))
    return one(graph.cast(found, kind, out), columns, out, table)


def one_hot(graph: Graph, position: str, columns: int) -> str:
    """Return (rows, columns) of booleans, true where ``position`` (rows, 1) says."""
    return graph.add("Equal", [position, graph.constant(np.arange(columns)[None, :], np.int64)])


def clip(graph: Graph, name: str, dtype: Any, low: float, high: float) -> str:
    """Cut values off; NaN stays NaN."""
    below = graph.add("Less", [name, graph.constant(low, dtype)])
    name = graph.add("Where", [below, graph.constant(low, dtype), name])
    above = graph.add("Greater", [name, graph.constant(high, dtype)])
    return graph.add("Where", [above, graph.constant(high, dtype), name])


def _scaled(graph: Graph, name: str, dtype: Any, scale: Any, table: ColumnTable) -> str:
    """Divide; scikit-learn multiplies a SciPy matrix by the reciprocal."""
    if scale is None:
        return name
    return (
        in_place(graph, "Mul", name, dtype, 1.0 / scale) if table.sparse else in_place(graph, "Div", name, dtype, scale)
    )
