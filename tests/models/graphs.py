"""Tiny ONNX files made node by node, for tests that need no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def linear(path: Path, *, width: int = 4, batch: int | str = "batch", seed: int = 0, hidden: int = 0) -> Path:
    """x (batch, width) FP32 -> y (batch,): sigmoid of a random linear map, with a hidden layer where asked."""
    random = np.random.default_rng(seed)
    weights, nodes, last, size = [], [], "x", width
    if hidden:
        weights.append(
            numpy_helper.from_array((random.normal(size=(width, hidden)) / width**0.5).astype(np.float32), "w0")
        )
        nodes += [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
        last, size = "r", hidden
    weights.append(numpy_helper.from_array((random.normal(size=(size, 1)) / size**0.5).astype(np.float32), "w"))
    weights.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"))
    nodes += [
        helper.make_node("MatMul", [last, "w"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
