"""LightGBM's and XGBoost's models, called as their users call them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import Model
from tailcut.models.runtimes.tables import BoosterInput, Table, shaped

Call = Callable[[Arrays], Array]


def caller(model: Any, section: Model) -> Call | None:
    """Return what calls a booster or an estimator of LightGBM or XGBoost; None for any other model.

    An estimator or booster that was fitted on a DataFrame gets one; another gets one array of the inputs' datatypes.
    One that was fitted on pandas categories is given their codes, as numbers, which only the booster itself takes.
    """
    lightgbm, xgboost = sys.modules.get("lightgbm"), sys.modules.get("xgboost")
    if lightgbm is not None and isinstance(model, lightgbm.Booster | lightgbm.LGBMModel):
        return _lightgbm(lightgbm, model, section)
    if xgboost is not None and isinstance(model, xgboost.Booster | getattr(xgboost, "XGBModel", xgboost.Booster)):
        return _xgboost(xgboost, model, section)
    return None


def _lightgbm(lightgbm: Any, model: Any, section: Model) -> Call:
    from tailcut.builder.ensembles.lightgbm import is_binary
    from tailcut.models.runtimes.lightgbm import fitted_names

    booster = model if isinstance(model, lightgbm.Booster) else model.booster_
    output = section.outputs[0]
    names, what = fitted_names(booster, section.inputs), f"the {type(model).__name__}"
    classes = hasattr(model, "classes_") or is_binary(booster)
    if booster.pandas_categorical:
        rows = BoosterInput(section.inputs, booster.num_feature(), names, what)
        return lambda inputs: shaped(booster.predict(rows(inputs).astype(np.float64)), output, classes=classes)
    table = Table(section.inputs, names, what)
    predict = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    return lambda inputs: shaped(predict(table(inputs)), output, classes=classes)


def _xgboost(xgboost: Any, model: Any, section: Model) -> Call:
    from tailcut.builder.ensembles.xgboost import booster_of, is_binary

    output = section.outputs[0]
    coded = "c" in (booster_of(model).feature_types or ())
    if not isinstance(model, xgboost.Booster) and not coded:
        names = model.get_booster().feature_names
        table = Table(section.inputs, names, f"the {type(model).__name__}")
        classes = hasattr(model, "predict_proba")
        predict = model.predict_proba if classes else model.predict
        return lambda inputs: shaped(predict(table(inputs)), output, classes=classes)
    booster = booster_of(model)  # a copy whose multi:softmax gives probabilities
    inputs_of = Table(section.inputs, booster.feature_names, "the Booster")
    binary = is_binary(booster)
    return lambda inputs: shaped(booster.predict(xgboost.DMatrix(inputs_of(inputs))), output, classes=binary)
