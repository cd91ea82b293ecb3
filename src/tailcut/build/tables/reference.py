"""The user's own object as a function of the manifest's tensors: what every converted model is compared with."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tailcut.core.tensors import NUMPY_OF, Array, Arrays
from tailcut.manifest import Tensor

Call = Callable[[Arrays], Array]


def reference(model: Any, tensors: Sequence[Tensor], output: Tensor) -> Call:
    """Return what answers as the user's object does, in the form of the manifest's output.

    Args:
        model: an estimator, a Pipeline, or a booster of LightGBM or XGBoost.
        tensors: model.inputs.
        output: the first of model.outputs: [-1] of two classes is the second's probability.
    """
    given = as_given(model, tensors)

    def call(inputs: Arrays) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = shaped(_answers(model, given(inputs)), output)
        return np.ascontiguousarray(found, dtype=NUMPY_OF[output.datatype])

    return call


def as_given(model: Any, tensors: Sequence[Tensor]) -> Callable[[Arrays], Any]:
    """Return what puts tensors together as the user's object takes them: a DataFrame, else one array."""
    names = column_names(model)
    if names is not None:
        return lambda inputs: frame(inputs, tensors, names)
    dtype = array_dtype(model, tensors)
    return lambda inputs: _array(inputs, tensors, dtype)


def column_names(model: Any) -> list[str] | None:
    """Return the columns of the DataFrame that the model was fitted on; None where it takes an array."""
    if _is(model, "lightgbm", "Booster", "LGBMModel") or _is(model, "xgboost", "Booster", "XGBModel"):
        return None
    return _fitted_names(model)


def _fitted_names(model: Any) -> list[str] | None:
    steps = getattr(model, "steps", None)
    if steps:
        # A Pipeline has names where its first step has some that is no "passthrough".
        return next((_fitted_names(step) for _, step in steps if step is not None and not isinstance(step, str)), None)
    found = getattr(model, "feature_names_in_", None)
    if found is None or (_is(model, "lightgbm", "LGBMModel") and all(map(_NO_NAME.fullmatch, found))):
        return None
    return [str(name) for name in found]


_NO_NAME = re.compile(r"Column_\d+")
"""What LightGBM calls the columns of an array."""


def array_dtype(model: Any, tensors: Sequence[Tensor]) -> np.dtype[Any]:
    """Return the dtype of the one array; object where there is text.

    LightGBM rounds an array of whole numbers to float32, but neither a DataFrame of them nor an array of float64: it
    gets float64.
    """
    kinds = [NUMPY_OF[tensor.datatype] for tensor in tensors]
    found = np.result_type(*kinds)
    if _is(model, "lightgbm", "Booster", "LGBMModel") and found.kind in "iub" and found.itemsize >= 4:
        return np.dtype(np.float64)
    return found


def tensor_columns(tensor: Tensor) -> list[str]:
    """Return the names of a tensor's columns."""
    width = tensor.shape[1] if len(tensor.shape) == 2 else 1
    if tensor.columns:
        return list(tensor.columns)
    return [tensor.name] if width == 1 else [f"{tensor.name}_{place}" for place in range(width)]


def frame(inputs: Arrays, tensors: Sequence[Tensor], order: Sequence[str] | None) -> Any:
    """Return a DataFrame with a column per tensor column, each of its own dtype."""
    import pandas

    columns: dict[str, Array] = {}
    for tensor in tensors:
        array = _values(inputs[tensor.name], tensor)
        table = array.reshape(len(array), -1)
        columns |= {name: table[:, place] for place, name in enumerate(tensor_columns(tensor))}
    held = pandas.DataFrame(columns)
    return held if order is None else held[list(order)]


def shaped(found: Any, output: Tensor) -> Array:
    """Give probabilities the manifest's shape: of two classes the second's where it is [-1]."""
    array: Array = np.asarray(found)
    if array.ndim == 2 and len(output.shape) == 1:
        return array[:, 1] if array.shape[1] == 2 else array.reshape(-1) if array.shape[1] == 1 else array
    if array.ndim == 1 and len(output.shape) == 2:
        if output.shape[1] == 2:
            return np.stack([1 - array, array], axis=1)
        return array[:, None]
    return array


def _answers(model: Any, rows: Any) -> Any:
    if _is(model, "lightgbm", "Booster"):
        return model.predict(rows, validate_features=False)
    if _is(model, "xgboost", "Booster"):
        return model.inplace_predict(rows, validate_features=False)
    return model.predict_proba(rows) if hasattr(model, "predict_proba") else model.predict(rows)


def _array(inputs: Arrays, tensors: Sequence[Tensor], dtype: np.dtype[Any]) -> Array:
    parts = [_values(inputs[tensor.name], tensor) for tensor in tensors]
    side: Array = np.concatenate([part.reshape(len(part), -1).astype(dtype) for part in parts], axis=1)
    return side


def _values(array: Array, tensor: Tensor) -> Array:
    if tensor.datatype != "BYTES":
        return np.asarray(array, dtype=NUMPY_OF[tensor.datatype])
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in array.ravel().tolist()]
    found = np.empty(len(texts), object)
    found[:] = [np.nan if tensor.allow_nan and text == "" else text for text in texts]
    return found.reshape(array.shape)


def _is(model: Any, package: str, *classes: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and any(isinstance(model, getattr(module, name, ())) for name in classes)
