"""Steps and estimators that tailcut has no form for: skl2onnx, with typed inputs; what it makes is compared as well."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np

from tailcut.builder.tables.columns import ColumnTable, Unconvertible, floats, one, takes_nan
from tailcut.builder.tables.live import Live, width
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, FLOAT, TEXT, Graph

_OPSETS = {"": 18, "ai.onnx.ml": 3}
_PLACE = re.compile(r"^.*\.cc:\d+ \S+?\(.*?\)(?:::<lambda\(\)>)? ")
"""Code, file and signature that onnxruntime puts before the reason."""


def step(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """Convert a transformer.

    Raises:
        Unconvertible: skl2onnx does not know it, or cannot be given such columns.
    """
    name, dtype = _converted(graph, step, table, None)
    out = live.out.dtype if hasattr(live.out, "dtype") and live.out.dtype != TEXT else DOUBLE
    return one(graph.cast(name, dtype, out), width(live.out), out, table)


def estimator(graph: Graph, model: Any, table: ColumnTable) -> tuple[str, Any]:
    """Convert a last step; returns its probabilities or predictions, and their dtype.

    Raises:
        Unconvertible: skl2onnx does not know it, or cannot be given such columns.
    """
    options = {id(model): {"zipmap": False}} if hasattr(model, "classes_") else None
    return _converted(graph, model, table, options)


def _converted(graph: Graph, model: Any, table: ColumnTable, options: Any) -> tuple[str, Any]:
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
    except ImportError as error:
        raise Unconvertible(f"tailcut has no form for it, and skl2onnx is not installed ({error})") from None
    if table.text:
        name, dtype = _texts(graph, table), TEXT
    else:
        name, dtype = floats(graph, table, nan=takes_nan(model))
    kind = {TEXT: StringTensorType, FLOAT: FloatTensorType, DOUBLE: DoubleTensorType}[dtype]
    try:
        with warnings.catch_warnings(action="ignore"):
            made = to_onnx(
                model, initial_types=[("given", kind([None, table.width]))], options=options, target_opset=_OPSETS
            )
    except Exception as error:  # skl2onnx raises whatever its converters raise
        said = " ".join(str(error).split())
        raise Unconvertible(f"skl2onnx cannot convert it: {type(error).__name__}: {said[:200]}") from error
    _check_opens(made)
    found = _dtype(made)
    graph.single |= dtype == FLOAT or _computes_float(made)
    return graph.merge(made, [name], "skl2onnx"), found


def _check_opens(made: Any) -> None:
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(made.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes share no public base
        said = _PLACE.sub("", " ".join(str(error).split()))
        raise Unconvertible(f"onnxruntime cannot open the conversion by skl2onnx: {said[:200]}") from error


def _computes_float(made: Any) -> bool:
    """Tell whether there is float32 within: operators of ai.onnx.ml answer in it whatever they are given."""
    from onnx import TensorProto

    exact = {"ArrayFeatureExtractor", "LabelEncoder", "ZipMap"}
    return any(
        (node.domain == DOMAIN and node.op_type not in exact)
        or any(each.name == "to" and each.i == TensorProto.FLOAT for each in node.attribute)
        for node in made.graph.node
    )


def _dtype(made: Any) -> np.dtype[Any]:
    from onnx import helper

    found: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(made.graph.output[-1].type.tensor_type.elem_type)
    return found


def _texts(graph: Graph, table: ColumnTable) -> str:
    if any(block.dtype != TEXT for block in table.blocks):
        raise Unconvertible("tailcut has no form for it, and skl2onnx does not accept numbers mixed with text")
    parts = [block.name for block in table.blocks]
    return graph.concat(parts)
