"""GPU-seconds of a request: what its variant held the device, from the server's own counter to the price."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models import graphs

from tailcut.builder import Holdout
from tailcut.builder.progress import silent
from tailcut.builder.records import Made
from tailcut.builder.speed import served
from tailcut.builder.speed.rounds import Entrant, Rounds
from tailcut.builder.speed.served import held_seconds
from tailcut.errors import BuildError
from tailcut.manifest import CostSettings, load

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
HELD_MS = 4.0
MANIFEST = f"""
name = "linear"
python_path = ["{ROOT}"]
[model]
source = "cpu.onnx"
preprocess = "tests.models.device:preprocess"
inputs = [{{ name = "x", shape = [-1, 4] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[slo]
rate = 50
[batching]
mode = "off"
[build]
rounds = 6
round = "200ms"
"""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    folder = tmp_path_factory.mktemp("device")
    (folder / "tailcut.toml").write_text(MANIFEST)
    (folder / "work").mkdir()
    path = str(graphs.linear(folder / "cpu.onnx"))
    made = [
        Made(name="onnx", runtime="onnxruntime", path=path),
        Made(name="onnx-cuda", runtime="onnxruntime", path=path, settings={"provider": "cuda"}),
    ]
    holdout = Holdout(inputs={"x": np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)})
    entrants = [Entrant("onnx"), Entrant("onnx-cuda", "onnx")]
    return served.run(load(folder / "tailcut.toml"), made, entrants, holdout, folder / "work", silent)


def test_a_request_is_charged_for_as_long_as_it_held_the_device(rounds: Rounds) -> None:
    trials = {name: rounds.trial(name) for name in ("onnx", "onnx-cuda")}
    assert {name: trial.failed for name, trial in trials.items()} == {"onnx": "", "onnx-cuda": ""}
    held_ms = [each.gpu_ms for each in trials["onnx-cuda"].rounds]
    assert len(held_ms) == 6
    for each, found in zip(held_ms, trials["onnx-cuda"].rounds, strict=True):
        assert each is not None
        assert each >= HELD_MS, "no request held it for less"
        assert each <= found.latency_ms, "the slowest requests took longer than one holds the device"


def test_it_is_priced_at_the_gpus_hour(rounds: Rounds) -> None:
    free = rounds.price("onnx-cuda", CostSettings())
    priced = rounds.price("onnx-cuda", CostSettings(gpu_hour=3.6))
    assert priced.gpu_s is not None
    assert priced.gpu_s >= HELD_MS * 1000
    assert priced.money == pytest.approx(priced.gpu_s * 3.6 / 3600)
    assert (free.gpu_s, free.money, free.currency) == (priced.gpu_s, 0.0, "")


def test_a_variant_without_a_device_has_no_figure_and_no_price_of_one(rounds: Rounds) -> None:
    assert [each.gpu_ms for each in rounds.trial("onnx").rounds] == [None] * 6
    priced = rounds.price("onnx", CostSettings(gpu_hour=3.6))
    assert (priced.gpu_s, priced.money) == (None, 0.0)


MORTAL = """
import os
import sys

from tailcut.models.runtimes.onnxruntime import OnnxRuntime

seen = 0
usual = OnnxRuntime.run


def run(self, inputs, outputs):
    global seen
    seen += len(inputs["x"]) == 1
    if seen == 165:
        sys.stderr.write("it met its end here\\n")
        sys.stderr.flush()
        os._exit(1)
    return usual(self, inputs, outputs)


OnnxRuntime.run = run


def hook(rows): ...
"""


def test_a_server_that_ends_under_load_is_not_measured(tmp_path: Path) -> None:
    """What it used of the processor may end with it, and would have made it the cheapest; its last lines say why."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    text = (
        MANIFEST.replace("tests.models.device:preprocess", "mortal:hook")
        .replace("rate = 50", "rate = 250")
        .replace("200ms", "400ms")
    )
    (tmp_path / "tailcut.toml").write_text(text.replace("python_path = [", 'python_path = [".", '))
    (tmp_path / "work").mkdir()
    made = [Made(name="onnx", runtime="onnxruntime", path=str(graphs.linear(tmp_path / "cpu.onnx")))]
    holdout = Holdout(inputs={"x": np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)})
    manifest, entrants = load(tmp_path / "tailcut.toml"), [Entrant("onnx")]
    trial = served.run(manifest, made, entrants, holdout, tmp_path / "work", silent).trial("onnx")
    assert "the last lines of " in trial.failed
    assert "it met its end here" in trial.failed
    assert not trial.rounds


def test_a_page_without_the_counter_is_no_zero() -> None:
    page = 'tailcut_device_busy_seconds_total{model="m",variant="v",version="1"} 12.5\n'
    assert held_seconds(f"# HELP tailcut_device_busy_seconds_total text\n{page}") == 12.5
    with pytest.raises(BuildError, match="the time on the device was not measured"):
        held_seconds("tailcut_ready 1\n")
