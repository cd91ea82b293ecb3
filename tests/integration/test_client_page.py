"""The code of docs/how-to/client.md runs as it is printed, against a server of the model that it speaks of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.docs.pages import ROOT, blocks
from tests.integration.serving import Served

pytestmark = pytest.mark.integration

MANIFEST = """
name = "risk"

[model]
source = "risk.onnx"
inputs = [{ name = "features", shape = [-1, 2], columns = ["age", "income"] }]
outputs = [{ name = "probability" }]

[serve]
variant = "source"
"""


def save_model(path: Path) -> None:
    """Save features (n, 2) -> probability (n): the sigmoid of their sum."""
    axis = numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")
    nodes = [
        helper.make_node("ReduceSum", ["features", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sigmoid", ["sum"], ["probability"]),
    ]
    inputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 2])]
    outputs = [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "risk", inputs, outputs, [axis])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "how-to" / "client.md"
    code = "\n".join(text for language, text in blocks(page) if language == "python")
    assert "http://127.0.0.1:8700" in code
    save_model(tmp_path / "risk.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    with Served(tmp_path, prepared=True) as server:
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(code.replace(":8700", f":{server.port}"), str(page), "exec"), names)
        names["client"].close()  # type: ignore[attr-defined]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("{'probability': ")
    assert " source " in said[0]
    assert said[1] == "(2,) off"
    assert said[2].startswith("input 'features' has datatype 'FP64', expected FP32 -> ")
    assert said[3] == "['source']"
    assert len(said[4].strip("[]").split(", ")) == 10
