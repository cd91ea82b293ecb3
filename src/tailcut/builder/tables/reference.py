"""How a model on tables is given the manifest's inputs: as its runtime gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tailcut.builder.ensembles import is_booster
from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import lightgbm, sklearn
from tailcut.models.runtimes.tables import BoosterInput, order_of
from tailcut.models.runtimes.tables import column_names as input_names


def as_given(model: Any, tensors: Sequence[TensorSpec]) -> Callable[[Arrays], Any]:
    """Return what puts tensors together as the model takes them: a DataFrame, one array, or texts.

    Raises:
        ArtifactError: the model was fitted on other columns.
    """
    if not is_booster(model):
        return sklearn.table_of(model, tensors)
    features = model.num_features() if hasattr(model, "num_features") else model.num_feature()
    rows = BoosterInput(tensors, features, column_names(model, tensors), _said(model))
    dtype = array_dtype(model, tensors)
    return lambda inputs: rows(inputs).astype(dtype, copy=False)


def column_names(model: Any, tensors: Sequence[TensorSpec]) -> list[str] | None:
    """Return the columns of the DataFrame that the model was fitted on; None where it was an array.

    Args:
        model: an estimator, a Pipeline, or a booster of LightGBM or XGBoost.
        tensors: model.inputs.

    Raises:
        ArtifactError: the order of its columns is not known; see ``given_names``.
    """
    if not is_booster(model):
        return sklearn.given_names(model, tensors)
    if is_booster(model, "lightgbm"):
        return lightgbm.fitted_names(model, tensors)
    names: list[str] | None = model.feature_names
    return names


def column_order(model: Any, tensors: Sequence[TensorSpec]) -> list[int] | None:
    """Return where the model's columns stand among the inputs' columns; None where they are in the same order.

    Raises:
        ArtifactError: the model was fitted on other columns.
    """
    names = column_names(model, tensors)
    return None if names is None else order_of(names, tensors, _said(model))


def array_dtype(model: Any, tensors: Sequence[TensorSpec]) -> np.dtype[Any]:
    """Return the dtype of the one array; object where there is text.

    LightGBM rounds an array of whole numbers to float32, but neither a DataFrame of them nor an array of float64: its
    runtime makes float64 of them.
    """
    kinds = [NUMPY_OF[tensor.datatype] for tensor in tensors]
    found = np.result_type(*(np.float32 if kind in (np.bool_, np.float16) else kind for kind in kinds))
    return np.dtype(np.float64) if is_booster(model, "lightgbm") and found.kind in "iu" else found


def tensor_columns(tensor: TensorSpec) -> list[str]:
    """Return the names of a tensor's columns, for texts."""
    return [name or f"{tensor.name}_{place}" for place, name in enumerate(input_names([tensor]))]


def _said(model: Any) -> str:
    return f"the {type(model).__name__}"
