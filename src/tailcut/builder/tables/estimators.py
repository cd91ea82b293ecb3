"""Last steps: trees, linear models, perceptrons and votes, in the dtype in which the library computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.ensembles.base import LEAF, Ensemble, Tree, down
from tailcut.builder.tables import fallback
from tailcut.builder.tables.columns import ColumnTable, Unconvertible, floats, guard, matrix, sklearn_kind, takes_nan
from tailcut.builder.tables.features import projected
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, FLOAT, TEXT, Graph
from tailcut.builder.tables.steps import transform
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
    graph: Graph, model: Any, table: ColumnTable, given: Any, path: tuple[str, ...] = (), *, double: bool
) -> Answer | None:
    """Add a model, with the steps before it.

    Args:
        graph: to add to.
        model: an estimator, a Pipeline or a booster.
        table: what it gets, in the graph.
        given: what it gets, live.
        path: names of the steps that lead to it.
        double: whether answers are needed in double although the matrix is float32.

    Returns:
        None where a step cannot be converted.
    """
    kind = sklearn_kind(model)
    if kind == "Pipeline":
        for name, step in model.steps[:-1]:
            table, given = transform(graph, step, table, given, (*path, name))
        name, last = model.steps[-1]
        return answer(graph, last, table, given, (*path, name), double=double)
    if kind in _WRAPPERS:
        return answer(graph, getattr(model, _WRAPPERS[kind]), table, given, path, double=double)
    try:
        if kind in {"VotingClassifier", "VotingRegressor"}:
            return _vote(graph, model, table, given, path)
        if kind == "TransformedTargetRegressor":
            return _transformed(graph, model, table, given, path)
        return _single(graph, model, table, given, double=double)
    except Unconvertible as error:
        graph.fail(path, model, str(error))
    except BuildError as error:
        graph.fail(path, model, error.message)
    return None


def _single(graph: Graph, model: Any, table: ColumnTable, given: Any, *, double: bool) -> Answer:
    if ensembles.is_trees(model):
        return _trees(graph, model, table, double=double)
    name, dtype = linear_answer(graph, model, table) or fallback.estimator(graph, model, table)
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


def tree_matrix(graph: Graph, model: Any, table: ColumnTable, *, rounds: bool) -> tuple[str, Any]:
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


def _trees(graph: Graph, model: Any, table: ColumnTable, *, double: bool) -> Answer:
    held = ensembles.of(model)
    if held.features != table.width:
        raise Unconvertible(f"it has {held.features} features and is given {table.width} columns")
    name, dtype = tree_matrix(graph, model, table, rounds=held.rounds)
    if held.rounds and held.less == "<=" and (table.loose or table.dtype in (DOUBLE, TEXT)):
        # scikit-learn refuses infinity, and what float32 cannot hold; XGBoost takes both.
        guard(graph, name, dtype, nan=takes_nan(model))
    wide = double or dtype == DOUBLE
    found = add_trees(graph, held, graph.cast(name, dtype, DOUBLE if wide else FLOAT), double=wide)
    graph.single |= held.less == "<"
    classes = held.targets if held.targets > 1 else 2
    if not hasattr(model, "classes_") and held.link not in {"sigmoid", "softmax"}:
        classes = 0
    return Answer(found, held.targets, DOUBLE if wide else FLOAT, classes)


def _vote(graph: Graph, model: Any, table: ColumnTable, given: Any, path: tuple[str, ...]) -> Answer | None:
    if getattr(model, "voting", "soft") == "hard":
        raise Unconvertible("voting='hard' gives classes without probabilities")
    weights = model._weights_not_none
    weights = np.ones(len(model.estimators_)) if weights is None else np.asarray(weights, dtype=np.float64)
    found: list[Answer] = []
    for number, each in enumerate(model.estimators_):
        part = answer(graph, each, table, given, (*path, str(number)), double=True)
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


def _transformed(graph: Graph, model: Any, table: ColumnTable, given: Any, path: tuple[str, ...]) -> Answer | None:
    """TransformedTargetRegressor whose inverse is a NumPy function."""
    from tailcut.builder.tables import features

    inverse = getattr(model.transformer_, "inverse_func", None)
    if type(model.transformer_).__name__ != "FunctionTransformer":
        raise Unconvertible(f"its target goes through a {type(model.transformer_).__name__}")
    inner = answer(graph, model.regressor_, table, given, (*path, "regressor"), double=True)
    if inner is None or inverse is None:
        return inner
    found = features.apply(graph, graph.cast(inner.name, inner.dtype, DOUBLE), inverse)
    return Answer(found, inner.columns, DOUBLE, 0)


# -- Trees -------------------------------------------------------------------------------------------------------------


# An ``Ensemble`` as ONNX nodes, in float32 or in double. Source: ONNX operators, ai.onnx.ml TreeEnsembleRegressor
# (float32 thresholds and sums) and TreeEnsemble (version 5, double). The float32 form is taken where it is exact: on
# matrices of float32 whose answers are float32. For a single row both take about as long.


def add_trees(graph: Graph, ensemble: Ensemble, matrix: str, *, double: bool) -> str:
    """Add the trees, their sum and the link; returns the answers' name, (rows, targets).

    Args:
        graph: to add to.
        ensemble: the trees.
        matrix: (rows, features), double or float32 as ``double`` says; rounded before where ``ensemble.rounds``.
        double: whether to compare, to add and to link in double.
    """
    matrix = _whole_categories(graph, ensemble, matrix, DOUBLE if double else FLOAT)
    if double:
        found = _double_trees(graph, ensemble, matrix)
        if ensemble.link == "softmax":
            return graph.add("Softmax", [found], axis=1)
    else:
        graph.single = True
        found = graph.add("TreeEnsembleRegressor", [matrix], domain=DOMAIN, **_attributes(ensemble))
    # As operators of their own: of one target onnxruntime 1.31 leaves post_transform LOGISTIC out.
    if ensemble.link == "sigmoid":
        return graph.sigmoid(found, DOUBLE if double else FLOAT)
    return graph.add("Exp", [found]) if ensemble.link == "exp" else found


_CATEGORIES = float(2**31)
"""LightGBM looks a category up as a C int; what does not fit one is no category."""


def _whole_categories(graph: Graph, ensemble: Ensemble, matrix: str, dtype: Any) -> str:
    """Cut the fraction off in columns of categories, as LightGBM does (CategoricalDecision); what is no int is -1."""
    columns = {int(tree.feature[node]) for tree in ensemble.trees for node in tree.categories}
    if not columns:
        return matrix
    mask = graph.constant([[column in columns for column in range(ensemble.features)]], np.bool_)
    inside = graph.add("Less", [graph.add("Abs", [matrix]), graph.constant(_CATEGORIES, dtype)])
    whole = graph.cast(graph.cast(matrix, dtype, np.int64), np.int64, dtype)
    category = graph.add("Where", [inside, whole, graph.constant(-1.0, dtype)])
    return graph.add("Where", [mask, category, matrix])


_Columns = dict[str, list[Any]]
"""Columns of an operator's attributes, by name."""


