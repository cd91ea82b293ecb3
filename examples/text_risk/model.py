"""The classifier: a logistic regression on 384 numbers of the text and two of the customer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from text_risk.settings import home

Floats = npt.NDArray[np.floating[Any]]
FILE = "train.npz"
"""Embeddings, columns and labels of the training tickets."""


def fit(at: Path | None = None) -> Any:
    """Fit the classifier on what was prepared, in less than a second.

    Raises:
        FileNotFoundError: nothing is prepared.
    """
    path = (at or home()) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {FILE} at {path}\n\nhint: python -m text_risk.prepare (in examples/)")
    with np.load(path) as file:
        return fit_on(joined(file["embeddings"], file["columns"]), file["left"])


def fit_on(inputs: Floats, left: npt.NDArray[np.int64]) -> Any:
    """Fit a logistic regression on inputs of any width."""
    from sklearn.linear_model import LogisticRegression

    # The inputs are not standardised: some numbers of an embedding hardly vary, and their last digit would count.
    # C is the best of cross-validation on the training tickets with whole sentences left out.
    return LogisticRegression(C=3.0, solver="newton-cholesky").fit(inputs, left)


def joined(embeddings: Floats, columns: Floats) -> npt.NDArray[np.float64]:
    """Put the inputs side by side, in the manifest's order: embedding, months, late_orders."""
    return np.hstack([embeddings, columns]).astype(np.float64)


def write_onnx(fitted: Any, path: Path) -> None:
    """Write a fitted logistic regression as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {"weights": fitted.coef_[0].astype(np.float32), "bias": np.float32(fitted.intercept_[0])}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["score"]),
            helper.make_node("Sigmoid", ["score"], ["risk"]),
        ],
        "text-risk",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", fitted.n_features_in_])],
        [helper.make_tensor_value_info("risk", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
