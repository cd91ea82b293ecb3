"""Categories that a fitted model keeps, and that its variants cannot be given: numbers of boosters, and None.

LightGBM and XGBoost count the categories of a DataFrame's column and train on the places, 0, 1, 2 and so on. Their
variants are given numbers, and take them for places. Of text it is clear that requests bring places; of numbers it is
not, and an id that is taken for a place gives a wrong answer without an error.

A missing text reaches encoders as NaN, which to them is another category than None.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.tables import column_names

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


def check_missing_texts(model: Any, tensors: Sequence[TensorSpec]) -> None:
    """Refuse an encoder that saw a missing text as None, where an input may be a missing text.

    Args:
        model: a fitted estimator or Pipeline of scikit-learn.
        tensors: model.inputs.

    Raises:
        BuildError: there is such an encoder.
    """
    gaps = {name for each in tensors if each.datatype == "BYTES" and each.allow_nan for name in column_names([each])}
    if not gaps:
        return
    for encoder in _estimators(model, set()):
        kept = getattr(encoder, "categories_", None)
        names = getattr(encoder, "feature_names_in_", None)
        for place, values in enumerate(kept if isinstance(kept, list) else ()):
            column = None if names is None else str(names[place])
            # An encoder without names stands behind other steps: which inputs it gets is not known.
            if any(value is None for value in values) and (column is None or None in gaps or column in gaps):
                raise BuildError(
                    f"the {type(encoder).__name__} was fitted on None as a category of the column "
                    f"{place if column is None else repr(column)}, and model.inputs allow a missing text "
                    "(allow_nan = true), which the model is given as NaN: to the encoder that is an unknown category",
                    hint="replace None by NaN before fitting: frame.fillna(numpy.nan); or "
                    "None and missing texts by a word, in training and in requests, without allow_nan",
                )


def _estimators(held: Any, seen: set[int]) -> Iterator[Any]:
    """Yield an estimator and those that it holds, in lists and tuples too, each once."""
    if isinstance(held, list | tuple):
        for each in held:
            yield from _estimators(each, seen)
    elif hasattr(held, "get_params") and not isinstance(held, type) and id(held) not in seen:
        seen.add(id(held))
        yield held
        for each in list(getattr(held, "__dict__", {}).values()):
            yield from _estimators(each, seen)


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
