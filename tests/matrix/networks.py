"""A small network in torch and as an ONNX graph, with the same weights, fitted by least squares.

Whole numbers enter by their remainder, so that one that lost its last digits on the way gives another answer; a gap
has a weight of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.matrix.axes import Group
from tests.matrix.tables import CITIES, KINDS, Columns, datatypes, training

Floats = NDArray[np.float64]
HIDDEN = 24
_MODULUS = 7
WORDS = {text: float(number) for number, text in enumerate((*CITIES, *KINDS[:2]))}
_UNKNOWN_WORD = -1.0


@dataclass(frozen=True)
class Weights:
    """Arrays (columns,), (columns,), (columns, hidden), (hidden,), (hidden, outputs) and (outputs,), in their order."""

    mean: Floats
    scale: Floats
    first: Floats
    bias: Floats
    second: Floats
    offset: Floats


def _plain(columns: Columns) -> Floats:
    """Return what enters the first layer before it is scaled, (rows, columns)."""
    return np.column_stack([_entering(values) for values in columns.values()])


def _entering(values: Any) -> Floats:
    if values.dtype.kind == "O":
        return np.array([WORDS.get(text, _UNKNOWN_WORD) for text in values.tolist()])
    if values.dtype.kind == "i":
        return (values % _MODULUS).astype(np.float64)
    return np.where(np.isnan(values), -3.0, values).astype(np.float64)


@lru_cache(maxsize=2)
def weights(group: Group) -> Weights:
    """Fit the network."""
    table = training(group)
    rng = np.random.default_rng(group.place)
    entering = _plain(table.columns)
    mean, scale = entering.mean(axis=0), entering.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    first, bias = rng.normal(size=(entering.shape[1], HIDDEN)), rng.normal(size=HIDDEN)
    hidden = np.tanh((entering - mean) / scale @ first + bias)
    wanted = _wanted(group, table.codes, table.labels)
    design = np.column_stack([hidden, np.ones(len(hidden))])
    solved = np.linalg.solve(design.T @ design + 1e-2 * np.eye(HIDDEN + 1), design.T @ wanted)
    return Weights(mean, scale, first, bias, solved[:-1], solved[-1])


def _wanted(group: Group, codes: Any, labels: Any) -> Floats:
    if not group.classes:
        return np.asarray(labels, np.float64)[:, None]
    if group.width == 1:
        return (4.0 * (codes == 1) - 2.0)[:, None]
    return 4.0 * (codes[:, None] == np.arange(group.width)) - 2.0


def _end(group: Group) -> str:
    if not group.classes:
        return ""
    return "sigmoid" if group.width == 1 else "softmax"


def _wide(group: Group) -> bool:
    """Whether the network computes in double: where a column is FP64."""
    return "FP64" in datatypes(group).values()


def module(group: Group) -> Any:
    """Make the torch module; of text it fails, as torch has no tensors of text."""
    import torch

    held = weights(group)
    kind = torch.float64 if _wide(group) else torch.float32
    given = torch.float64 if group.output == "FP64" else torch.float32

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("mean", "scale", "first", "bias", "second", "offset"):
                self.register_buffer(name, torch.from_numpy(getattr(held, name)).to(kind))

        def through(self, entering: Any) -> Any:
            hidden = torch.tanh(((entering - self.mean) / self.scale) @ self.first + self.bias)
            score = hidden @ self.second + self.offset
            end = _end(group)
            score = torch.softmax(score, 1) if end == "softmax" else torch.sigmoid(score) if end else score
            return (score if group.width > 1 else score.squeeze(1)).to(given)

        def enter(self, part: Any) -> Any:
            if part.is_floating_point():
                part = torch.where(torch.isnan(part), torch.full_like(part, -3.0), part)
            else:
                part = torch.remainder(part, _MODULUS)
            return part.to(kind)

    class OneTensor(Network):
        def forward(self, x: Any) -> Any:
            return self.through(self.enter(x))

    class ColumnByColumn(Network):
        def forward(self, a: Any, b: Any, c: Any, d: Any) -> Any:
            return self.through(torch.stack([self.enter(each) for each in (a, b, c, d)], 1))

    return (OneTensor() if group.one_tensor else ColumnByColumn()).eval()


def graph(group: Group) -> bytes:
    """Make the ONNX file."""
    from onnx import TensorProto, helper

    held = weights(group)
    wide = _wide(group)
    of_onnx = {
        "FP32": TensorProto.FLOAT,
        "FP64": TensorProto.DOUBLE,
        "INT64": TensorProto.INT64,
        "BYTES": TensorProto.STRING,
    }
    write = _Graph(np.float64 if wide else np.float32, TensorProto.DOUBLE if wide else TensorProto.FLOAT)
    types = datatypes(group)
    if group.one_tensor:
        datatype = next(iter(types.values()))
        inputs = [helper.make_tensor_value_info("x", of_onnx[datatype], ["n", len(types)])]
        entering = write.enter("x", datatype, of_onnx)
    else:
        inputs = [helper.make_tensor_value_info(name, of_onnx[datatype], ["n"]) for name, datatype in types.items()]
        parts = [write.column(write.enter(name, datatype, of_onnx)) for name, datatype in types.items()]
        entering = write.add("Concat", *parts, axis=1)
    scaled = write.add("Div", write.add("Sub", entering, write.held(held.mean)), write.held(held.scale))
    first = write.add("Add", write.add("MatMul", scaled, write.held(held.first)), write.held(held.bias))
    hidden = write.add("Tanh", first)
    score = write.add("Add", write.add("MatMul", hidden, write.held(held.second)), write.held(held.offset))
    end = _end(group)
    if end:
        score = write.add("Sigmoid", score) if end == "sigmoid" else write.add("Softmax", score, axis=1)
    if group.width == 1:
        score = write.add("Squeeze", score, write.held(np.array([1]), np.int64))
    write.add("Cast", score, to=of_onnx[group.output], output="p")
    shape = ["n"] if group.width == 1 else ["n", group.width]
    outputs = [helper.make_tensor_value_info("p", of_onnx[group.output], shape)]
    made = helper.make_graph(write.nodes, "network", inputs, outputs, write.initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    found: bytes = helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()
    return found


class _Graph:
    """Nodes and weights of an ONNX graph, value by value."""

    def __init__(self, dtype: Any, kind: int) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._dtype = dtype
        self._kind = kind

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def held(self, values: Any, dtype: Any = None) -> str:
        """Add a constant and return its name."""
        from onnx import numpy_helper

        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, dtype or self._dtype), name))
        return name

    def column(self, value: str) -> str:
        """Make (rows,) a column, (rows, 1)."""
        return self.add("Unsqueeze", value, self.held(np.array([1]), np.int64))

    def enter(self, name: str, datatype: str, of_onnx: dict[str, int]) -> str:
        """Add what an input goes through before the first layer."""
        from onnx import helper

        if datatype == "BYTES":
            words, numbers = list(WORDS), list(WORDS.values())
            node = helper.make_node("LabelEncoder", [name], [f"{name}_number"], domain="ai.onnx.ml", keys_strings=words,
                                    values_floats=numbers, default_float=_UNKNOWN_WORD)  # fmt: skip
            self.nodes.append(node)
            return self.add("Cast", f"{name}_number", to=self._kind)
        if datatype == "INT64":
            rest = self.add("Mod", name, self.held(np.array(_MODULUS), np.int64))
            return self.add("Cast", rest, to=self._kind)
        gap = self.held(np.array(-3.0), np.float32 if datatype == "FP32" else np.float64)
        filled = self.add("Where", self.add("IsNaN", name), gap, name)
        return self.add("Cast", filled, to=self._kind)