def _attributes(ensemble: Ensemble) -> dict[str, object]:
    table: _Columns = {name: [] for name in (*_NODE, *_TARGET)}
    for number, tree in enumerate(ensemble.trees):
        _add(table, number, tree, ensemble)
    return {
        **table,
        "n_targets": ensemble.targets,
        "base_values": [float(value) for value in (ensemble.base * ensemble.scale).astype(np.float32)],
        "aggregate_function": "SUM",
        "post_transform": "SOFTMAX" if ensemble.link == "softmax" else "NONE",
    }


_NODE = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_modes",
    "nodes_values",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_missing_value_tracks_true",
)
_TARGET = ("target_treeids", "target_nodeids", "target_ids", "target_weights")


def _add(table: _Columns, number: int, tree: Tree, ensemble: Ensemble) -> None:
    split = "BRANCH_LT" if ensemble.less == "<" else "BRANCH_LEQ"
    # XGBoost's thresholds are float32 already.
    thresholds = down(tree.threshold)
    free = len(tree.left)
    for node in range(len(tree.left)):
        if tree.left[node] == LEAF:
            _append(table, _NODE, number, node, 0, "LEAF", 0.0, 0, 0, 0)
            for place, target in enumerate(tree.targets):
                weight = float(np.float32(tree.value[node, place] * ensemble.scale))
                _append(table, _TARGET, number, node, target, weight)
            continue
        feature, left, right = int(tree.feature[node]), int(tree.left[node]), int(tree.right[node])
        if node not in tree.categories:
            missing = int(tree.missing_left[node])
            _append(table, _NODE, number, node, feature, split, float(thresholds[node]), left, right, missing)
            continue
        # A set is a chain of equalities that share the left child; onnxruntime makes one membership test of it.
        values = tree.categories[node]
        chain = [node, *range(free, free + len(values) - 1)]
        free += len(values) - 1
        for place, value in zip(chain, values, strict=True):
            after = chain[chain.index(place) + 1] if place != chain[-1] else right
            _append(table, _NODE, number, place, feature, "BRANCH_EQ", float(value), left, after, 0)


def _append(table: _Columns, names: Sequence[str], *values: Any) -> None:
    for name, value in zip(names, values, strict=True):
        table[name].append(value)


# Modes of nodes, of TreeEnsemble.
_LEQ, _LT, _MEMBER = 0, 1, 6
_SUM, _NONE = 1, 0

