"""Variants under load are warmed up with kept rows, or within the limits that the build found in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailcut.builder import Holdout
from tailcut.builder.holdouts import kept_rows
from tailcut.builder.progress import silent
from tailcut.builder.records import Made
from tailcut.builder.speed import served
from tailcut.builder.speed.rounds import Entrant
from tailcut.manifest import load

pytestmark = pytest.mark.integration

MANIFEST = """
name = "years"
[model]
source = "years.onnx"
inputs = [{ name = "year", datatype = "INT64" }]
outputs = [{ name = "y", shape = [-1] }]
[batching]
max_rows = 2
[build]
rounds = 6
round = "100ms"
"""

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
years (int64[n] year) => (float[n] y) <int64 first = {1950}, float[4] table = {1, 2, 3, 4}> {
    place = Sub (year, first)
    y = Gather (table, place)
}
"""


@pytest.mark.parametrize(
    ("bounds", "keep", "warm"),
    [([], 0, False), ([{"input": "year", "min": 1950, "max": 1953}], 0, True), ([], 4, True)],
    ids=["nothing is known", "limits", "kept rows"],
)
def test_a_model_that_takes_no_zeros_is_measured(
    tmp_path: Path, bounds: list[dict[str, Any]], keep: int, warm: bool
) -> None:
    import onnx

    onnx.save(onnx.parser.parse_model(GRAPH), str(tmp_path / "years.onnx"))
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "work").mkdir()
    made = [Made(name="onnx", runtime="onnxruntime", path=str(tmp_path / "years.onnx"))]
    holdout = Holdout(inputs={"year": np.arange(1950, 1954)}, labels=np.arange(4.0))
    manifest = load(tmp_path, environment={})
    kept_rows.write(tmp_path / "work", kept_rows.choose(holdout, {}, manifest.deployment.model, [], keep))
    rounds = served.run(manifest, made, [Entrant("onnx")], holdout, tmp_path / "work", silent, bounds)
    trial = rounds.trial("onnx")
    assert not trial.failed
    assert all(each.errors == 0 for each in trial.rounds)
    assert ("not warmed up" in (tmp_path / "work" / "serve-onnx.log").read_text()) is not warm
