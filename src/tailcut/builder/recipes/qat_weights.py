"""The last step of quantisation-aware training: weights behind rounded inputs become 8-bit weights in the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.recipes.graph_names import free, taken

_LAYERS = {"Conv": 0, "Gemm": 1, "MatMul": 1}
"""Operators with the axis of their weight's output channels; a Gemm with transB has it on axis 0."""

_LEAST_SCALE = 1e-9
_LARGEST_BIAS = 2**30


def quantize(path: Path, bits: int) -> int:
    """Round the constant weights of layers whose input is rounded already, per output channel, in place.

    Biases are rounded to 32 bits at the scale of the layer's sums, as the kernels want them.

    Args:
        path: an .onnx file with QuantizeLinear and DequantizeLinear before its layers.
        bits: of the weights; they are stored as 8-bit integers.

    Returns:
        the number of layers.
    """
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    rounded = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    found, names = 0, taken(graph)
    for node in list(graph.node):
        source, weight = rounded.get(node.input[0]), constants.get(node.input[1] if len(node.input) > 1 else "")
        if node.op_type not in _LAYERS or source is None or weight is None or weight.ndim < 2:
            continue
        if node.op_type == "MatMul" and weight.ndim != 2:
            continue
        bias = constants.get(node.input[2]) if len(node.input) > 2 else None
        _round_layer(graph, node, weight, bias, float(constants[source.input[1]]), 2 ** (bits - 1) - 1, names)
        found += 1
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            graph.initializer.remove(tensor)
    _sort(graph)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return found


def _round_layer(graph: Any, node: Any, weight: Any, bias: Any, input_scale: float, most: int, names: set[str]) -> None:
    axis = _axis(node)
    others = tuple(place for place in range(weight.ndim) if place != axis)
    scale = np.maximum(np.abs(weight).max(axis=others) / most, _LEAST_SCALE)
    fits = bias is not None and bias.shape == scale.shape
    if fits:
        # The bias must fit into 32 bits at the scale of the sums: channels of tiny weights get coarser ones.
        scale = np.maximum(scale, np.abs(bias) / (input_scale * _LARGEST_BIAS))
    scale = scale.astype(np.float32)
    along = scale.reshape([-1 if place == axis else 1 for place in range(weight.ndim)])
    values = np.rint(weight / along).clip(-most, most).astype(np.int8)
    node.input[1] = _constant(graph, node.input[1], values, scale, axis, names)
    if fits:
        sums = (scale * np.float32(input_scale)).astype(np.float32)
        integers = np.rint(bias / sums.astype(np.float64)).astype(np.int32)
        node.input[2] = _constant(graph, node.input[2], integers, sums, 0, names)


def _axis(node: Any) -> int:
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if turned else _LAYERS[node.op_type]


def _constant(graph: Any, of: str, values: Any, scale: Any, axis: int, names: set[str]) -> str:
    """Add an integer constant with the node that makes floats of it; return the floats' name."""
    import onnx

    name = free(f"{of}/0", names)
    parts = [free(f"{name}/{suffix}", names) for suffix in ("integer", "scale", "zero")]
    zeros = np.zeros(scale.shape, values.dtype)
    for part, array in zip(parts, (values, scale, zeros), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array, part))
    graph.node.append(onnx.helper.make_node("DequantizeLinear", parts, [name], name=name, axis=axis))
    return name


def _sort(graph: Any) -> None:
    """Constants' nodes first: a graph lists producers before consumers."""
    made = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.name == node.output[0]]
    others = [node for node in graph.node if not any(node is each for each in made)]
    ordered = [*made, *others]
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)