_DOUBLE_NODE = (
    "nodes_featureids",
    "nodes_modes",
    "nodes_splits",
    "nodes_missing_value_tracks_true",
    "nodes_truenodeids",
    "nodes_trueleafs",
    "nodes_falsenodeids",
    "nodes_falseleafs",
)
_MEMBERS = "membership_values"
_DOUBLE_OTHERS = ("tree_roots", "leaf_targetids", "leaf_weights", _MEMBERS)
_DOUBLE_TENSORS: dict[str, Any] = {
    "nodes_modes": np.uint8,
    "nodes_splits": np.float64,
    "leaf_weights": np.float64,
    _MEMBERS: np.float64,
}
"""Attributes that are tensors, with their dtypes; the others are lists of whole numbers."""


def _double_trees(graph: Graph, ensemble: Ensemble, matrix: str) -> str:
    """Add trees and sum in double, scaled, without the link; returns (rows, targets).

    A leaf of TreeEnsemble adds to one target only, so that a tree whose leaves add to several (a forest's classes) is
    written once per target.
    """
    from onnx import numpy_helper

    table: _Columns = {name: [] for name in (*_DOUBLE_NODE, *_DOUBLE_OTHERS)}
    for tree in ensemble.trees:
        for place in range(len(tree.targets)):
            _add_double(table, tree, place, _LT if ensemble.less == "<" else _LEQ)
    attributes = {
        name: numpy_helper.from_array(np.array(values, _DOUBLE_TENSORS[name])) if name in _DOUBLE_TENSORS else values
        for name, values in table.items()
        if values or name != _MEMBERS
    }
    attributes |= {"n_targets": ensemble.targets, "aggregate_function": _SUM, "post_transform": _NONE}
    found = graph.add("TreeEnsemble", [matrix], domain=DOMAIN, **attributes)
    if ensemble.base.any():
        found = graph.add("Add", [found, graph.constant(ensemble.base, DOUBLE)])
    if ensemble.scale != 1.0:
        found = graph.add("Mul", [found, graph.constant(ensemble.scale, DOUBLE)])
    return found


def _add_double(table: _Columns, tree: Tree, place: int, mode: int) -> None:
    start = len(table["nodes_modes"])
    table["tree_roots"].append(start)
    splits = [int(node) for node in tree.splits]
    if not splits:
        leaf = _leaf(table, tree, 0, place)
        # A root that is a leaf: a split both of whose sides are that leaf.
        _double_node(table, 0, mode, 0.0, False, (leaf, 1), (leaf, 1))
        return
    where = {node: start + number for number, node in enumerate(splits)}

    def child(node: int) -> tuple[int, int]:
        return (_leaf(table, tree, node, place), 1) if tree.left[node] == LEAF else (where[node], 0)

    for node in splits:
        inside = tree.categories.get(node)
        threshold = 0.0 if inside is not None else float(tree.threshold[node])
        missing = inside is None and bool(tree.missing_left[node])
        kind = mode if inside is None else _MEMBER
        left, right = child(int(tree.left[node])), child(int(tree.right[node]))
        _double_node(table, int(tree.feature[node]), kind, threshold, missing, left, right)
        if inside is not None:
            table[_MEMBERS] += [*(float(value) for value in inside), float("nan")]


def _leaf(table: _Columns, tree: Tree, node: int, place: int) -> int:
    table["leaf_targetids"].append(tree.targets[place])
    table["leaf_weights"].append(float(tree.value[node, place]))
    return len(table["leaf_weights"]) - 1


def _double_node(
    table: _Columns, feature: int, mode: int, split: float, missing: bool, true: tuple[int, int], false: tuple[int, int]
) -> None:
    """Add a node; of each side its number, and whether that is a leaf's."""
    _append(table, _DOUBLE_NODE, feature, mode, split, int(missing), *true, *false)


# -- Linear models -----------------------------------------------------------------------------------------------------


# Linear models and perceptrons as products and sums, in the dtype that NumPy takes.


def linear_answer(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any] | None:
    """Add a linear model or a perceptron; returns its answers and their dtype, None where it is something else.

    Raises:
        Unconvertible: its classes have no probabilities, or its link is not known.
    """
    kind = sklearn_kind(model)
    if kind in _FORMS:
        return _FORMS[kind](graph, model, table)
    if hasattr(model, "classes_") and not hasattr(model, "predict_proba"):
        raise Unconvertible("it has no predict_proba")
    return None


