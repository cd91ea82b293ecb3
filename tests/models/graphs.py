"""Tiny ONNX files made node by node, for tests that need no torch."""

from __future__ import annotations

from collections.abc import Mapping
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


def of_company(path: Path) -> Path:
    """x (batch, 4) FP32 -> y (batch,): row sums over the largest of the batch, through a sigmoid.

    A row alone gives sigmoid(1) or sigmoid(-1), whatever it holds; in a batch it gives something between them.
    """
    nodes = [
        helper.make_node("ReduceSum", ["x", "one"], ["z"], keepdims=0),
        helper.make_node("Abs", ["z"], ["size"]),
        helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0),
        helper.make_node("Div", ["z", "largest"], ["share"]),
        helper.make_node("Sigmoid", ["share"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "company",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.array([1], np.int64), "one")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def expanding(path: Path) -> Path:
    """x (batch, 4) FP32 -> y (batch,): row sums of ones, expanded as exporters write torch's expand(-1, 4)."""
    constants = {"start": [0], "end": [1], "four": [4], "minus": [-1]}
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    weights.append(numpy_helper.from_array(np.ones((1, 1), np.float32), "one"))
    fill = numpy_helper.from_array(np.array([1], np.int64))
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "start", "end"], ["rows"]),
        helper.make_node("Concat", ["rows", "four"], ["wanted"], axis=0),
        helper.make_node("Shape", ["wanted"], ["rank"]),
        helper.make_node("ConstantOfShape", ["rank"], ["ones"], value=fill),
        helper.make_node("Mul", ["ones", "minus"], ["free"]),
        helper.make_node("Equal", ["wanted", "free"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "wanted"], ["target"]),
        helper.make_node("Expand", ["one", "target"], ["spread"]),
        helper.make_node("ReduceSum", ["spread", "end"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "expanding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def identities(path: Path, tensors: Mapping[str, tuple[int, str]]) -> Path:
    """Each input (batch, n) -> an output of the same values.

    Args:
        tensors: input -> (type of TensorProto, output).
    """
    nodes = [helper.make_node("Identity", [name], [output]) for name, (_, output) in tensors.items()]
    inputs = [helper.make_tensor_value_info(name, kind, ["batch", "n"]) for name, (kind, _) in tensors.items()]
    outputs = [helper.make_tensor_value_info(output, kind, ["batch", "n"]) for kind, output in tensors.values()]
    graph = helper.make_graph(nodes, "identities", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
