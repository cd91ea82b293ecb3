"""A build that starts from the registry's base: its source model is not there any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models import tokens

from tailcut.builder import host_capabilities
from tailcut.builder.builder import Building
from tailcut.builder.children import StepRunner
from tailcut.builder.progress import silent
from tailcut.builder.steps import CONFIRMATION_FILE, SELECTION_FILE
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.manifest import RegistrySettings as RegistrySection
from tailcut.registry import NewVariant, Registry, digest

pytestmark = pytest.mark.integration

INPUTS = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
OUTPUTS = (TensorSpec(name="y", shape=(-1,)),)


@pytest.fixture
def building(tmp_path: Path, step_runner: StepRunner) -> Building:
    model = Model(source="gone.onnx", inputs=INPUTS, outputs=OUTPUTS)
    registry = RegistrySection(path=str(tmp_path / "registry"))
    work = tmp_path / "work"
    work.mkdir()
    for part, file in zip(tokens.holdout(100).split(0.5), (SELECTION_FILE, CONFIRMATION_FILE), strict=True):
        part.save(work / file)
    manifest = Manifest(Deployment(name="m", model=model, registry=registry), tmp_path, {})
    return Building(manifest, work, host_capabilities.look(), silent, step_runner)


def test_the_base_is_the_source_of_what_is_made_here(building: Building, tmp_path: Path) -> None:
    kept = tokens.counting(tmp_path / "m.onnx")
    variants = [NewVariant("onnx", "onnxruntime", kept, settings={"threads": 64})]
    registry = Registry(tmp_path / "registry")
    version = registry.add("m", source="onnx", inputs=INPUTS, outputs=OUTPUTS, variants=variants)
    subject = building.take_base(version.id)
    assert (subject.kind, building.source) == ("onnx", "onnx")
    (candidate,) = building.made
    assert (candidate.base, candidate.reference, candidate.refused) == (True, "", "")
    assert candidate.sha256 == digest(kept)
    assert candidate.evidence.metrics["accuracy"] == 1.0
    assert candidate.evidence.recipe.details["from_registry"]["version"] == version.id
    building.tune(candidate)
    assert candidate.made is not None
    assert candidate.evidence.tuning is not None
    assert candidate.made.settings == candidate.evidence.tuning.settings
    assert candidate.made.settings["threads"] <= building.here.cores


def test_without_a_version_there_is_nothing_to_build_from(building: Building) -> None:
    with pytest.raises(BuildError, match="model 'm' has no version"):
        building.take_base("latest")
