"""What static quantisation touches in a graph: which operators, which it leaves in float, which tensors it observes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder.recipes.graph_names import name_nodes
from tailcut.errors import DoesNotApply

LINEAR = ("MatMul", "Gemm")
CONVOLUTIONAL = (
    *("Conv", "Gemm", "MatMul", "Add", "Concat", "Relu", "Clip"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Flatten"),
)
_MASKED, _MASK = -1e30, -1e4
"""Constants below the first mask something out; the second masks as well and leaves a range that 8 bits can cut."""


@dataclass(frozen=True)
class Plan:
    """What is quantised.

    Attributes:
        kinds: operators.
        products: names of the nodes whose two factors are both activations (inside attention); they stay in float.
        tensors: FP32 activations to observe.
        masks: number of mask constants that were tamed.
        outputs: whether linear layers give their sums in 8 bits too. As float there is one rounding less, and no
            conversion before the addition after it; convolutions follow one another in 8 bits throughout.
        stacked: weights of MatMul that are stacks of matrices; one scale for all of each. The quantizer would give
            scales along axis 1, which are not a stack's columns, and onnxruntime's kernels refuse those ("b zero point
            is not valid").
    """

    kinds: tuple[str, ...]
    products: tuple[str, ...]
    tensors: tuple[str, ...]
    masks: int
    outputs: bool
    stacked: tuple[str, ...]


def plan(model: Any) -> Plan:
    """Decide what is quantised in an onnx.ModelProto; names its nodes and tames its masks in place.

    Raises:
        DoesNotApply: there is nothing to quantise.
    """
    graph = model.graph
    name_nodes(graph)
    constants = {each.name for each in graph.initializer}
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    kinds = CONVOLUTIONAL if any(node.op_type == "Conv" for node in graph.node) else LINEAR
    products = {node.name for node in graph.node if node.op_type in LINEAR and not constants & set(node.input[:2])}
    chosen = [node for node in graph.node if node.op_type in kinds and node.name not in products]
    if not any(node.op_type in {*LINEAR, "Conv"} for node in chosen):
        raise DoesNotApply(
            "there is nothing to quantise: no Conv, MatMul or Gemm of the model has constant weights",
            hint="int8-static is for linear layers and convolutions; leave it out with --recipes onnx",
        )
    masks = _tame_masks(graph)
    floats = _floats(model) - constants
    tensors = dict.fromkeys(name for node in chosen for name in (*node.input, *node.output) if name in floats)
    return Plan(
        kinds,
        tuple(sorted(products)),
        tuple(tensors),
        masks,
        kinds is CONVOLUTIONAL,
        _stacked(chosen, graph.initializer),
    )


def _stacked(chosen: Iterable[Any], weights: Iterable[Any]) -> tuple[str, ...]:
    """Names of the weights that only one scale fits; see ``Plan.stacked``."""
    stacks = {each.name for each in weights if len(each.dims) > 2}
    return tuple(sorted({node.input[1] for node in chosen if node.op_type == "MatMul" and node.input[1] in stacks}))


def _floats(model: Any) -> set[str]:
    """Names of the FP32 tensors, as shape inference knows them."""
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # the exporter's own shapes can contradict onnx's inference; they serve as well
        graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}


def _tame_masks(graph: Any) -> int:
    """Replace the constants of an attention mask (about -3.4e38, or -inf), which would take up all of a range."""
    import onnx

    if not any(node.op_type == "Softmax" for node in graph.node):
        return 0
    masking = {name for node in graph.node if node.op_type in {"Where", "Mul", "Add"} for name in node.input}
    found = 0
    for tensor in graph.initializer:
        if tensor.name not in masking or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        values = onnx.numpy_helper.to_array(tensor)
        if (values < _MASKED).any():
            tamed = np.where(values < _MASKED, np.float32(_MASK), values).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(tamed, tensor.name))
            found += 1
    return found
