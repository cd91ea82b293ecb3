"""A whole ONNX model of a table: input tensors side by side, what a pipeline does first, and the trees or estimator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.build.ensembles import graph
from tailcut.build.ensembles.base import Ensemble
from tailcut.errors import BuildError
from tailcut.manifest import Tensor

_MATRIX = "tailcut_matrix"
_IR_VERSION = 9
"""Of onnx 1.14: every onnxruntime that tailcut runs with reads it."""


def write(
    inputs: Sequence[Tensor], output: Tensor, columns: int, path: Path, *, transform: Any, last: Ensemble | Any
) -> dict[str, Any]:
    """Write one .onnx file.

    Args:
        inputs, output: of the manifest.
        columns: of the inputs, side by side.
        path: the file to write.
        transform: the fitted steps of a pipeline before its last one, or None.
        last: an ensemble, or an estimator of any kind.

    Returns:
        opsets and number of nodes.

    Raises:
        BuildError: skl2onnx does not know a step.
    """
    nodes, constants, matrix = _front(inputs)
    domains: dict[str, int] = {"": graph.OPSET, "ai.onnx.ml": graph.ML_OPSET}
    if transform is not None:
        nodes, constants, matrix = _append(nodes, constants, matrix, _convert(transform, columns), "steps")
    if isinstance(last, Ensemble):
        more, fixed = graph.nodes(last, matrix, output.name)
    else:
        more, fixed, given = _append([], [], matrix, _convert(last, columns), "model")
        ends, ended = _trim(last, given, output.name)
        more, fixed = more + ends, fixed + ended
    return _save(inputs, output, _live(nodes + more, output.name), constants + fixed, domains, path)


def _front(inputs: Sequence[Tensor]) -> tuple[list[Any], list[Any], str]:
    """Cast every input to float, make it (rows, columns), and put them side by side."""
    from onnx import TensorProto, helper, numpy_helper

    if len(inputs) == 1 and inputs[0].datatype == "FP32" and len(inputs[0].shape) == 2:
        return [], [], inputs[0].name
    nodes, constants, parts = [], [], []
    for tensor in inputs:
        part = tensor.name
        if tensor.datatype != "FP32":
            nodes.append(helper.make_node("Cast", [part], [f"{tensor.name}_float"], to=TensorProto.FLOAT))
            part = f"{tensor.name}_float"
        if len(tensor.shape) == 1:
            constants.append(numpy_helper.from_array(np.array([-1, 1], dtype=np.int64), f"{tensor.name}_shape"))
            nodes.append(helper.make_node("Reshape", [part, f"{tensor.name}_shape"], [f"{tensor.name}_column"]))
            part = f"{tensor.name}_column"
        parts.append(part)
    nodes.append(helper.make_node("Concat", parts, [_MATRIX], axis=1))
    return nodes, constants, _MATRIX


def _convert(estimator: Any, columns: int) -> Any:
    """Convert with skl2onnx, from one float matrix.

    Raises:
        BuildError: it knows no such step, or cannot be fed one float matrix.
    """
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    options = {id(last): {"zipmap": False}} if hasattr(last, "classes_") else None
    try:
        return to_onnx(
            estimator,
            initial_types=[("matrix", FloatTensorType([None, columns]))],
            options=options,
            target_opset={"": graph.OPSET, "ai.onnx.ml": graph.ML_OPSET},
        )
    except Exception as error:  # skl2onnx raises whatever its converters raise
        said = " ".join(str(error).split())
        raise BuildError(
            f"skl2onnx cannot convert the {type(estimator).__name__}: {type(error).__name__}: {said[:300]}",
            hint="serve the 'sklearn' variant, or take that step into the preprocess hook",
        ) from error


def _append(
    nodes: list[Any], constants: list[Any], matrix: str, converted: Any, prefix: str
) -> tuple[list[Any], list[Any], str]:
    """Put a converted model behind ``matrix``; the result is its last output (a classifier's probabilities)."""
    from onnx import compose, helper

    part = compose.add_prefix(converted, f"{prefix}/").graph
    nodes = [*nodes, helper.make_node("Identity", [matrix], [part.input[0].name])]
    return [*nodes, *part.node], [*constants, *part.initializer], part.output[-1].name


def _trim(estimator: Any, given: str, output: str) -> tuple[list[Any], list[Any]]:
    """End with the convention: class 1's probability of two classes, (rows,) where there is one column."""
    from onnx import helper, numpy_helper

    classes = getattr(estimator, "classes_", None)
    if classes is not None and len(classes) == 2:
        constants = [
            numpy_helper.from_array(np.array(1, dtype=np.int64), "tailcut_second"),
        ]
        return [helper.make_node("Gather", [given, "tailcut_second"], [output], axis=1)], constants
    if classes is None and _columns(estimator) == 1:
        constants = [numpy_helper.from_array(np.array([-1], dtype=np.int64), "tailcut_flat")]
        return [helper.make_node("Reshape", [given, "tailcut_flat"], [output])], constants
    return [helper.make_node("Identity", [given], [output])], []


def _columns(estimator: Any) -> int:
    rows = np.zeros((1, int(estimator.n_features_in_)), dtype=np.float32)
    found = np.asarray(estimator.predict(rows))
    return found.shape[1] if found.ndim == 2 else 1


def _live(nodes: list[Any], output: str) -> list[Any]:
    """Leave out what the output does not need (a classifier's label)."""
    wanted = {output}
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]


def _save(
    inputs: Sequence[Tensor],
    output: Tensor,
    nodes: list[Any],
    constants: list[Any],
    domains: dict[str, int],
    path: Path,
) -> dict[str, Any]:
    from onnx import checker, helper, save

    used = {name for node in nodes for name in node.input}
    held = helper.make_graph(
        nodes,
        "tailcut",
        [_value(tensor) for tensor in inputs],
        [_value(output)],
        [each for each in constants if each.name in used],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = helper.make_model(held, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="tailcut")
    checker.check_model(model)
    save(model, str(path))
    return {"opset": {domain or "ai.onnx": version for domain, version in domains.items()}, "nodes": len(nodes)}


def _value(tensor: Tensor) -> Any:
    from onnx import helper

    from tailcut.core.tensors import NUMPY_OF

    shape = [
        size if size != -1 else f"{'rows' if not place else f'{tensor.name}_{place}'}"
        for place, size in enumerate(tensor.shape)
    ]
    return helper.make_tensor_value_info(tensor.name, helper.np_dtype_to_tensor_dtype(NUMPY_OF[tensor.datatype]), shape)
