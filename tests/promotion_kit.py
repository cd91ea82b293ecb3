"""A model whose versions answer differently, in a registry of its own: y = factor * (x0 + x1), z = factor * x."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.app_kit import FEATURES, HOOKS

from tailcut.manifest import Manifest, load
from tailcut.registry import NewVariant, Registry, Version

MANIFEST = """
name = "m"

[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 2], columns = ["id", "value"] }]
outputs = [{ name = "y", shape = [-1] }, { name = "z", shape = [-1, 2] }]

[batching]
max_rows = 4
max_queue_rows = 64
"""


def save_model(path: Path, factor: float, *, least_rows: int = 1, size: int = 1) -> Path:
    """Save the model.

    Args:
        least_rows: fewer rows in a batch make it fail.
        size: ballast, in numbers, so that loading and forgetting it can be seen in the memory.
    """
    ballast = np.zeros((size,), np.float32)
    weights = [
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
        numpy_helper.from_array(np.array(factor, dtype=np.float32), "factor"),
        numpy_helper.from_array(np.array([0], dtype=np.int64), "first"),
        numpy_helper.from_array(ballast, "ballast"),
        numpy_helper.from_array(np.array([least_rows - 1], dtype=np.int64), "least"),
        numpy_helper.from_array(np.array(0, dtype=np.float32), "zero"),
    ]
    nodes = [
        helper.make_node("Gather", ["ballast", "first"], ["nothing"]),
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Gather", ["x", "least"], ["one"]),
        helper.make_node("Mul", ["one", "zero"], ["none"]),
        helper.make_node("Sum", ["scaled", "nothing", "none"], ["z"]),
        helper.make_node("ReduceSum", ["z", "axis"], ["y"], keepdims=0),
    ]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 2]), ("y", ["n"]), ("z", ["n", 2]))
    }
    graph = helper.make_graph(nodes, "scaled", [values["x"]], [values["y"], values["z"]], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def deployment(
    directory: Path, *, name: str = "m", features: bool = False, more: str = "", overrides: Sequence[str] = ()
) -> Manifest:
    """Write the manifest, which serves what is promoted, and load it."""
    directory.mkdir(exist_ok=True)
    (directory / "app_hooks.py").write_text(HOOKS)
    manifest = MANIFEST.replace('name = "m"', f'name = "{name}"')
    (directory / "tailcut.toml").write_text(manifest + (FEATURES if features else "") + more)
    return load(directory, environment={}, overrides=overrides)


class Promotions:
    """The registry of a deployment, and versions named by their factor."""

    def __init__(self, manifest: Manifest) -> None:
        self.registry = Registry.of(manifest)
        self._manifest = manifest

    def add(self, factor: float, **options: int) -> Version:
        """Add a version with one variant, "onnx"."""
        model = self._manifest.deployment.model
        path = save_model(self._manifest.directory / f"{factor}.onnx", factor, **options)
        return self.registry.add(
            self._manifest.deployment.name,
            source="onnx",
            inputs=model.inputs,
            outputs=model.outputs,
            variants=[NewVariant("onnx", "onnxruntime", path, base=True)],
        )

    def promote(self, version: Version) -> None:
        """Make it the one that is served."""
        self.registry.promote(self._manifest.deployment.name, version.id, "onnx")

    def artifact(self, version: Version) -> Path:
        """The file that a server opens."""
        sha256 = version.variants["onnx"].sha256
        found = [path for path in (self.registry.root / "blobs").rglob("*") if path.is_file() and sha256 in str(path)]
        assert len(found) == 1, found
        return found[0]
