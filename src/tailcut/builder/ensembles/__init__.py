"""Ensembles of trees of every library in one form, from which one ONNX graph is written."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from tailcut.builder.ensembles.base import Ensemble, Tree

__all__ = ["Ensemble", "Tree", "is_booster", "is_trees", "library", "library_of", "of"]

_BOOSTERS = {"lightgbm": ("Booster", "LGBMModel"), "xgboost": ("Booster", "XGBModel")}
"""Classes of a library: its booster, and its estimators, which xgboost lacks without scikit-learn."""

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


def library_of(model: Any) -> str:
    """Name the library whose booster or estimator a model is; empty for others.

    No library is imported for this: a model's library is loaded already.
    """
    for name, classes in _BOOSTERS.items():
        module = sys.modules.get(name)
        if module is not None and any(isinstance(model, getattr(module, each, ())) for each in classes):
            return name
    return ""


def library(name: str) -> Any:
    """Return the module that knows a library's models: "lightgbm", "xgboost" or "sklearn"."""
    return import_module(f"{__name__}.{name}")


def is_booster(model: Any, of: str = "") -> bool:
    """Tell whether it is a booster, which takes one array whatever it was fitted on; ``of`` one library, or of any."""
    name = library_of(model)
    return bool(name) and of in {"", name} and isinstance(model, sys.modules[name].Booster)


def is_trees(model: Any) -> bool:
    """Tell whether ``of`` can read a model."""
    if type(model).__module__.startswith("sklearn."):
        return type(model).__name__ in _SKLEARN
    return bool(library_of(model))


def of(model: Any) -> Ensemble:
    """Read an ensemble.

    Args:
        model: see ``is_trees``.

    Raises:
        BuildError: it holds what this form does not have (linear leaves, XGBoost's categories, unknown links).
    """
    found: Ensemble = library(library_of(model) or "sklearn").read(model)
    return found
