"""Trees at their thresholds: the library and the graph send every row to the same leaf."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.ensembles.base import Bools, Doubles, Ensemble
from tailcut.builder.ensembles.probes import Probes, probes
from tailcut.builder.tables import estimators
from tailcut.builder.tables.columns import Block, Table, takes_nan
from tailcut.builder.tables.comparing import wrong_rows
from tailcut.builder.tables.live import is_frame, is_sparse
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, Graph, model_of, run, value_info
from tailcut.builder.tables.reference import as_given, column_order, tensor_columns
from tailcut.builder.tables.steps import Walk
from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Tensor

Run = Callable[[Arrays], Array]


def compare(
    model: Any,
    tensors: Sequence[Tensor],
    output: Tensor,
    background: Arrays,
    *,
    expected: Run,
    given: Run,
    single: bool,
) -> dict[str, Any]:
    """Compare on rows that lie on thresholds and one step to either side.

    Args:
        model: a model that ends with trees, or another one.
        tensors, output: of the manifest.
        background: holdout rows.
        expected: the user's object.
        given: the ONNX model.
        single: whether it computes something in float32.

    Returns:
        evidence; empty without trees.

    Raises:
        BuildError: rows are answered otherwise; with their number and the first.
    """
    end, before = model, []
    while getattr(end, "steps", None):
        before += [step for _, step in end.steps[:-1]]
        end = end.steps[-1][1]
    if not ensembles.is_trees(end):
        return {}
    trees = ensembles.of(end)
    found: dict[str, Any] = {"trees": len(trees.trees), "tree_nodes": trees.nodes}
    if end is model:
        return {**found, "thresholds": _direct(end, trees, tensors, background, expected, given, single)}
    rows: Any = as_given(model, tensors)(background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in before:
            rows = rows if step is None or isinstance(step, str) else step.transform(rows)
    if is_sparse(rows) and not type(end).__module__.startswith("xgboost"):
        rows = rows.toarray()
    if is_frame(rows) or is_sparse(rows) or rows.dtype not in (FLOAT, DOUBLE):
        return found
    return {**found, "thresholds": _behind_steps(end, trees, rows, output)}


def _direct(
    model: Any,
    trees: Ensemble,
    tensors: Sequence[Tensor],
    background: Arrays,
    expected: Run,
    given: Run,
    single: bool,
) -> dict[str, Any]:
    integral, nan = _columns(tensors, takes_nan(model))
    side = np.concatenate(
        [background[tensor.name].reshape(-1, len(tensor_columns(tensor))).astype(np.float64) for tensor in tensors], 1
    )
    order = column_order(model, tensors)
    places = np.arange(side.shape[1]) if order is None else np.array(order)
    wide = np.result_type(np.float32, *(NUMPY_OF[tensor.datatype] for tensor in tensors)) == DOUBLE
    dtype = np.float64 if wide else np.float32
    made = probes(trees, side[:, places], integral[places], nan=nan[places], dtype=dtype)
    if not len(made.rows):
        return {"splits": made.splits, "rows": 0, "wrong": 0}
    inputs = split(made.rows[:, np.argsort(places)], tensors)
    return _judged(made, trees, expected(inputs), given(inputs), single=single)


def _behind_steps(last: Any, trees: Ensemble, rows: Any, output: Tensor) -> dict[str, Any]:
    """Compare the trees alone, on matrices as the steps before give them."""
    wide = rows.dtype == DOUBLE
    nan = np.isnan(rows).any(axis=0)
    integral = np.zeros(rows.shape[1], dtype=bool)
    made = probes(trees, rows.astype(np.float64), integral, nan=nan, dtype=np.float64 if wide else np.float32)
    if not len(made.rows):
        return {"splits": made.splits, "rows": 0, "wrong": 0}
    matrix = made.rows.astype(rows.dtype)
    graph = Graph()
    table = Table((Block("given", rows.shape[1], rows.dtype),))
    answer = estimators.answer(Walk(), graph, last, table, matrix, double=output.datatype == "FP64")
    assert answer is not None
    end = graph.add("Identity", [answer.name])
    inputs = [value_info("given", rows.dtype, [-1, rows.shape[1]])]
    other = run(model_of(graph, inputs, [value_info(end, answer.dtype, [-1, answer.columns])]), {"given": matrix})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = np.asarray(last.predict_proba(matrix) if hasattr(last, "predict_proba") else last.predict(matrix))
    if source.ndim == 2 and source.shape[1] == 2 and answer.columns == 1:
        source = source[:, 1]
    return _judged(made, trees, source.reshape(other.shape), other, single=graph.single)


def _judged(made: Probes, trees: Ensemble, source: Array, other: Array, *, single: bool) -> dict[str, Any]:
    wrong, worst = wrong_rows(source, other, single=single)
    if wrong.any():
        raise BuildError(_said(made, wrong, worst, trees), hint="serve the source variant; and please report the model")
    return {"splits": made.splits, "looked_at": made.looked, "rows": len(made.rows), "wrong": 0, "max_abs": worst}


def _said(made: Probes, wrong: Bools, worst: float, trees: Ensemble) -> str:
    first = int(np.flatnonzero(wrong)[0])
    tree, node = int(made.tree[first]), int(made.node[first])
    value, threshold = float(made.rows[first, made.feature[first]]), float(trees.trees[tree].threshold[node])
    return (
        f"{int(wrong.sum())} of {len(wrong)} rows at the trees' thresholds get other answers than from the source "
        f"model, by up to {worst:.3g}; the first: column {int(made.feature[first])} = "
        f"{value!r} at threshold {threshold!r} (tree {tree})"
    )


def _columns(tensors: Sequence[Tensor], takes_nan: bool) -> tuple[Bools, Bools]:
    """Return which columns hold whole numbers only, and which may be NaN."""
    integral: list[bool] = []
    nan: list[bool] = []
    for tensor in tensors:
        width = len(tensor_columns(tensor))
        integral += [not tensor.datatype.startswith("FP")] * width
        nan += [takes_nan and tensor.allow_nan and tensor.datatype.startswith("FP")] * width
    return np.array(integral), np.array(nan)


def split(rows: Doubles, tensors: Sequence[Tensor]) -> Arrays:
    """Cut a matrix into the input tensors that stand side by side; whole numbers stay within their datatype."""
    found: Arrays = {}
    at = 0
    for tensor in tensors:
        width = len(tensor_columns(tensor))
        dtype: Any = NUMPY_OF[tensor.datatype]
        part = rows[:, at : at + width]
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            # The greatest double below 2^63, which is no int64.
            part = np.clip(part, limits.min, np.nextafter(float(limits.max), 0) if dtype.itemsize == 8 else limits.max)
        part = part.astype(dtype)
        found[tensor.name] = np.ascontiguousarray(part if len(tensor.shape) == 2 else part[:, 0])
        at += width
    return found
