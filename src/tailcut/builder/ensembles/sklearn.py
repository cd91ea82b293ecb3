"""scikit-learn's trees, forests and boosted trees as an ``Ensemble``.

Source: sklearn/tree/_tree.pyx (X is float32, thresholds float64, ``<=``), ensemble/_gb.py and
ensemble/_hist_gradient_boosting/_predictor.pyx. Fitted trees are read from attributes that end or begin with an
underscore; the build compares the result with the estimator's own answers at the thresholds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.ensembles.base import LEAF, Ensemble, Link, Tree
from tailcut.common.tensors import Doubles
from tailcut.errors import BuildError


def read(model: Any) -> Ensemble:
    """Read a fitted estimator of ``ensembles.is_trees``.

    Raises:
        BuildError: not fitted, several outputs with classes, categories, or a loss whose link is not known.
    """
    if not hasattr(model, "n_features_in_"):
        raise BuildError(
            f"the {type(model).__name__} is not fitted", hint="make model.source return the estimator after fit(...)"
        )
    name = type(model).__name__
    if name.startswith("HistGradientBoosting"):
        return _histogram(model)
    if name.startswith("GradientBoosting"):
        return _boosted(model)
    return _forest(model, list(getattr(model, "estimators_", [model])))


def _forest(model: Any, estimators: list[Any]) -> Ensemble:
    """Mean of the trees' leaves: class shares or values."""
    classes = hasattr(model, "classes_")
    if classes and model.n_outputs_ > 1:
        raise BuildError(
            f"the {type(model).__name__} has {model.n_outputs_} outputs with classes each",
            hint="train one model per output",
        )
    targets = int(np.size(model.classes_)) if classes else int(model.n_outputs_)
    # Of two classes the second's probability is the answer.
    kept = [1] if classes and targets == 2 else list(range(targets))
    trees = []
    for estimator in estimators:
        values = np.asarray(estimator.tree_.value, dtype=np.float64)
        values = values[:, 0, :] if classes else values[:, :, 0]
        if classes:
            values = values / values.sum(axis=1, keepdims=True)
        trees.append(_tree(estimator.tree_, values[:, kept] / len(estimators), tuple(range(len(kept)))))
    return Ensemble(
        trees=tuple(trees),
        features=int(model.n_features_in_),
        targets=len(kept),
        base=np.zeros(len(kept)),
        less="<=",
        link="identity",
        rounds=True,
    )


def _boosted(model: Any) -> Ensemble:
    if type(model.init_).__name__ not in {"DummyClassifier", "DummyRegressor", "str"}:
        raise BuildError(
            f"the {type(model).__name__} starts from a {type(model.init_).__name__} (init=...), which is not constant",
            hint="train with init=None",
        )
    rows = np.zeros((1, int(model.n_features_in_)), dtype=np.float32)
    base = np.asarray(model._raw_predict_init(rows), dtype=np.float64)[0]
    targets = model.estimators_.shape[1]
    trees = [
        _tree(estimator.tree_, np.asarray(estimator.tree_.value)[:, 0, :] * model.learning_rate, (target,))
        for stage in model.estimators_
        for target, estimator in enumerate(stage)
    ]
    link = _link(model, targets)
    # The exponential loss's link is sigmoid(2 x).
    scale = 2.0 if type(model._loss).__name__ == "ExponentialLoss" else 1.0
    return Ensemble(tuple(trees), int(model.n_features_in_), targets, base, "<=", link, scale, rounds=True)


def _tree(tree: Any, value: Doubles, targets: tuple[int, ...]) -> Tree:
    left = np.asarray(tree.children_left, dtype=np.int64)
    return Tree(
        feature=np.maximum(np.asarray(tree.feature, dtype=np.int64), 0),
        threshold=np.asarray(tree.threshold, dtype=np.float64),
        left=np.where(left < 0, LEAF, left),
        right=np.asarray(tree.children_right, dtype=np.int64),
        missing_left=np.asarray(tree.missing_go_to_left, dtype=np.bool_),
        value=np.asarray(value, dtype=np.float64),
        targets=targets,
    )


def _histogram(model: Any) -> Ensemble:
    targets = len(model._predictors[0])
    trees = []
    for stage in model._predictors:
        for target, predictor in enumerate(stage):
            nodes = predictor.nodes
            if nodes["is_categorical"].any():
                raise BuildError(
                    f"the {type(model).__name__} has splits on categories, which ONNX trees do not support",
                    hint="encode categories as numbers (OrdinalEncoder) without categorical_features",
                )
            leaf = nodes["is_leaf"].astype(bool)
            trees.append(
                Tree(
                    feature=np.where(leaf, 0, nodes["feature_idx"]),
                    threshold=np.where(leaf, 0.0, nodes["num_threshold"]),
                    left=np.where(leaf, LEAF, nodes["left"].astype(np.int64)),
                    right=np.where(leaf, LEAF, nodes["right"].astype(np.int64)),
                    missing_left=nodes["missing_go_to_left"].astype(bool),
                    value=np.where(leaf, nodes["value"], 0.0)[:, None],
                    targets=(target,),
                )
            )
    base = np.broadcast_to(np.asarray(model._baseline_prediction, dtype=np.float64).ravel(), (targets,)).copy()
    return Ensemble(tuple(trees), int(model.n_features_in_), targets, base, "<=", _link(model, targets))


_LOSSES: dict[str, Link] = {
    "HalfPoissonLoss": "exp",
    "HalfGammaLoss": "exp",
    "HalfSquaredError": "identity",
    "AbsoluteError": "identity",
    "PinballLoss": "identity",
    "HuberLoss": "identity",
}


def _link(model: Any, targets: int) -> Link:
    if hasattr(model, "classes_"):
        return "sigmoid" if targets == 1 else "softmax"
    name = type(model._loss).__name__
    if name not in _LOSSES:
        raise BuildError(
            f"the {type(model).__name__}'s loss {name} has a link that is not known",
            hint="serve the 'sklearn' variant, or train with another loss",
        )
    return _LOSSES[name]
