"""Ensembles of trees of every library in one form, from which one ONNX graph is written."""

from __future__ import annotations

import sys
from typing import Any

from tailcut.builder.ensembles.base import Ensemble, Tree

__all__ = ["Ensemble", "Tree", "is_trees", "of"]

_SKLEARN = {
    "DecisionTreeClassifier",
    "DecisionTreeRegressor",
    "ExtraTreeClassifier",
    "ExtraTreeRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "GradientBoostingClassifier",
    "GradientBoostingRegressor",
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
}


def is_trees(model: Any) -> bool:
    """Tell whether ``of`` can read a model; imports nothing: whoever has a model has imported its library."""
    kind = type(model)
    if kind.__module__.startswith("sklearn."):
        return kind.__name__ in _SKLEARN
    return _is(model, "lightgbm", "Booster", "LGBMModel") or _is(model, "xgboost", "Booster", "XGBModel")


def of(model: Any) -> Ensemble:
    """Read an ensemble.

    Args:
        model: see ``is_trees``.

    Raises:
        BuildError: it holds what this form does not have (linear leaves, XGBoost's categories, unknown links).
    """
    if _is(model, "lightgbm", "Booster", "LGBMModel"):
        from tailcut.builder.ensembles import lightgbm

        return lightgbm.read(model)
    if _is(model, "xgboost", "Booster", "XGBModel"):
        from tailcut.builder.ensembles import xgboost

        return xgboost.read(model)
    from tailcut.builder.ensembles import sklearn

    return sklearn.read(model)


def _is(model: Any, package: str, *classes: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and any(isinstance(model, getattr(module, name, ())) for name in classes)
