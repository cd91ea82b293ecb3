"""Drift from the build to the alarm: a model is built, served and asked for rows that are other than its holdout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.integration.serving import Served
from tests.wait_kit import block_until

from tailcut.build import Holdout
from tailcut.cli.app import run
from tailcut.observe.drift.sketch import NAME, decode
from tailcut.registry import Registry
from tailcut.registry.documents import encode

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("warm_builds")]

ROOT = Path(__file__).resolve().parents[2]
GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] x) => (float[n] y) { s = ReduceSum<keepdims = 0>(x, a) y = Sigmoid(s) }
"""
MANIFEST = f"""
name = "m"
python_path = [{str(ROOT)!r}]
[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 2], columns = ["age", "income"] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[holdout]
source = "tests.integration.test_drift:holdout"
[quality]
budget = {{ mae = 0.1 }}
[build]
recipes = ["onnx"]
rounds = 0
[drift]
window = "1s"
[features]
entity = ["id"]
[[features.groups]]
name = "person"
key = ["id"]
columns = ["age", "income"]
ttl = "1h"
function = "tests.integration.test_drift:people"
"""


def rows(seed: int, count: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32) + np.float32([0, shift])


def holdout() -> Holdout:
    """Called by the build."""
    inputs = rows(0, 1000)
    return Holdout(inputs={"x": inputs}, labels=(inputs.sum(axis=1) > 0).astype(np.float64))


def people(keys: list[tuple[int]], context: object) -> list[dict[str, float]]:
    """The feature group's function."""
    return [{"age": float(key % 3), "income": 1.0} for (key,) in keys]


def ask(server: Served, seed: int, shift: float) -> None:
    data = rows(seed, 20, shift).ravel().tolist()
    tensor = {"name": "x", "shape": [20, 2], "datatype": "FP32", "data": data}
    status, found = server.post("/v2/models/m/infer", {"inputs": [tensor]})
    assert status == 200, found


def metric(server: Served, series: str) -> float:
    found = re.search(rf"(?m)^{re.escape(series)} (\S+)$", server.metrics())
    return float(found[1]) if found else float("nan")


def test_what_differs_from_the_holdout_is_told_and_what_does_not_is_not(tmp_path: Path) -> None:
    graph = onnx.parser.parse_model(GRAPH)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "a"))
    onnx.save(graph, str(tmp_path / "model.onnx"))
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    assert run(["build", "-m", str(tmp_path)]) == 0
    registry = Registry(tmp_path / ".tailcut" / "registry")
    version = registry.version("m")
    path = registry.file(version, NAME)
    assert path is not None
    reference = decode(path.read_bytes())
    assert [each.name for each in reference.inputs] == ["age", "income"]
    assert [each.name for each in reference.outputs["onnx"]] == ["y"]
    with Served(tmp_path, prepared=True) as server:
        seeds = iter(range(1, 100_000))
        block_until(lambda: ask(server, next(seeds), 1.0) or "input income (PSI " in server.log)
        (line,) = [each for each in server.log.splitlines() if "the holdout" in each]
        assert "input age" not in line
        assert " INFO " in line, "the warning is that of the alerts"
        income, age = '{column="income",model="m",role="input"}', '{column="age",model="m",role="input"}'
        assert metric(server, 'tailcut_drift_alarms_total{model="m"}') == 1
        block_until(lambda: metric(server, f"tailcut_drift_active{income}") == 1)
        assert metric(server, f"tailcut_drift_psi{income}") > 0.3 > metric(server, f"tailcut_drift_psi{age}")
        assert metric(server, f"tailcut_drift_active{age}") == 0

    with Served(tmp_path, prepared=True, settings=["drift.window=1h"]) as server:
        for number in range(30):
            assert server.post("/predict/m", {"entities": [7, number % 2]})[0] == 200
        block_until(lambda: metric(server, 'tailcut_drift_rows_total{model="m",rows="all"}') == 60)
        assert metric(server, 'tailcut_drift_rows_total{model="m",rows="counted"}') == 3, "each entity once"

    # An entry of before there were sketches.
    header = tmp_path / ".tailcut/registry/models/m/versions" / version.id / "version.json"
    plain = json.loads(header.read_bytes())
    del plain["files"][NAME]
    header.write_bytes(encode(plain))
    with Served(tmp_path, prepared=True) as server:
        ask(server, 1, 0.0)
        assert f"version {version.id} keeps no sketches of its holdout" in server.log
        assert "`tailcut build` adds them" in server.log
        assert "tailcut_drift_" not in server.metrics()

    with Served(tmp_path, prepared=True, settings=["serve.variant=source"]) as server:
        ask(server, 1, 0.0)
        assert "drift of m is not watched: variant source was not built" in server.log
