"""What the sources for tables share: checks of a fitted model, its last step and its classes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.bounds.categories import parts
from tailcut.common.scalars import Scalar, scalar_of
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.tables import column_names


def check_fitted(model: Any) -> None:
    """Refuse an estimator that is not fitted; boosters always are.

    Raises:
        BuildError: it is not.
    """
    sklearn = sys.modules.get("sklearn")
    if sklearn is None:
        return
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(model, BaseEstimator):
        return
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise BuildError(
            f"model.source gave a {type(model).__name__} that is not fitted",
            hint="return it after fit(...), or load the fitted one from a file",
        ) from None


def final(model: Any) -> Any:
    """Return the last step of a pipeline, else the model."""
    steps = getattr(model, "steps", None)
    return steps[-1][1] if isinstance(steps, list) and steps else model


def classes(model: Any) -> list[Scalar] | None:
    """Return a classifier's classes in the order of its answers; None where it has none.

    Raises:
        BuildError: one class only, or classes of several targets.
    """
    found = getattr(model, "classes_", None)
    if found is None:
        return None
    if isinstance(found, list):
        raise BuildError(
            f"the {type(model).__name__} has {len(found)} targets with classes each",
            hint="build one model per target",
        )
    if len(found) < 2:
        raise BuildError(
            f"the {type(model).__name__} knows only one class, {found[0]!r}: its answer is always the same",
            hint="fit it on rows of every class",
        )
    return [scalar_of(each) for each in found]


# -- Categories --------------------------------------------------------------------------------------------------------


# Categories that a fitted model keeps, and that its variants cannot be given: numbers of boosters, and None.
#
# LightGBM and XGBoost count the categories of a DataFrame's column and train on the places, 0, 1, 2 and so on. Their
# variants are given numbers, and take them for places. Of text it is clear that requests bring places; of numbers it is
# not, and an id that is taken for a place gives a wrong answer without an error.
#
# A missing text reaches encoders as NaN, which to them is another category than None.

_SHOWN = 6


def check_categories(model: Any) -> None:
    """Refuse a model that was fitted on a column of categories that are numbers other than 0, 1, 2 and so on.

    Args:
        model: a Booster or an estimator of LightGBM or XGBoost; others pass.

    Raises:
        BuildError: there is such a column. XGBoost below 3.1 keeps no categories, so that none is found.
    """
    library = ensembles.library_of(model)
    for column, values in ensembles.library(library).categories(model) if library else ():
        if all(isinstance(value, (bool, int, float, np.number)) for value in values) and list(values) != list(
            range(len(values))
        ):
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
    for encoder in parts(model, {}):
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
