"""Models that know no other values than their tables have, as ONNX files, and their manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tailcut.manifest import Manifest, load

SHOPS = 50
LONGEST = 6

SHOP = """
name = "m"

[model]
source = "model.onnx"

[[model.inputs]]
name = "shop"
datatype = "INT64"
{limits}

[[model.inputs]]
name = "x"
shape = [-1, 2]
columns = ["a", "b"]
min = -10
max = 0.1

[[model.outputs]]
name = "y"

[serve]
variant = "source"
"""
"""y = shop's row of the table (its number) + the sum of x."""

DECLARED = "min = 0\nmax = 49"

TOKENS = """
name = "m"

[model]
source = "model.onnx"
inputs = [{ name = "tokens", datatype = "INT64", shape = [-1, -1], min = 0, max = 49, max_length = 6 }]
outputs = [{ name = "y" }]

[serve]
variant = "source"
"""
"""y = the sum of the tokens, looked up; a text has at most 6."""

CITY = """
name = "m"

[model]
source = "model.onnx"
inputs = [{ name = "city", datatype = "BYTES", values = ["Rome", "Oslo"], max_length = 5 }]
outputs = [{ name = "y" }]

[serve]
variant = "source"
"""
"""y = 0 for Rome, 1 for Oslo, and -1 for every city that the model does not know."""


def shops(path: Path, scale: float = 1.0) -> Path:
    """Save the model of ``SHOP``; ``scale`` times the table makes another version."""
    nodes = [
        helper.make_node("Gather", ["table", "shop"], ["row"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Add", ["row", "sum"], ["y"]),
    ]
    table = numpy_helper.from_array((np.arange(SHOPS) * scale).astype(np.float32), "table")
    inputs = [("shop", TensorProto.INT64, ["n"]), ("x", TensorProto.FLOAT, ["n", 2])]
    return _save(path, nodes, inputs, [table, _axis()])


def tokens(path: Path) -> Path:
    """Save the model of ``TOKENS``."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["y"], keepdims=0),
    ]
    table = numpy_helper.from_array(np.arange(SHOPS, dtype=np.float32), "table")
    return _save(path, nodes, [("tokens", TensorProto.INT64, ["n", "length"])], [table, _axis()])


def cities(path: Path) -> Path:
    """Save the model of ``CITY``."""
    known = {"keys_strings": ["Rome", "Oslo"], "values_floats": [0.0, 1.0], "default_float": -1.0}
    nodes = [helper.make_node("LabelEncoder", ["city"], ["y"], domain="ai.onnx.ml", **known)]
    return _save(path, nodes, [("city", TensorProto.STRING, ["n"])], [])


def deployed(
    directory: Path, toml: str, hooks: str = "", overrides: Sequence[str] = (), module: str = "bounds_hooks"
) -> Manifest:
    """Write the model that a manifest is about, the manifest, and a module of hooks; load it.

    Args:
        module: name of the module; one per test file, because a process imports it once.
    """
    save = {"shop": shops, "tokens": tokens, "city": cities}
    next(each for name, each in save.items() if f'name = "{name}"' in toml)(directory / "model.onnx")
    (directory / f"{module}.py").write_text(hooks)
    (directory / "tailcut.toml").write_text(toml)
    return load(directory, environment={}, overrides=overrides)


def _axis() -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, list[str | int]]],
    weights: list[onnx.TensorProto],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "bounded",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
