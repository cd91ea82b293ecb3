"""Input tensors as what a model on tables takes: one matrix, or a pandas DataFrame of named, typed columns.

Numbers keep the datatypes that the manifest declares. Whether a value is rounded is the model's decision: trees of
scikit-learn and XGBoost compute in float32, LightGBM, HistGradientBoosting, linear models and scalers do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.common.texts import MISSING_TEXT
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.base import Openable
from tailcut.models.runtimes.checks import load_library


def check_columns(tensors: Sequence[TensorSpec], *, text: bool = False) -> int:
    """Return the number of columns of the inputs side by side.

    Args:
        tensors: the model's inputs.
        text: whether the model takes text.

    Raises:
        ArtifactError: text where the model takes none, or a tensor that is neither (rows,) nor (rows, a fixed number of
            columns).
    """
    for tensor in tensors:
        if len(tensor.shape) > 2 or -1 in tensor.shape[1:] or (tensor.datatype == "BYTES" and not text):
            raise ArtifactError(
                f"input {tensor.name!r} is {tensor.datatype} {list(tensor.shape)}; this model takes "
                f"{'' if text else 'numbers of '}shape [-1] or [-1, columns]",
                hint="give model.inputs a fixed number of columns"
                if text
                else "turn text into numbers (an encoder in a scikit-learn Pipeline, or the preprocess hook), and give "
                "model.inputs a fixed number of columns",
            )
    return sum(width(tensor) for tensor in tensors)


def width(tensor: TensorSpec) -> int:
    """Return the columns of one input."""
    return tensor.shape[1] if len(tensor.shape) == 2 else 1


def matrix(inputs: Arrays, names: Sequence[str]) -> Array:
    """Put inputs side by side in the order of ``names``: (rows, columns) of the datatype that holds all of them.

    The datatype is NumPy's: integers of 64 bits beside floats are float64, as ``numpy.column_stack`` has it.
    """
    parts = [_plain(inputs[name]) for name in names]
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


def _plain(array: Array) -> Array:
    # Libraries do not take bool and float16, or treat them otherwise; float32 holds both exactly.
    small = array.dtype.kind == "b" or array.dtype == np.float16
    flat = array.reshape(len(array), -1) if array.ndim != 2 else array
    return flat.astype(np.float32) if small else flat


def column_names(tensors: Sequence[TensorSpec]) -> list[str | None]:
    """Return the name of every column; None for those of a wide tensor without ``columns``."""
    names: list[str | None] = []
    for tensor in tensors:
        if tensor.columns:
            names += tensor.columns
        else:
            names += [tensor.name] if width(tensor) == 1 else [None] * width(tensor)
    return names


def order_of(fitted: Sequence[str], tensors: Sequence[TensorSpec], what: str) -> list[int] | None:
    """Return where each column that a model was fitted on stands among the inputs' columns.

    Args:
        fitted: the model's column names, in its order.
        tensors: the model's inputs.
        what: the model, for the error's text.

    Returns:
        positions in the order of ``fitted``, without those that no input gives; None where the inputs' columns
        have no names (wide tensors) or there is only one: then columns are taken in the manifest's order.

    Raises:
        ArtifactError: some columns have names that the model knows and others do not, or two have the same.
    """
    names = column_names(tensors)
    known = set(fitted)
    twice = next((name for name in names if name is not None and name in known and names.count(name) > 1), None)
    if twice is not None:
        raise ArtifactError(
            f"two inputs fill the column {twice!r} of {what}", hint="name each column once in model.inputs"
        )
    if all(name in known for name in names):
        return [names.index(name) for name in fitted if name in names]
    if len(names) == len(fitted) and (len(names) == 1 or not any(names)):
        return None
    extra = [name for name in names if name not in known]
    missing = [name for name in fitted if name not in names]
    raise ArtifactError(
        f"{what} was fitted on the columns {_listed(fitted)}; model.inputs "
        + "; ".join(
            [f"have {_listed([name or '(no name)' for name in extra])}, which it does not know"] * bool(extra)
            + [f"lack {_listed(missing)}"] * bool(missing)
        ),
        hint="name the inputs (or their columns = [...]) as the model was fitted, or give all columns, in the model's "
        "order, in one tensor without columns",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")


class EstimatorTable:
    """Turns input arrays into what an estimator was fitted on.

    Args:
        tensors: the model's inputs, each (rows,) or (rows, columns).
        fitted: the column names of the DataFrame that it was fitted on; None where it was fitted on an array.
        what: the model, for errors.
        flat: give the only input as it is, (rows,).

    Raises:
        ArtifactError: see ``check_columns`` and ``order_of``.
        MissingExtra: it needs a DataFrame, and pandas is not installed.
    """

    def __init__(
        self, tensors: Sequence[TensorSpec], fitted: Sequence[str] | None, what: str, *, flat: bool = False
    ) -> None:
        check_columns(tensors, text=True)
        self._flat = flat
        self._tensors = tuple(tensors)
        self._names = [tensor.name for tensor in tensors]
        self._missing = {tensor.name for tensor in tensors if tensor.datatype == "BYTES" and tensor.allow_nan}
        self._fitted = list(fitted) if fitted is not None else None
        self._order = None if fitted is None else order_of(fitted, tensors, what)
        self._pandas: Any = None
        if fitted is not None:
            needs = f"{what} was fitted on a DataFrame, so it is called with one, which needs pandas"
            self._pandas = load_library("pandas", needs, ", or serve the 'onnx' variant")

    def __call__(self, inputs: Arrays) -> Any:
        """Return the DataFrame, the matrix or the texts of a batch."""
        if self._missing:
            inputs = {name: _with_nan(array) if name in self._missing else array for name, array in inputs.items()}
        if self._flat:
            return inputs[self._names[0]]
        if self._fitted is None:
            return matrix(inputs, self._names)
        columns = [column for tensor in self._tensors for column in _columns(inputs[tensor.name])]
        if self._order is None:
            return self._pandas.DataFrame(dict(zip(self._fitted, columns, strict=True)))
        names = column_names(self._tensors)
        return self._pandas.DataFrame({names[place]: columns[place] for place in self._order})


class BoosterInput:
    """Turns input arrays into the matrix of a booster, its columns in the booster's order.

    Args:
        tensors: the model's inputs, numbers of (rows,) or (rows, columns).
        features: the booster's number of columns.
        fitted: the booster's column names; None where it was fitted on an array, so that the manifest's order holds.
        what: the model, for errors.
        doubles: whether whole numbers become float64.

    Raises:
        ArtifactError: text, another number of columns, or see ``order_of``.
    """

    def __init__(
        self,
        tensors: Sequence[TensorSpec],
        features: int,
        fitted: Sequence[str] | None,
        what: str,
        *,
        doubles: bool = False,
    ) -> None:
        given = check_columns(tensors)
        if given != features:
            raise ArtifactError(
                f"{what} has {features} features, model.inputs have {given} columns",
                hint="make model.inputs agree with the model, then run `tailcut build` again",
            )
        self._names = [tensor.name for tensor in tensors]
        order = None if fitted is None else order_of(fitted, tensors, what)
        self._order = None if order is None or order == list(range(given)) else order
        self._doubles = doubles

    def __call__(self, inputs: Arrays) -> Array:
        """Return (rows, columns); see ``matrix`` for the datatype."""
        found = matrix(inputs, self._names)
        if self._doubles and found.dtype.kind in "iu":
            found = found.astype(np.float64)
        return found if self._order is None else np.ascontiguousarray(found[:, self._order])


def _columns(array: Array) -> list[Array]:
    return [array] if array.ndim == 1 else [array[:, place] for place in range(array.shape[1])]


def _with_nan(array: Array) -> Array:
    found = array.copy()
    found[array == MISSING_TEXT] = np.nan
    return found


def check_one_output(variant: Openable) -> TensorSpec:
    """Return the only output.

    Raises:
        ArtifactError: there are several, or it is neither float32 nor float64: such a model gives one array.
    """
    if len(variant.outputs) != 1 or variant.outputs[0].datatype not in {"FP32", "FP64"}:
        given = ", ".join(f"{tensor.name!r} {tensor.datatype}" for tensor in variant.outputs)
        raise ArtifactError(
            f"variant {variant.name!r} ({variant.runtime}) gives one FP32 or FP64 output, model.outputs names {given}",
            hint="name one: [-1] for a regressor or a probability, [-1, classes] for several classes",
        )
    return variant.outputs[0]


def shaped(found: Any, output: TensorSpec, *, classes: bool) -> Array:
    """Return a library's answer in the form of the manifest's output.

    Args:
        found: (rows,) or (rows, columns) as the library gives it.
        output: of the manifest.
        classes: whether it is probabilities of classes. Two classes are (rows,) of the second for an output of shape
            [-1], both columns for [-1, 2].
    """
    array = np.asarray(found)
    if classes and array.ndim == 2 and array.shape[1] == 2 and len(output.shape) == 1:
        array = array[:, 1]
    elif classes and array.ndim == 1 and len(output.shape) == 2 and output.shape[1] in {-1, 2}:
        array = np.stack([1 - array, array], axis=1)
    elif array.ndim == 2 and array.shape[1] == 1 and len(output.shape) == 1:
        array = array[:, 0]
    elif array.ndim == 1 and len(output.shape) == 2 and output.shape[1] == 1:
        array = array[:, None]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=NUMPY_OF[output.datatype])
