"""Models over (batch, length) token numbers, made node by node: their time depends on the length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tailcut.build import Holdout

WORDS, WIDTH, BURNT = 50, 8, 256


def counting(path: Path, *, seed: int = 0, shift: float = 0.0, row_layers: int = 0, word_layers: int = 0) -> Path:
    """ids and mask (batch, length) INT64 -> y (batch,): sigmoid of the mean of the words' weights, plus ``shift``.

    ``row_layers`` and ``word_layers`` cost time without changing the answer: the first per row, the second per word.
    """
    random = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(random.normal(size=(WORDS, WIDTH)).astype(np.float32), "table"),
        numpy_helper.from_array((3 * random.normal(size=(WIDTH, 1))).astype(np.float32), "w"),
        numpy_helper.from_array(np.array(shift, np.float32), "shift"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
        numpy_helper.from_array(np.array([2], np.int64), "two"),
        numpy_helper.from_array(np.array([-1], np.int64), "flat"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "two"], ["column"]),
        helper.make_node("Mul", ["words", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["real", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "w"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["p"]),
        helper.make_node("Add", ["p", "shift"], ["shifted"]),
    ]
    last = "shifted"
    for start, layers, axes in (("mean", row_layers, 1), ("kept", word_layers, 2)):
        if layers:
            nodes, last = nodes + _burn(weights, start, layers, axes, last), f"{last}_{start}"
    nodes.append(helper.make_node("Reshape", [last, "flat"], ["y"]))
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph(nodes, "counting", tokens, [result], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def _burn(weights: list[onnx.TensorProto], start: str, layers: int, axes: int, last: str) -> list[onnx.NodeProto]:
    """Multiply ``start`` by ``layers`` matrices, and add nothing of it to ``last``."""
    random = np.random.default_rng(1)
    nodes, value, width = [], start, WIDTH
    for layer in range(layers):
        matrix = (random.normal(size=(width, BURNT)) / width**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"{start}_{layer}"))
        nodes.append(helper.make_node("MatMul", [value, f"{start}_{layer}"], [f"{start}_value_{layer}"]))
        value, width = f"{start}_value_{layer}", BURNT
    weights.append(numpy_helper.from_array(np.array(range(1, axes + 1), np.int64), f"{start}_axes"))
    weights.append(numpy_helper.from_array(np.array(0, np.float32), f"{start}_nothing"))
    nodes += [
        helper.make_node("ReduceSum", [value, f"{start}_axes"], [f"{start}_total"], keepdims=0),
        helper.make_node("Unsqueeze", [f"{start}_total", "one"], [f"{start}_column"]),
        helper.make_node("Mul", [f"{start}_column", f"{start}_nothing"], [f"{start}_zero"]),
        helper.make_node("Add", [last, f"{start}_zero"], [f"{last}_{start}"]),
    ]
    return nodes


def holdout(rows: int = 200, longest: int = 64) -> Holdout:
    """Rows of 3 to ``longest`` words, padded; the labels are what ``counting(seed=0)`` decides."""
    random = np.random.default_rng(7)
    lengths = random.integers(3, longest + 1, size=rows)
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    ids = random.integers(0, WORDS, size=(rows, longest)) * mask
    weights = np.random.default_rng(0)
    table, w = weights.normal(size=(WORDS, WIDTH)), weights.normal(size=WIDTH)
    means = (table[ids] * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return Holdout(inputs={"ids": ids, "mask": mask}, labels=(means @ w > 0).astype(np.int64), padding="mask")
