"""Input tensors side by side as one float32 matrix: what scikit-learn, LightGBM and XGBoost take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailcut.core.tensors import Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import Tensor
from tailcut.runtimes.base import Openable

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def columns(tensors: Sequence[Tensor]) -> int:
    """Number of columns of the matrix.

    Raises:
        ArtifactError: text, or a tensor that is neither (rows,) nor (rows, a fixed number of columns).
    """
    for tensor in tensors:
        if tensor.datatype == "BYTES" or len(tensor.shape) > 2 or -1 in tensor.shape[1:]:
            raise ArtifactError(
                f"input {tensor.name!r} is {tensor.datatype} {list(tensor.shape)}; models on tables take numbers of "
                "shape [-1] or [-1, columns]",
                hint="turn text into numbers in the preprocess hook, and give model.inputs a fixed number of columns",
            )
    return sum(tensor.shape[1] if len(tensor.shape) == 2 else 1 for tensor in tensors)


def matrix(inputs: Arrays, names: Sequence[str]) -> Matrix:
    """Put the inputs side by side in the order of ``names``, as (rows, columns) float32; one such input as it is."""
    if len(names) == 1 and inputs[names[0]].ndim == 2:
        only: Matrix = np.ascontiguousarray(inputs[names[0]], dtype=np.float32)
        return only
    parts = [np.asarray(inputs[name], dtype=np.float32) for name in names]
    side: Matrix = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    return side


def check_one_output(variant: Openable) -> Tensor:
    """Return the only output.

    Raises:
        ArtifactError: there are several, or it is not float32: such a model gives one array.
    """
    if len(variant.outputs) != 1 or variant.outputs[0].datatype != "FP32":
        given = ", ".join(f"{tensor.name!r} {tensor.datatype}" for tensor in variant.outputs)
        raise ArtifactError(
            f"variant {variant.name!r} ({variant.runtime}) gives one FP32 output, model.outputs names {given}",
            hint="name one FP32 output: [-1] for a regressor or a probability, [-1, classes] for several classes",
        )
    return variant.outputs[0]
