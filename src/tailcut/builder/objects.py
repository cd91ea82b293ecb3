"""Reads from the user's object which kind it is and which inputs it names."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from tailcut.models.runtimes.sklearn import fitted_names


def is_module(model: Any) -> bool:
    """Tell whether a model is a torch.nn.Module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def names_of(model: Any) -> list[str]:
    """Return the inputs that a model names: the columns that it was fitted on, or the arguments of a module."""
    lightgbm, xgboost = sys.modules.get("lightgbm"), sys.modules.get("xgboost")
    if lightgbm is not None and isinstance(model, lightgbm.Booster):
        return [str(name) for name in model.feature_name()]
    if xgboost is not None and isinstance(model, xgboost.Booster):
        return list(model.feature_names or [])
    forward = getattr(model, "forward", None)
    if forward is not None:
        return list(inspect.signature(forward).parameters)
    return fitted_names(model) or []
