"""A whole ``tailcut build`` says no: to spoiled variants, to a slow one, and to a holdout that is too small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.models import spoiling

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = """
name = "spoiled"
[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 32] }}]
outputs = [{{ name = "p", shape = [-1, 10] }}]
[holdout]
source = "holdout.npz"
labels = "label"
slices = ["kind"]
[quality]
budget = {{ accuracy = 0.005 }}
[slo]
p95 = "100ms"
rate = 100
[build]
quantize = true
rounds = {rounds}
round = "200ms"
"""


def build(folder: Path, rows: int, recipes: str, before: str = "", rounds: int = 0) -> SimpleNamespace:
    """Build from the command line; what was printed, and the record's variants."""
    spoiling.classifier(folder / "model.onnx")
    spoiling.holdout(folder / "holdout.npz", rows)
    (folder / "tailcut.toml").write_text(MANIFEST.format(rounds=rounds))
    script = f"{before}from tailcut.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "build", "--recipes", recipes, "--json", "build.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "build.json").read_text())
    return SimpleNamespace(stdout=done.stdout, variants=record["version"]["variants"], promotion=record["promotion"])


SPOIL = "from tests.models.spoiling import spoil; spoil(); "


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return build(tmp_path_factory.mktemp("spoiled"), 6000, "int8-dynamic,int8-static", SPOIL)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    # With six rounds all must agree, and one burst of the machine prevents that. More end as soon as it is decided.
    return build(tmp_path_factory.mktemp("slow"), 1000, "openvino", SPOIL, rounds=24)


def refused(built: SimpleNamespace, name: str) -> str:
    """The reason in the record, which is also what the table says."""
    why: str = built.variants[name]["refused"]
    assert f"{name} refused: {why}" in built.stdout
    return why


def quality(built: SimpleNamespace, name: str) -> dict[str, Any]:
    return built.variants[name]["evidence"]["quality"]


def test_scales_that_are_off_by_a_little_are_refused(spoiled: SimpleNamespace) -> None:
    found = quality(spoiled, "int8-dynamic")
    assert found["outcome"] == "fail"
    (accuracy,) = found["metrics"]
    assert 0.005 < accuracy["lower"] < accuracy["drop"] < 0.15, "a little, and shown to be too much"
    assert refused(spoiled, "int8-dynamic").startswith("accuracy fell 0.0")


def test_a_variant_that_hurts_one_class_alone_is_refused_by_its_slice(spoiled: SimpleNamespace) -> None:
    found = quality(spoiled, "int8-static")
    assert found["outcome"] == "fail"
    (accuracy,) = found["metrics"]
    assert accuracy["outcome"] != "fail", "the average hides it"
    assert accuracy["drop"] < 0.005
    assert [each["value"] for each in found["slices"] if each["outcome"] == "fail"] == [f"class {spoiling.RARE}"]
    assert found["worst_slice"]["drop"] > 0.1
    assert refused(spoiled, "int8-static").startswith(f"slice kind=class {spoiling.RARE}: accuracy fell 0.")


def test_without_rounds_speed_is_not_judged_and_the_source_is_promoted(spoiled: SimpleNamespace) -> None:
    assert "speed was not judged (build.rounds = 0)" in spoiled.stdout
    assert spoiled.promotion["variant"] == "onnx"
    for name in ("onnx", "int8-dynamic", "int8-static"):
        assert not {"load", "speed", "cost"} & set(spoiled.variants[name]["evidence"])


@pytest.mark.quiet  # the build shows that one variant is slower
def test_a_variant_that_is_slower_than_its_reference_is_refused(slow: SimpleNamespace) -> None:
    assert quality(slow, "openvino")["outcome"] == "pass"
    evidence = slow.variants["openvino"]["evidence"]
    assert evidence["bare_ratio"]["1"] > 3.0, "so many times slower it is, whatever else this machine does"
    assert (evidence["speed"]["reference"], evidence["speed"]["outcome"]) == ("onnx", "no")
    assert refused(slow, "openvino").startswith("slower here: ")


@pytest.mark.quiet  # the build shows that one variant is slower
def test_what_is_served_is_the_model_as_it_was(slow: SimpleNamespace) -> None:
    assert slow.promotion["variant"] == "onnx"


def test_two_hundred_rows_decide_nothing_and_the_rows_that_would_are_named(tmp_path: Path) -> None:
    built = build(tmp_path, 200, "int8-dynamic")
    found = quality(built, "int8-dynamic")
    assert found["outcome"] == "inconclusive"
    (accuracy,) = found["metrics"]
    assert accuracy["rows"] == 140
    assert accuracy["rows_needed"] > 140
    assert "140 rows can exclude drops above " in refused(built, "int8-dynamic")
    assert " would decide it" in refused(built, "int8-dynamic")
    assert built.promotion["variant"] == "onnx"
