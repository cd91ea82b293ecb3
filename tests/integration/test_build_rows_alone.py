"""A variant whose rows run alone, through the steps of a build: scored, tuned, raced and measured as it is served."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pytest
from tests.models import coupled

from tailcut.builder import Holdout
from tailcut.builder.builder import Building, Candidate
from tailcut.builder.children import StepRunner
from tailcut.builder.host_capabilities import look
from tailcut.builder.progress import silent
from tailcut.builder.records import Made, spec
from tailcut.builder.speed import served
from tailcut.builder.speed.rounds import Entrant
from tailcut.builder.steps import CONFIRMATION_FILE, RACE, SCORE, SELECTION_FILE, TUNE, Step
from tailcut.manifest import Manifest, load
from tailcut.registry.evidence import Scores

T = TypeVar("T")
pytestmark = [pytest.mark.integration, pytest.mark.quiet]

MANIFEST = """
name = "rows"
[model]
source = "onnx.onnx"
inputs = [{ name = "x", shape = [-1, 8] }]
outputs = [{ name = "y", shape = [-1] }, { name = "z", shape = [-1, 2] }]
[batching]
max_rows = 8
[quality]
budget = { mae = 0.1 }
[slo]
rate = 50
[build]
rounds = 6
round = "200ms"
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    x = np.random.default_rng(0).normal(size=(120, coupled.WIDTH)).astype(np.float32)
    for name, part in zip((SELECTION_FILE, CONFIRMATION_FILE), (slice(0, 60), slice(60, 120)), strict=True):
        Holdout(inputs={"x": x[part]}, labels=x[part].sum(axis=1)).save(tmp_path / name)
    return load(tmp_path, environment={})


@pytest.fixture
def made(tmp_path: Path) -> list[Made]:
    paths = {"onnx": coupled.mlp(tmp_path / "onnx.onnx"), "int8-dynamic": coupled.quantised(tmp_path / "int8.onnx")}
    return [Made(name=name, runtime="onnxruntime", path=str(path)) for name, path in paths.items()]


def test_a_build_times_and_judges_rows_one_by_one(
    manifest: Manifest, made: list[Made], step_runner: StepRunner
) -> None:
    def step(made: list[Made], step: Step[T], target: str = "") -> T:
        given = spec(step.name, manifest, manifest.directory, made, target)
        return step_runner.run(given, step.found, timeout_s=120.0)

    found = {each.name: step(made, SCORE, each.name) for each in made}
    assert {name: each.rows_alone for name, each in found.items()} == {"onnx": False, "int8-dynamic": True}
    neighbour = found["int8-dynamic"].neighbour
    assert neighbour is not None
    assert neighbour.operators == ["DynamicQuantizeLinear"]
    assert set(neighbour.outputs) == {"y", "z"}
    scored = [msgspec.structs.replace(each, rows_alone=found[each.name].rows_alone) for each in made]
    tuned = {each.name: step(scored, TUNE, each.name) for each in scored}
    assert [cost.rows for cost in tuned["onnx"].costs] == [1, 2, 4, 8]
    assert [cost.rows for cost in tuned["int8-dynamic"].costs] == [1]
    assert (tuned["onnx"].batch_rows, tuned["int8-dynamic"].batch_rows) == (8, 1)
    raced = step(scored, RACE).ms["int8-dynamic"]
    assert np.median(raced[8]) > 4 * np.median(raced[1]), "eight rows are eight runs"


def test_under_load_it_is_served_row_by_row(manifest: Manifest, made: list[Made], tmp_path: Path) -> None:
    """What the build measured is not in the file: without the record this server would share batches."""
    odd = Made(name="odd", runtime="onnxruntime", path=str(coupled.less_mean(tmp_path / "odd.onnx")), rows_alone=True)
    (tmp_path / "work").mkdir()
    holdout = Holdout.load(tmp_path / SELECTION_FILE)
    names = ["onnx", "odd"]
    entrants = [Entrant(name) for name in names]
    rounds = served.run(manifest, [made[0], odd], entrants, holdout, tmp_path / "work", silent)
    assert not any(rounds.trial(name).failed for name in names)
    logs = {name: (tmp_path / "work" / f"serve-{name}.log").read_text() for name in names}
    assert {name: "each row runs alone" in log for name, log in logs.items()} == {"onnx": False, "odd": True}


@pytest.mark.parametrize("alone", [True, False])
def test_what_scoring_found_goes_with_the_variant(
    manifest: Manifest, made: list[Made], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(StepRunner, "run", lambda *_, **__: Scores(rows_alone=alone))
    running = Building(manifest, manifest.directory, look(), silent, StepRunner())
    running.candidates["onnx"] = candidate = Candidate("onnx", "onnxruntime", made=made[0])
    running.score(candidate)
    assert candidate.made is not None
    assert candidate.made.rows_alone is alone
    assert candidate.evidence.rows_alone is alone
