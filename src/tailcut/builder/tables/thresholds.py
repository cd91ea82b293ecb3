"""Trees at their thresholds: the library and the graph send every row to the same leaf."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.bounds.trials import sample
from tailcut.builder.ensembles.base import Ensemble, Ints, Tree, down
from tailcut.builder.tables import estimators
from tailcut.builder.tables.columns import Block, ColumnTable, takes_nan
from tailcut.builder.tables.comparing import wrong_rows
from tailcut.builder.tables.live import is_frame, is_sparse
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, Graph, model_of, run, value_info
from tailcut.builder.tables.reference import as_given, column_order, tensor_columns
from tailcut.common.tensors import NUMPY_OF, Array, Arrays, Bools, Doubles
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec

Run = Callable[[Arrays], Array]


def compare(
    model: Any,
    tensors: Sequence[TensorSpec],
    output: TensorSpec,
    background: Arrays,
    *,
    expected: Run,
    given: Run,
    single: bool,
) -> dict[str, object]:
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
    found: dict[str, object] = {"trees": len(trees.trees), "tree_nodes": trees.nodes}
    if end is model:
        return {**found, "thresholds": _direct(end, trees, tensors, background, expected, given, single)}
    rows: Any = as_given(model, tensors)(background)
    with warnings.catch_warnings(action="ignore"):
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
    tensors: Sequence[TensorSpec],
    background: Arrays,
    expected: Run,
    given: Run,
    single: bool,
) -> dict[str, float]:
    widths = [len(tensor_columns(tensor)) for tensor in tensors]
    floats = np.array([tensor.datatype.startswith("FP") for tensor in tensors])
    integral = np.repeat(~floats, widths)
    nan = np.repeat(floats & [takes_nan(model) and tensor.allow_nan for tensor in tensors], widths)
    side = np.concatenate(
        [
            background[tensor.name].reshape(-1, size).astype(np.float64)
            for tensor, size in zip(tensors, widths, strict=True)
        ],
        axis=1,
    )
    order = column_order(model, tensors)
    places = np.arange(side.shape[1]) if order is None else np.array(order)
    wide = np.result_type(np.float32, *(NUMPY_OF[tensor.datatype] for tensor in tensors)) == DOUBLE
    dtype = np.float64 if wide else np.float32
    made = probes(trees, side[:, places], integral[places], nan=nan[places], dtype=dtype)
    if not len(made.rows):
        return {"splits": made.splits, "rows": 0, "wrong": 0}
    inputs = _split(made.rows[:, np.argsort(places)], tensors, widths)
    return _judged(made, trees, expected(inputs), given(inputs), single=single)


def _behind_steps(last: Any, trees: Ensemble, rows: Any, output: TensorSpec) -> dict[str, float]:
    """Compare the trees alone, on matrices as the steps before give them."""
    wide = rows.dtype == DOUBLE
    nan = np.isnan(rows).any(axis=0)
    integral = np.zeros(rows.shape[1], dtype=bool)
    made = probes(trees, rows.astype(np.float64), integral, nan=nan, dtype=np.float64 if wide else np.float32)
    if not len(made.rows):
        return {"splits": made.splits, "rows": 0, "wrong": 0}
    matrix = made.rows.astype(rows.dtype)
    graph = Graph()
    table = ColumnTable((Block("given", rows.shape[1], rows.dtype),))
    answer = estimators.answer(graph, last, table, matrix, double=output.datatype == "FP64")
    assert answer is not None
    end = graph.add("Identity", [answer.name])
    inputs = [value_info("given", rows.dtype, [-1, rows.shape[1]])]
    other = run(model_of(graph, inputs, [value_info(end, answer.dtype, [-1, answer.columns])]), {"given": matrix})
    with warnings.catch_warnings(action="ignore"):
        source = np.asarray(last.predict_proba(matrix) if hasattr(last, "predict_proba") else last.predict(matrix))
    if source.ndim == 2 and source.shape[1] == 2 and answer.columns == 1:
        source = source[:, 1]
    return _judged(made, trees, source.reshape(other.shape), other, single=graph.single)


def _judged(made: Probes, trees: Ensemble, source: Array, other: Array, *, single: bool) -> dict[str, float]:
    wrong, worst = wrong_rows(source, other, single=single)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        tree, node, feature = int(made.tree[first]), int(made.node[first]), int(made.feature[first])
        value, threshold = float(made.rows[first, feature]), float(trees.trees[tree].threshold[node])
        raise BuildError(
            f"{int(wrong.sum())} of {len(wrong)} rows at the trees' thresholds get other answers than from the source "
            f"model, by up to {worst:.3g}; the first: column {feature} = {value!r} at threshold {threshold!r} "
            f"(tree {tree})",
            hint="serve the source variant; and please report the model",
        )
    return {"splits": made.splits, "looked_at": made.looked, "rows": len(made.rows), "wrong": 0, "max_abs": worst}


def _split(rows: Doubles, tensors: Sequence[TensorSpec], widths: Sequence[int]) -> Arrays:
    """Cut a matrix into the input tensors that stand side by side; whole numbers stay within their datatype."""
    found: Arrays = {}
    for tensor, given in zip(tensors, np.split(rows, np.cumsum(widths)[:-1], axis=1), strict=True):
        dtype: Any = NUMPY_OF[tensor.datatype]
        part: Any = given
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            # The greatest double below 2^63, which is no int64.
            part = np.clip(part, limits.min, np.nextafter(float(limits.max), 0) if dtype.itemsize == 8 else limits.max)
        part = part.astype(dtype)
        found[tensor.name] = np.ascontiguousarray(part if len(tensor.shape) == 2 else part[:, 0])
    return found


# -- Probes ------------------------------------------------------------------------------------------------------------


# Rows that lie on an ensemble's thresholds, and one step of the dtype to either side: where a conversion shows errors.
# Rows of a holdout seldom lie on a threshold, and never on most of them; production rows do (counts, rounded prices).

MOST_SPLITS = 4000
"""Splits that are looked at; of larger ensembles as many at even distances."""


@dataclass(frozen=True)
class Probes:
    """Rows at thresholds.

    Attributes:
        rows: (probes, features); float32 values where the matrix is float32.
        feature: (probes,) column that was set.
        tree, node: (probes,) the split.
        splits: splits of the ensemble; ``looked`` of them have probes.
    """

    rows: Doubles
    feature: Ints
    tree: Ints
    node: Ints
    splits: int
    looked: int


@dataclass(frozen=True)
class _Numbers:
    """How the ensemble compares: the dtype of the matrix, and of the comparison.

    Attributes:
        matrix: dtype of the rows.
        compared: float32 where the library or the matrix rounds, else float64.
        less: of the ensemble.
        integral: (features,) columns of whole numbers.
        nan: (features,) columns that may be NaN.
    """

    matrix: Any
    compared: Any
    less: str
    integral: Bools
    nan: Bools

    def on(self, threshold: float) -> Any:
        """Return the greatest value, as it is compared, that is not above a threshold."""
        return down(threshold)[()] if self.compared is np.float32 else np.float64(threshold)

    def left(self, value: float, tree: Tree, node: int) -> bool:
        """Tell where a split sends a value."""
        if node in tree.categories:
            return bool(np.abs(value) < 2**31 and int(value) in tree.categories[node])
        if np.isnan(value):
            return bool(tree.missing_left[node])
        with np.errstate(over="ignore"):
            value = float(self.compared(value))
        threshold = float(tree.threshold[node])
        return value < threshold if self.less == "<" else value <= threshold


def probes(
    ensemble: Ensemble, background: Doubles, integral: Bools, *, nan: Bools, dtype: Any = np.float64, seed: int = 0
) -> Probes:
    """Make rows that reach a split and lie just below, on and just above its threshold.

    Args:
        ensemble: the trees.
        background: (rows, features) that the other columns are taken from, moved where the way to the split needs it.
        integral: (features,) columns that hold whole numbers only.
        nan: (features,) columns that may be NaN: such splits get a NaN probe as well.
        dtype: of the matrix that the library is given, np.float32 or np.float64.
        seed: of the draw of rows.
    """
    rng = np.random.default_rng(seed)
    compared = np.float32 if ensemble.rounds or dtype is np.float32 else np.float64
    numbers = _Numbers(dtype, compared, ensemble.less, integral, nan)
    every = [(number, int(node)) for number, tree in enumerate(ensemble.trees) for node in tree.splits]
    chosen = [every[place] for place in sample(len(every), MOST_SPLITS)]
    rows, where = [], []
    parents = {number: _parents(ensemble.trees[number]) for number in {number for number, _ in chosen}}
    for number, node in chosen:
        tree = ensemble.trees[number]
        row = background[rng.integers(len(background))].astype(np.float64)
        _lead(row, tree, node, parents[number], numbers)
        if np.isnan(row[~nan]).any():
            continue  # only NaN comes to this split, and the column may hold none
        feature = int(tree.feature[node])
        for value in _values(tree, node, numbers):
            rows.append(np.where(np.arange(len(row)) == feature, value, row))
            where.append((feature, number, node))
    table = np.array(where, dtype=np.int64).reshape(-1, 3)
    stacked = np.array(rows, dtype=np.float64).reshape(-1, ensemble.features)
    return Probes(stacked, table[:, 0], table[:, 1], table[:, 2], len(every), len(chosen))


def _values(tree: Tree, node: int, numbers: _Numbers) -> list[float]:
    feature = int(tree.feature[node])
    found: list[Any]
    if node in tree.categories:
        inside = tree.categories[node]
        found = [inside[0], inside[-1], max(inside) + 1, -1]
        if not numbers.integral[feature]:
            found += [inside[0] + 0.5, -0.5, 2.0**31, 1e30]
    else:
        on = numbers.on(float(tree.threshold[node]))
        if numbers.integral[feature]:
            found = [np.floor(on), np.floor(on) + 1]
        else:
            found = [step(on, -1), on, step(on, 1)]
            if numbers.matrix is not numbers.compared:
                found += _between(on, step(on, 1))
    found = [float(value) for value in found if np.isfinite(value)]
    return [*found, float("nan")] if numbers.nan[feature] else found


def _between(low: Any, high: Any) -> list[Any]:
    """Return the double half way between two float32, and its neighbours: where rounding turns."""
    if not np.isfinite(high):
        return []
    middle = (np.float64(low) + np.float64(high)) / 2
    return [np.nextafter(middle, -np.inf), middle, np.nextafter(middle, np.inf)]


def step(value: Any, direction: int) -> Any:
    """Return the next value of the same dtype in ``direction``; subnormals are left out, every session zeroes them."""
    kind = type(value)
    smallest = kind(np.finfo(kind).tiny)
    with np.errstate(over="ignore", under="ignore"):
        near = kind(np.nextafter(value, kind(np.inf * direction)))
    if near != 0 and abs(near) < smallest:
        return kind(smallest * direction) if value == 0 else kind(0.0)
    return near


def _parents(tree: Tree) -> dict[int, tuple[int, bool]]:
    """Child -> (parent, whether it is the left one)."""
    found = {}
    for node in tree.splits:
        found[int(tree.left[node])] = (int(node), True)
        found[int(tree.right[node])] = (int(node), False)
    return found


def _lead(row: Doubles, tree: Tree, node: int, parents: dict[int, tuple[int, bool]], numbers: _Numbers) -> None:
    """Move a row's values, as little as possible, so that it comes to ``node``."""
    while node in parents:
        node, left = parents[node]
        feature = int(tree.feature[node])
        if numbers.left(float(row[feature]), tree, node) != left:
            row[feature] = _side(tree, node, left, numbers)


def _side(tree: Tree, node: int, left: bool, numbers: _Numbers) -> float:
    """Return a value that a split sends left or right."""
    if node in tree.categories:
        inside = tree.categories[node]
        return float(inside[0] if left else max(inside) + 1)
    on = numbers.on(float(tree.threshold[node]))
    value = (step(on, -1) if numbers.less == "<" else on) if left else (on if numbers.less == "<" else step(on, 1))
    if numbers.integral[int(tree.feature[node])]:
        value = np.floor(value) if left else np.ceil(value)
    # A threshold of infinity parts NaN from the numbers.
    largest = np.finfo(type(on)).max
    if left:
        return float(min(value, largest))
    return float(value) if value <= largest else float("nan")
