"""ONNX files whose rows influence each other, and the same without that; no torch needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8


def mlp(path: Path, *, hidden: int = 64, seed: int = 0, first: Sequence[Any] = (), name: str = "") -> Path:
    """x (batch, 8) FP32 -> y (batch,) and z (batch, 2): a hidden layer and two heads.

    Args:
        first: nodes from "x" to "rows", what the hidden layer sees.
        name: of the first product.
    """
    draw = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((draw.normal(size=shape) / shape[0] ** 0.5).astype(np.float32), name)

    nodes = [
        *(first or [helper.make_node("Identity", ["x"], ["rows"])]),
        helper.make_node("MatMul", ["rows", "w0"], ["h"], name=name),
        helper.make_node("Tanh", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["score"]),
        helper.make_node("Reshape", ["score", "flat"], ["y"]),
        helper.make_node("MatMul", ["r", "w2"], ["z"]),
    ]
    constants = [
        weights("w0", WIDTH, hidden),
        weights("w1", hidden, 1),
        weights("w2", hidden, 2),
        numpy_helper.from_array(np.array([-1], np.int64), "flat"),
    ]
    outputs = [("y", ["batch"]), ("z", ["batch", 2])]
    return _save(path, nodes, constants, [("x", TensorProto.FLOAT, ["batch", WIDTH])], outputs)


def less_mean(path: Path) -> Path:
    """As ``mlp``, of what is left of a row where half of the batch's mean is taken off."""
    first = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Sub", ["twice", "mean"], ["rows"]),
    ]
    return mlp(path, first=first)


def over_batch(path: Path) -> Path:
    """As ``mlp``, of a softmax over the rows (dimension 0, where 1 was meant) beside the row itself."""
    first = [
        helper.make_node("Softmax", ["x"], ["share"], axis=0),
        helper.make_node("Add", ["x", "share"], ["rows"]),
    ]
    return mlp(path, first=first)


def quantised(path: Path) -> Path:
    """As ``mlp``, with 8-bit weights and activations quantised while it runs, as ``int8-dynamic`` is made."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    base = mlp(path.with_suffix(".fp32.onnx"))
    quantize_dynamic(str(base), str(path), weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    return path


def unmasked(path: Path) -> Path:
    """ids (batch, tokens) INT64 -> y (batch,): the mean of a table's values over all tokens, padding included."""
    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["values"]),
        helper.make_node("ReduceMean", ["values"], ["y"], axes=[1], keepdims=0),
    ]
    constants = [numpy_helper.from_array(draw.normal(size=100).astype(np.float32), "table")]
    return _save(path, nodes, constants, [("ids", TensorProto.INT64, ["batch", "tokens"])], [("y", ["batch"])])


def _save(
    path: Path,
    nodes: list[Any],
    constants: list[onnx.TensorProto],
    inputs: list[tuple[str, int, list[Any]]],
    outputs: list[tuple[str, list[Any]]],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "coupled",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
