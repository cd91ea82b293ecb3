"""``tailcut simulate --measure``: a deployment with features, slow hooks and a process is simulated as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.models import graphs
from tests.scale import sized

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.profiler.deployments import measure

pytestmark = pytest.mark.integration

MANIFEST = """
name = "known"
python_path = ["."]
[model]
source = "model.onnx"
preprocess = "known_hooks:preprocess"
postprocess = "known_hooks:postprocess"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
variant = "source"
[slo]
p95 = "100ms"
timeout = "1s"
rate = 40
[batching]
max_rows = 4
[pool]
executor = "process"
executors = 1
[features]
entity = ["id"]
cache = "off"
[[features.groups]]
name = "values"
key = ["id"]
columns = ["value"]
ttl = "1h"
function = "known_hooks:values"
[ladder]
traffic = "known_hooks:traffic"
"""

HOOKS = """
import json
import time

import numpy as np


def values(keys, context):
    time.sleep(0.006)
    return [{"value": float(key[0])} for key in keys]


def preprocess(rows):
    time.sleep(0.004)
    return {"x": np.array([[row["value"]] * 4 for row in rows], np.float32)}


def postprocess(outputs):
    return [float(each) for each in outputs["y"]]


def traffic(seed):
    while True:
        for number in range(50):
            yield json.dumps({"entities": [number]}).encode()
"""


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "known_hooks.py").write_text(HOOKS)
    monkeypatch.setattr(measure, "_REQUESTS", sized(100, 200))
    monkeypatch.setattr(measure, "_SHORTEST_S", sized(1.0, 2.0))
    monkeypatch.setattr(measure, "_WARMUP_S", sized(0.3, 1.0))
    monkeypatch.setattr(measure, "_PROBE_S", sized(1.0, 2.0))
    return tmp_path


@pytest.mark.quiet
def test_features_hooks_and_executor_are_measured_and_simulated(
    deployed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 ms of a source, 4 ms of a hook that waits: a request takes at least 10 ms, and eight hooks bear 2,000/s."""
    out = deployed / "out.json"
    arguments = ["simulate", "--manifest", str(deployed), "--measure", "--rate", "30", "--json", str(out)]
    assert run(arguments) in {ExitCode.OK, ExitCode.FAILED}
    said = capsys.readouterr().out
    assert said.startswith("measured here now at ")
    assert "1 x process" in said
    assert "features: 100.0% of requests wait for a source" in said
    assert "values: 0.0% hits, " in said
    found = json.loads(out.read_text())
    served = found["assumed"]["deployed"]
    assert (served["executor"], served["executors"]) == ("process", 1)
    for one in served["costs"]:
        assert one["fetch_ms"] >= 6.0
        assert 3.5 <= one["preprocess_ms"] < 15.0, "less what it waited for a core"
        assert one["preprocess_threads"] > 0.9
        assert one["postprocess_threads"] < 0.5, "a quick hook runs on the loop"
        assert one["cached"] == 0.0
        assert 0.02 < one["loop_ms"] < 5.0
    assert served["hook_wait"] > 0.5
    (line,) = found["lines"]
    assert line["p50_ms"] > 9.0
    assert line["shed"] == 0.0


def test_without_figures_the_first_line_says_what_is_missing(
    deployed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["simulate", "--manifest", str(deployed), "--cost", "1=1ms", "--rate", "30"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
        "not included: 1 feature group, preprocess, postprocess; assumed: an executor without overhead"
    )
    assert first.endswith("--measure serves the deployment here under its traffic and measures them")
    run(["simulate", "--manifest", str(deployed), "--measure", "--set", "ladder.traffic=", "--rate", "30"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("--measure found no traffic: give --payloads, or set ladder.traffic in the manifest")
    assert run(["simulate", "--manifest", str(deployed), "--measure", "--request-cpu", "1ms"]) == ExitCode.USAGE
    assert "--request-cpu and --measure were both given" in capsys.readouterr().err