def _scores(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any]:
    coefficients = np.atleast_2d(model.coef_).T
    bias = np.broadcast_to(np.asarray(model.intercept_), (coefficients.shape[1],))
    # NumPy adds the intercept in the wider of both dtypes.
    found = projected(graph, table, coefficients, None)
    dtype = np.result_type(found.blocks[0].dtype, bias.dtype)
    name = graph.cast(found.blocks[0].name, found.blocks[0].dtype, dtype)
    return graph.add("Add", [name, graph.constant(bias, dtype)]), dtype


def _general(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any]:
    name, dtype = _scores(graph, model, table)
    link = type(model._base_loss.link).__name__
    if link not in {"LogLink", "IdentityLink"}:
        raise Unconvertible(f"its link {link} is not known")
    return (graph.add("Exp", [name]) if link == "LogLink" else name), dtype


def _logistic(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any]:
    """Both columns of two classes; of more the softmax, or one against the rest, normalised."""
    if not hasattr(model, "predict_proba"):
        raise Unconvertible(f"it has no predict_proba (loss={getattr(model, 'loss', None)!r})")
    name, dtype = _scores(graph, model, table)
    one, clipped = graph.constant(1.0, dtype), getattr(model, "loss", "") == "modified_huber"
    several = len(model.classes_) > 2
    versus = (
        type(model).__name__ == "SGDClassifier"
        or getattr(model, "multi_class", "") == "ovr"
        or (getattr(model, "solver", "") == "liblinear")
    )
    if several and not versus:
        return graph.add("Softmax", [name], axis=1), dtype
    if clipped:
        low, high = (graph.constant(limit, dtype) for limit in (-1.0, 1.0))
        name = graph.add("Max", [graph.add("Min", [name, high]), low])
        name = graph.add("Div", [graph.add("Add", [name, one]), graph.constant(2.0, dtype)])
    else:
        name = graph.sigmoid(name, dtype)
    if not several:
        return graph.add("Concat", [graph.add("Sub", [one, name]), name], axis=1), dtype
    total = graph.add("ReduceSum", [name, graph.whole([1])], keepdims=1)
    nothing = graph.add("Equal", [total, graph.constant(0.0, dtype)])
    even = graph.constant(np.full((1, len(model.classes_)), 1.0 / len(model.classes_)), dtype)
    return graph.add("Where", [nothing, even, graph.add("Div", [name, total])]), dtype


_ACTIVATIONS = {"identity": "", "logistic": "", "tanh": "Tanh", "relu": "Relu", "exp": "Exp"}


def _perceptron(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any]:
    name, dtype = floats(graph, table, nan=False)
    last = len(model.coefs_) - 1
    for number, (weights, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        wide = np.result_type(dtype, weights.dtype)
        name = graph.add("MatMul", [graph.cast(name, dtype, wide), graph.constant(weights, wide)])
        name, dtype = graph.add("Add", [name, graph.constant(bias, wide)]), wide
        activation = model.activation if number < last else model.out_activation_
        if activation == "softmax":
            name = graph.add("Softmax", [name], axis=1)
        elif activation not in _ACTIVATIONS:
            raise Unconvertible(f"its activation {activation!r} is not known")
        elif activation == "logistic":
            name = graph.sigmoid(name, dtype)
        elif _ACTIVATIONS[activation]:
            name = graph.add(_ACTIVATIONS[activation], [name])
    graph.single |= dtype == FLOAT
    if hasattr(model, "classes_") and len(model.classes_) == 2:
        name = graph.add("Concat", [graph.add("Sub", [graph.constant(1.0, dtype), name]), name], axis=1)
    return name, dtype


_FORMS: dict[str, Callable[[Graph, Any, ColumnTable], tuple[str, Any]]] = {
    **dict.fromkeys(
        (
            "ARDRegression",
            "BayesianRidge",
            "ElasticNet",
            "ElasticNetCV",
            "HuberRegressor",
            "Lars",
            "LarsCV",
            "Lasso",
            "LassoCV",
            "LassoLars",
            "LassoLarsCV",
            "LassoLarsIC",
            "LinearRegression",
            "LinearSVR",
            "MultiTaskElasticNet",
            "MultiTaskElasticNetCV",
            "MultiTaskLasso",
            "MultiTaskLassoCV",
            "OrthogonalMatchingPursuit",
            "OrthogonalMatchingPursuitCV",
            "PassiveAggressiveRegressor",
            "QuantileRegressor",
            "Ridge",
            "RidgeCV",
            "SGDRegressor",
            "TheilSenRegressor",
        ),
        _scores,
    ),
    **dict.fromkeys(("PoissonRegressor", "GammaRegressor", "TweedieRegressor"), _general),
    **dict.fromkeys(
        ("LogisticRegression", "LogisticRegressionCV", "LinearDiscriminantAnalysis", "SGDClassifier"), _logistic
    ),
    **dict.fromkeys(("MLPClassifier", "MLPRegressor"), _perceptron),
}
