"""ONNX nodes and constants while a graph is put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tailcut.common.tensors import Array

OPSET = 21
IR_VERSION = 10
"""Of onnx 1.17, whose ai.onnx.ml 5 has trees in double; every onnxruntime that tailcut runs with reads it."""

FLOAT = np.dtype(np.float32)
DOUBLE = np.dtype(np.float64)
WHOLE = np.dtype(np.int64)
TEXT = np.dtype(np.object_)
BOOL = np.dtype(np.bool_)

DOMAIN = "ai.onnx.ml"


class Graph:
    """Nodes in the order in which they compute, and their constants.

    Attributes:
        nodes, constants: of the graph.
        guards: (rows, 1) double tensors that are 0, or NaN in rows that the source model refuses.
        single: whether something computes in float32 (then answers agree up to float32 rounding only).
        failures: steps of the source model that have no exact form, with the reason.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Start with nothing; ``taken`` are the names of inputs and outputs, which no value inside may have."""
        self._taken = frozenset(taken)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.guards: list[str] = []
        self.single = False
        self.failures: list[str] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, operator: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        from onnx import helper

        name = self._free(f"{operator.lower()}_{len(self.nodes)}")
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def fail(self, path: Sequence[str], step: Any, why: str) -> None:
        """Record a step that cannot be converted exactly; ``path`` are the names of the steps that lead to it."""
        kind = type(step).__name__
        place = f"step {' > '.join(map(repr, path))} ({kind})" if path else f"the {kind}"
        self.failures.append(f"{place}: {why}")

    def concat(self, parts: Sequence[str]) -> str:
        """Put tensors (rows, ...) side by side; one stays as it is."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=1)

    def sigmoid(self, name: str, dtype: Any) -> str:
        """Add 1 / (1 + exp(-x)), exact in the tails, where onnxruntime's own operator is 0 (below about -37)."""
        zero, one = self.constant(0.0, dtype), self.constant(1.0, dtype)
        small = self.add("Exp", [self.add("Neg", [self.add("Abs", [name])])])
        above = self.add("Where", [self.add("Less", [name, zero]), small, one])
        return self.add("Div", [above, self.add("Add", [small, one])])

    def constant(self, value: Any, dtype: Any) -> str:
        """Add a constant, or find the one that is there; returns its name."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype=dtype)
        key = (str(array.dtype), array.shape, repr(array.tolist()).encode() if array.dtype == TEXT else array.tobytes())
        if key not in self._known:
            self._known[key] = self._free(f"constant_{len(self.constants)}")
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), self._known[key]))
        return self._known[key]

    def cast(self, name: str, have: Any, want: Any) -> str:
        """Convert to another dtype, where it is another."""
        return name if np.dtype(have) == np.dtype(want) else self.add("Cast", [name], to=onnx_type(want))

    def whole(self, values: Any) -> str:
        """Add an int64 constant (axes, shapes, indices)."""
        return self.constant(values, np.int64)

    def merge(self, converted: Any, inputs: Sequence[str], prefix: str, output: int = -1) -> str:
        """Take over the nodes of a whole ONNX model; returns the name of one of its outputs."""
        from onnx import compose, helper

        part = compose.add_prefix(converted, self._free_prefix(f"{prefix}_{len(self.nodes)}/")).graph
        for given, wanted in zip(inputs, part.input, strict=True):
            self.nodes.append(helper.make_node("Identity", [given], [wanted.name]))
        self.nodes += list(part.node)
        self.constants += list(part.initializer)
        name: str = part.output[output].name
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name

    def _free_prefix(self, prefix: str) -> str:
        while any(name.startswith(prefix) for name in self._taken):
            prefix = f"_{prefix}"
        return prefix


def onnx_type(dtype: Any) -> int:
    """Return the element type of a NumPy dtype; object is text."""
    from onnx import TensorProto, helper

    found: int = TensorProto.STRING if np.dtype(dtype) == TEXT else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return found


def model_of(graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return a checked ONNX model with the nodes that its outputs need.

    Args:
        graph: nodes and constants.
        inputs, outputs: value infos.
    """
    from onnx import checker, helper

    nodes = _needed(graph.nodes, {value.name for value in outputs})
    used = {name for node in nodes for name in node.input}
    held = helper.make_graph(
        nodes, "tailcut", list(inputs), list(outputs), [each for each in graph.constants if each.name in used]
    )
    # Version 5 has trees in double and deprecates those of float32, which are faster where they are exact.
    trees = 5 if any(node.op_type == "TreeEnsemble" for node in nodes) else 4
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, trees)]
    model = helper.make_model(held, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tailcut")
    checker.check_model(model)
    return model


def value_info(name: str, dtype: Any, shape: Sequence[int]) -> Any:
    """Return an input or output; -1 is a free dimension."""
    from onnx import helper

    sizes = [size if size != -1 else ("rows" if not place else f"{name}_{place}") for place, size in enumerate(shape)]
    return helper.make_tensor_value_info(name, onnx_type(dtype), sizes)


def run(model: Any, feeds: dict[str, Array]) -> Array:
    """Run a model that is not kept; returns its first output."""
    import onnxruntime

    from tailcut.models.runtimes.onnxruntime import session_options

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(None, feeds)[0]
    return found


def _needed(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]
