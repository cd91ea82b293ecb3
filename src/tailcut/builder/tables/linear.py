"""Linear models and perceptrons as products and sums, in the dtype that NumPy takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.tables.columns import Table, Unconvertible, floats
from tailcut.builder.tables.features import projected
from tailcut.builder.tables.nodes import FLOAT, Graph

_LOGISTIC = {"LogisticRegression", "LogisticRegressionCV", "LinearDiscriminantAnalysis", "SGDClassifier"}
_GENERAL = {"PoissonRegressor", "GammaRegressor", "TweedieRegressor"}
_REGRESSORS = {
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
}


def answer(graph: Graph, model: Any, table: Table) -> tuple[str, Any] | None:
    """Add a linear model or a perceptron; returns its answers and their dtype, None where it is something else.

    Raises:
        Unconvertible: its classes have no probabilities, or its link is not known.
    """
    kind = type(model).__name__ if type(model).__module__.startswith("sklearn.") else ""
    if kind in _REGRESSORS:
        return _scores(graph, model, table)
    if kind in _GENERAL:
        return _general(graph, model, table)
    if kind in _LOGISTIC:
        return _logistic(graph, model, table)
    if kind in {"MLPClassifier", "MLPRegressor"}:
        return _perceptron(graph, model, table)
    if hasattr(model, "classes_") and not hasattr(model, "predict_proba"):
        raise Unconvertible("it has no predict_proba")
    return None


def _scores(graph: Graph, model: Any, table: Table) -> tuple[str, Any]:
    coefficients = np.atleast_2d(model.coef_).T
    bias = np.broadcast_to(np.asarray(model.intercept_), (coefficients.shape[1],))
    # NumPy adds the intercept in the wider of both dtypes.
    found = projected(graph, table, coefficients, None)
    dtype = np.result_type(found.blocks[0].dtype, bias.dtype)
    name = graph.cast(found.blocks[0].name, found.blocks[0].dtype, dtype)
    return graph.add("Add", [name, graph.constant(bias, dtype)]), dtype


def _general(graph: Graph, model: Any, table: Table) -> tuple[str, Any]:
    name, dtype = _scores(graph, model, table)
    link = type(model._base_loss.link).__name__
    if link not in {"LogLink", "IdentityLink"}:
        raise Unconvertible(f"its link {link} is not known")
    return (graph.add("Exp", [name]) if link == "LogLink" else name), dtype


def _logistic(graph: Graph, model: Any, table: Table) -> tuple[str, Any]:
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


def _perceptron(graph: Graph, model: Any, table: Table) -> tuple[str, Any]:
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
