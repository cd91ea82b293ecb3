"""Categories of a DataFrame that LightGBM and XGBoost keep: numbers that are categories must be their own codes.

Both count the categories of a column and train on the places, 0, 1, 2 and so on. Their variants are given numbers, and
take them for places. Of text it is clear that requests bring places; of numbers it is not, and an id that is taken for
a place gives a wrong answer without an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.errors import BuildError

_SHOWN = 6


def check_categories(model: Any) -> None:
    """Refuse a model that was fitted on a column of categories that are numbers other than 0, 1, 2 and so on.

    Args:
        model: a Booster or an estimator of LightGBM or XGBoost; others pass.

    Raises:
        BuildError: there is such a column. XGBoost below 3.1 keeps no categories, so that none is found.
    """
    for column, values in _kept(model):
        if all(map(_is_number, values)) and list(values) != list(range(len(values))):
            shown = ", ".join(f"{value:g}" for value in values[:_SHOWN])
            raise BuildError(
                f"the {type(model).__name__} was fitted on the pandas category column{column}, whose {len(values)} "
                f"categories are the numbers {shown}{', ...' if len(values) > _SHOWN else ''}; it computes with their "
                f"places, 0 to {len(values) - 1}, and would take a request's number for a place",
                hint="make the column whole numbers 0, 1, 2 and so on before astype('category'), and send those; or "
                "fit a Pipeline whose first step, a ColumnTransformer with an OrdinalEncoder of the column, makes "
                "them, and name the column to the model as categorical: then requests send the numbers that you have",
            )


def _kept(model: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return (name for the text, categories) of each column of categories; the name is empty where none is kept."""
    lightgbm, xgboost = sys.modules.get("lightgbm"), sys.modules.get("xgboost")
    if lightgbm is not None and isinstance(model, lightgbm.Booster | lightgbm.LGBMModel):
        booster = model if isinstance(model, lightgbm.Booster) else model.booster_
        # LightGBM keeps the lists in the order of the columns, but not which columns they are.
        return [("", list(values)) for values in booster.pandas_categorical or ()]
    if xgboost is not None and isinstance(model, xgboost.Booster | getattr(xgboost, "XGBModel", xgboost.Booster)):
        return _xgboost(model if isinstance(model, xgboost.Booster) else model.get_booster())
    return []


def _xgboost(booster: Any) -> list[tuple[str, Sequence[Any]]]:
    if "c" not in (booster.feature_types or ()):
        return []
    gradient: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    kept = gradient.get("gbtree", gradient).get("model", {}).get("cats", {}).get("enc", [])
    names = booster.feature_names or [str(place) for place in range(len(kept))]
    # Text has offsets into its letters; a column of plain numbers has no values.
    return [
        (f" {name!r}", each["values"])
        for name, each in zip(names, kept, strict=True)
        if each["values"] and "offsets" not in each
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.number))
