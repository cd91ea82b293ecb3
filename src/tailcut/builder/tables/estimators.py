"""Last steps: trees, linear models, perceptrons and votes, in the dtype in which the library computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.tables import fallback, linear, trees
from tailcut.builder.tables.columns import Table, Unconvertible, guard, matrix, takes_nan
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, TEXT, Graph
from tailcut.builder.tables.steps import Walk, transform
from tailcut.errors import BuildError


@dataclass(frozen=True)
class Answer:
    """What the last step answers.

    Attributes:
        name: (rows, columns) of the graph.
        columns: of two classes one (the second's probability) or both.
        dtype: float32 or float64.
        classes: number of classes; 0 of a regressor.
    """

    name: str
    columns: int
    dtype: Any
    classes: int


def answer(
    walk: Walk, graph: Graph, model: Any, table: Table, given: Any, path: tuple[str, ...] = (), *, double: bool
) -> Answer | None:
    """Add a model, with the steps before it.

    Args:
        walk: takes what cannot be converted.
        graph: to add to.
        model: an estimator, a Pipeline or a booster.
        table: what it gets, in the graph.
        given: what it gets, live.
        path: names of the steps that lead to it.
        double: whether answers are needed in double although the matrix is float32.

    Returns:
        None where a step cannot be converted.
    """
    kind = type(model).__name__ if type(model).__module__.startswith("sklearn.") else ""
    if kind == "Pipeline":
        for name, step in model.steps[:-1]:
            table, given = transform(walk, graph, step, table, given, (*path, name))
        name, last = model.steps[-1]
        return answer(walk, graph, last, table, given, (*path, name), double=double)
    if kind in _WRAPPERS:
        return answer(walk, graph, getattr(model, _WRAPPERS[kind]), table, given, path, double=double)
    try:
        if kind in {"VotingClassifier", "VotingRegressor"}:
            return _vote(walk, graph, model, table, given, path)
        if kind == "TransformedTargetRegressor":
            return _transformed(walk, graph, model, table, given, path)
        return _single(graph, model, table, given, double=double)
    except Unconvertible as error:
        walk.fail(path, model, str(error))
    except BuildError as error:
        walk.fail(path, model, error.message)
    return None


def _single(graph: Graph, model: Any, table: Table, given: Any, *, double: bool) -> Answer:
    if ensembles.is_trees(model):
        return _trees(graph, model, table, double=double)
    name, dtype = linear.answer(graph, model, table) or fallback.estimator(graph, model, table)
    classes = len(getattr(model, "classes_", ()))
    if classes:
        return Answer(name, classes, dtype, classes)
    out = np.asarray(model.predict(given))
    return Answer(name, out.shape[1] if out.ndim == 2 else 1, dtype, 0)


_WRAPPERS = {
    "GridSearchCV": "best_estimator_",
    "RandomizedSearchCV": "best_estimator_",
    "HalvingGridSearchCV": "best_estimator_",
    "HalvingRandomSearchCV": "best_estimator_",
    "TunedThresholdClassifierCV": "estimator_",
    "FixedThresholdClassifier": "estimator_",
}


def tree_matrix(graph: Graph, model: Any, table: Table, *, rounds: bool) -> tuple[str, Any]:
    """Return the matrix that trees compare in: of float32, or of double.

    Args:
        graph: to add to.
        model: an estimator or a booster.
        table: what it is given.
        rounds: whether the library rounds to float32.
    """
    dtype = table.dtype
    package = type(model).__module__.partition(".")[0]
    if table.text or (dtype.kind == "O" and table.names is None and not table.mixed):
        raise Unconvertible("trees compare numbers and are given text")
    own = DOUBLE if dtype.kind == "O" else dtype
    if package == "xgboost":
        # Of a DataFrame each column is rounded from its own dtype; of an array from that of all.
        parts = [graph.cast(block.name, block.dtype, FLOAT) for block in table.blocks]
        if table.names is None or len(parts) == 1:
            name = matrix(graph, table, FLOAT, through=own)
        else:
            name = graph.add("Concat", parts, axis=1)
        if table.sparse:
            # XGBoost counts what a SciPy matrix does not keep as missing: its zeros.
            zero = graph.add("Equal", [name, graph.constant(0.0, FLOAT)])
            name = graph.add("Where", [zero, graph.constant(np.nan, FLOAT), name])
        return name, FLOAT
    if rounds:
        return matrix(graph, table, FLOAT, through=own), FLOAT
    if own == FLOAT or own.itemsize <= 2:
        return matrix(graph, table, FLOAT), FLOAT
    if package == "lightgbm" and table.names is None and own.kind in "iub" and not table.mixed:
        # LightGBM rounds an array of whole numbers to float32.
        return matrix(graph, table, FLOAT), FLOAT
    return matrix(graph, table, DOUBLE), DOUBLE


def _trees(graph: Graph, model: Any, table: Table, *, double: bool) -> Answer:
    held = ensembles.of(model)
    if held.features != table.width:
        raise Unconvertible(f"it has {held.features} features and is given {table.width} columns")
    name, dtype = tree_matrix(graph, model, table, rounds=held.rounds)
    if held.rounds and held.less == "<=" and (table.loose or table.dtype in (DOUBLE, TEXT)):
        # scikit-learn refuses infinity, and what float32 cannot hold; XGBoost takes both.
        guard(graph, name, dtype, nan=takes_nan(model))
    wide = double or dtype == DOUBLE
    found = trees.add(graph, held, graph.cast(name, dtype, DOUBLE if wide else FLOAT), double=wide)
    graph.single |= held.less == "<"
    classes = held.targets if held.targets > 1 else 2
    if not hasattr(model, "classes_") and held.link not in {"sigmoid", "softmax"}:
        classes = 0
    return Answer(found, held.targets, DOUBLE if wide else FLOAT, classes)


def _vote(walk: Walk, graph: Graph, model: Any, table: Table, given: Any, path: tuple[str, ...]) -> Answer | None:
    if getattr(model, "voting", "soft") == "hard":
        raise Unconvertible("voting='hard' gives classes without probabilities")
    weights = model._weights_not_none
    weights = np.ones(len(model.estimators_)) if weights is None else np.asarray(weights, dtype=np.float64)
    found: list[Answer] = []
    for number, each in enumerate(model.estimators_):
        part = answer(walk, graph, each, table, given, (*path, str(number)), double=True)
        if part is None:
            return None
        found.append(part)
    total = ""
    for weight, part in zip(weights / weights.sum(), found, strict=True):
        name = graph.cast(_second(graph, part), part.dtype, DOUBLE)
        name = graph.add("Mul", [name, graph.constant(weight, DOUBLE)])
        total = graph.add("Add", [total, name]) if total else name
    classes = found[0].classes
    return Answer(total, 1 if classes == 2 else found[0].columns, DOUBLE, classes)


def _second(graph: Graph, part: Answer) -> str:
    if part.classes == 2 and part.columns == 2:
        return graph.add("Gather", [part.name, graph.whole([1])], axis=1)
    return part.name


def _transformed(
    walk: Walk, graph: Graph, model: Any, table: Table, given: Any, path: tuple[str, ...]
) -> Answer | None:
    """TransformedTargetRegressor whose inverse is a NumPy function."""
    from tailcut.builder.tables import features

    inverse = getattr(model.transformer_, "inverse_func", None)
    if type(model.transformer_).__name__ != "FunctionTransformer":
        raise Unconvertible(f"its target goes through a {type(model.transformer_).__name__}")
    inner = answer(walk, graph, model.regressor_, table, given, (*path, "regressor"), double=True)
    if inner is None or inverse is None:
        return inner
    found = features.apply(graph, graph.cast(inner.name, inner.dtype, DOUBLE), inverse)
    return Answer(found, inner.columns, DOUBLE, 0)
