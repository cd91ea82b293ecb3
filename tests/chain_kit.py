"""What tests of chained models share: "parent" has features that "child" computes, in a folder of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHILD = """
name = "child"
[model]
source = "model.onnx"
preprocess = "child_hooks:preprocess"
postprocess = "child_hooks:postprocess"
inputs = [{ name = "x", shape = [-1, 3] }]
outputs = [{ name = "y", shape = [-1, 3] }]
[serve]
variant = "source"
"""
HOOKS = """
import numpy as np

calls = []

def preprocess(rows):
    calls.append([row["text"] for row in rows])
    if any(row["text"] == "bad" for row in rows):
        raise ValueError("no such text")
    return {"x": np.array([[len(row["text"]), 1.0, 0.5] for row in rows], np.float32)}

def postprocess(outputs):
    return [{"embedding": row} for row in outputs["y"]]
"""
PARENT = """
name = "parent"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4], columns = ["embedding", "prior"] }]
outputs = [{ name = "y", shape = [-1, 4] }]
[serve]
variant = "source"
[features]
entity = ["text"]
[[features.groups]]
name = "text"
model = "child"
key = ["text"]
columns = ["embedding"]
ttl = "1h"
[[features.groups]]
name = "priors"
function = "parent_features:priors"
key = ["text"]
columns = ["prior"]
ttl = "1h"
[cache.entity]
enabled = true
"""
PRIORS = "def priors(keys, context):\n    return [{'prior': 100.0} for _ in keys]\n"


def scaled(path: Path, factor: float, width: int, output: str = "y") -> None:
    """Save x -> factor * x."""
    node = helper.make_node("Mul", ["x", "factor"], [output])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("x", output)]
    factors = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    graph = helper.make_graph([node], "scaled", ends[:1], ends[1:], factors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def add_chain(folder: Path) -> Path:
    """Write both models into subfolders; return the folder."""
    for name, manifest, factor, width in (("child", CHILD, 2.0, 3), ("parent", PARENT, 10.0, 4)):
        (folder / name).mkdir(parents=True)
        scaled(folder / name / "model.onnx", factor, width)
        (folder / name / "tailcut.toml").write_text(manifest)
    (folder / "child" / "child_hooks.py").write_text(HOOKS)
    (folder / "parent" / "parent_features.py").write_text(PRIORS)
    return folder
