"""A pair from the recipe to the registry: steps in processes of their own, and what is served in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from tests.models import tokens

from tailcut.builder.children import StepRunner
from tailcut.builder.recipes import Result
from tailcut.builder.records import Made, spec
from tailcut.builder.steps import CONFIRMATION_FILE, MAKE, SCORE, SELECTION_FILE, TUNE, Step
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Manifest, Model, Slo, TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.registry import NewVariant, Registry

T = TypeVar("T")
pytestmark = [pytest.mark.integration, pytest.mark.quiet]

INPUTS = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
OUTPUTS = (TensorSpec(name="y", shape=(-1,)),)


class Bench:
    """A manifest, its holdout split, and variants that cost as much as they are told to."""

    def __init__(self, folder: Path, runner: StepRunner, longest: int = 256) -> None:
        self.folder = folder
        self.runner = runner
        model = Model(source="onnx.onnx", inputs=INPUTS, outputs=OUTPUTS)
        self.manifest = Manifest(Deployment(name="m", model=model, slo=Slo(rate=1.0)), folder, {})
        selection, confirmation = tokens.holdout(300, longest).split(0.5)
        selection.save(folder / SELECTION_FILE)
        confirmation.save(folder / CONFIRMATION_FILE)
        self.made: list[Made] = []

    def add(self, name: str, **cost: Any) -> Made:
        path = tokens.counting(self.folder / f"{name}.onnx", **cost)
        self.made.append(Made(name=name, runtime="onnxruntime", path=str(path)))
        return self.made[-1]

    def step(self, step: Step[T], target: str, base: str = "") -> T:
        given = spec(step.name, self.manifest, self.folder, self.made, target, base)
        return self.runner.run(given, step.found, timeout_s=120.0)

    def make_pair(self) -> Result:
        return self.step(MAKE, "pair", "onnx")


def test_each_length_goes_to_the_variant_that_is_faster_there(tmp_path: Path, step_runner: StepRunner) -> None:
    bench = Bench(tmp_path, step_runner)
    onnx, int8 = bench.add("onnx", word_layers=16), bench.add("int8-dynamic", row_layers=100)
    spoiled = bench.add("int8-static", shift=-0.4)
    for place, each in enumerate((onnx, int8)):
        tuned = bench.step(TUNE, each.name)
        bench.made[place] = msgspec.structs.replace(each, settings=tuned.settings)
    found = bench.make_pair()
    recipe = found.found
    assert (recipe["short"], recipe["long"], recipe["input"]) == ("onnx", "int8-dynamic", "ids")
    assert 16 <= recipe["at"] < 256
    assert recipe["ratio"] < 0.97
    assert found.reference in {"onnx", "int8-dynamic"}
    assert "accuracy fell" in recipe["dropped"][spoiled.name]

    pair = Made(name="pair", runtime="pair", path=str(tmp_path / "pair.json"),
                settings=found.settings, parts=dict(found.parts))  # fmt: skip
    bench.made.append(pair)
    bench.step(SCORE, "onnx")
    assert bench.step(SCORE, "pair").agreement["max_abs"] < 1e-5, "through both parts"

    registry = Registry(tmp_path / "registry")
    version = registry.add(
        "m", source="onnx", inputs=INPUTS, outputs=OUTPUTS,
        variants=[
            NewVariant(each.name, each.runtime, Path(each.path), settings=each.settings,
                       parts={name: Path(path) for name, path in each.parts.items()})
            for each in bench.made
        ],
    )  # fmt: skip
    registry.promote("m", version.id, "pair")
    served, alone = registry.variant("m"), registry.variant("m", "onnx", version.id)
    both = [open_runtime(each, threads=each.settings.get("threads", 1)) for each in (served, alone)]
    rows = tokens.holdout(300, 256)
    for start in (0, 7):
        answers = [each.run(rows.take(5, start), ["y"])["y"] for each in both]
        np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4)
    for each in both:
        each.close()


def test_one_variant_that_is_the_fastest_everywhere_needs_no_other(tmp_path: Path, step_runner: StepRunner) -> None:
    bench = Bench(tmp_path, step_runner)
    bench.add("onnx", word_layers=4)
    bench.add("int8-dynamic", word_layers=12)
    with pytest.raises(BuildError, match="no pair: onnx is the fastest at every length"):
        bench.make_pair()


def test_rows_of_one_length_need_no_pair(tmp_path: Path, step_runner: StepRunner) -> None:
    bench = Bench(tmp_path, step_runner, longest=16)
    bench.add("onnx")
    bench.add("int8-dynamic")
    with pytest.raises(BuildError, match="every row of the holdout is 16 long"):
        bench.make_pair()


def test_it_takes_two_whose_quality_holds(tmp_path: Path, step_runner: StepRunner) -> None:
    bench = Bench(tmp_path, step_runner)
    bench.add("onnx")
    bench.add("int8-dynamic", shift=-0.4)
    with pytest.raises(BuildError, match=r"it needs two variants, but here is onnx; int8-dynamic: accuracy fell"):
        bench.make_pair()
