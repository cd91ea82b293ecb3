"""Opening a deployment: what does not work is found at warm-up, and what was opened is closed again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models import graphs

from tailcut.core.validation import InputSpec
from tailcut.engine import opening
from tailcut.errors import StartError
from tailcut.manifest import load
from tailcut.observe.recorder import Recorder
from tailcut.testing.runtimes import StubRuntime

MANIFEST = """
name = "linear"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4], columns = ["id", "b", "c", "d"] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
variant = "source"
[batching]
max_rows = 4
"""

BROKEN_FEATURES = """
[features]
entity = ["id"]
database = "sqlite:///nowhere/missing.db"
[[features.groups]]
name = "g"
key = ["id"]
columns = ["b", "c", "d"]
sql = "SELECT id, b, c, d FROM t WHERE id IN (:keys)"
ttl = "10s"
"""


def test_a_model_that_answers_another_number_of_rows_never_becomes_ready() -> None:
    specs = (InputSpec("x", "FP32", (-1, 2)),)
    fixed = StubRuntime(lambda inputs: {"y": np.zeros(1, np.float32)})
    with pytest.raises(StartError, match=r"warm-up failed at 2 rows: output 'y' has shape \[1\] for a batch of 2"):
        opening.warm_up(fixed, specs, ("y",), 4)


def test_runtimes_are_closed_where_features_do_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST + BROKEN_FEATURES)
    stub = StubRuntime(lambda inputs: {"y": inputs["x"][:, 0]})
    monkeypatch.setattr(opening, "open_runtime", lambda *_, **__: stub)
    with pytest.raises(StartError):
        asyncio.run(opening.open_deployment(load(tmp_path / "tailcut.toml"), Recorder()))
    assert stub.batches, "it was warmed up"
    assert stub.closed


@pytest.mark.parametrize(("evidence", "merges"), [({}, True), ({"merge": True}, True), ({"merge": False}, False)])
def test_the_variants_evidence_decides_whether_requests_share_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: dict[str, bool], merges: bool
) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path / "tailcut.toml")
    plain = opening.find_variant(manifest)
    variant = replace(plain, evidence=evidence)
    monkeypatch.setattr(opening, "find_variant", lambda _: variant)

    async def main() -> None:
        opened = await opening.open_deployment(manifest, Recorder())
        assert opened.merges is merges
        assert opened.path.dispatcher.planner.merge is merges
        await opened.path.dispatcher.stop(5)

    asyncio.run(main())
