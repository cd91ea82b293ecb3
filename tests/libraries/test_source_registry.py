"""build.sources.registry: what a build on another machine starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.build_kit import live, made
from tests.models import graphs

from tailcut.builder.sources import registry as source
from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.manifest import RegistrySettings as RegistrySection
from tailcut.registry import NewVariant, Registry, digest

X = TensorSpec(name="x", shape=(-1, 4))
Y = TensorSpec(name="y", shape=(-1,))


def manifest(folder: Path, model: Model) -> Manifest:
    return Manifest(Deployment(name="m", model=model, registry=RegistrySection(path="registry")), folder, {})


def model(reference: str = "gone.onnx") -> Model:
    return Model(source=reference, inputs=(X,), outputs=(Y,))


def fetched(folder: Path) -> Path:
    (folder / "work").mkdir(exist_ok=True)
    return folder / "work"


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return graphs.linear(tmp_path / "m.onnx")


def test_an_onnx_base_needs_nothing_but_the_registry(tmp_path: Path, linear: Path) -> None:
    old, new = (
        NewVariant("onnx", "onnxruntime", linear, settings={"threads": 64}),
        NewVariant("int8-dynamic", "onnxruntime", linear),
    )
    version = Registry(tmp_path / "registry").add("m", source="onnx", inputs=(X,), outputs=(Y,), variants=[old, new])
    (found,) = source.fetch(fetched(tmp_path), manifest(tmp_path, model()), "latest")
    assert found.found.details["from_registry"]["version"] == version.id
    assert (found.kind, found.variant, found.runtime, found.trees) == ("onnx", "onnx", "onnxruntime", False)
    assert found.settings == {}, "threads were chosen on the other machine"
    assert Path(found.path) == tmp_path / "work" / "onnx.onnx"
    assert digest(Path(found.path)) == version.variants["onnx"].sha256 == found.found.details["from_registry"]["sha256"]


class Linear(torch.nn.Module):
    """x (batch, 4) -> y (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x))[:, 0]


def torch_version(folder: Path, exported: Path | None = None) -> str:
    """A torch source, and an onnx file of the base that stands for its export."""
    torch.save(Linear().state_dict(), folder / "m.pt")
    variants = [NewVariant("torch", "torch", folder / "m.pt")]
    if exported is not None:
        variants.append(NewVariant("onnx", "onnxruntime", exported, base=True))
        variants.append(NewVariant("int8-dynamic", "onnxruntime", exported))
    return Registry(folder / "registry").add("m", source="torch", inputs=(X,), outputs=(Y,), variants=variants).id


def test_a_torch_base_comes_with_its_export(tmp_path: Path, linear: Path) -> None:
    version = torch_version(tmp_path, linear)
    base = source.fetch(fetched(tmp_path), manifest(tmp_path, model(live(Linear()))), version)
    assert [(each.kind, each.variant) for each in base] == [("torch", "torch"), ("onnx", "onnx")]
    assert [Path(each.path).name for each in base] == ["torch.pt", "onnx.onnx"]


def test_without_the_modules_code_its_export_is_the_reference(tmp_path: Path, linear: Path) -> None:
    version = torch_version(tmp_path, linear)
    (found,) = source.fetch(fetched(tmp_path), manifest(tmp_path, model("not_here:model")), version)
    assert (found.kind, found.variant) == ("onnx", "onnx")
    assert "not_here" in found.found.details["from_registry"]["instead_of"]["torch"]


def test_a_base_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    torch_version(tmp_path)
    with pytest.raises(BuildError, match=r"no base variant of 'm' .* can be opened here: torch: .*not_here"):
        source.fetch(fetched(tmp_path), manifest(tmp_path, model("not_here:model")), "latest")


def test_a_module_whose_code_raises_says_why(tmp_path: Path) -> None:
    torch_version(tmp_path)
    with pytest.raises(BuildError, match=r"torch: model.source returned a str, expected a torch.nn.Module"):
        source.fetch(fetched(tmp_path), manifest(tmp_path, model(live("no module"))), "latest")


def test_another_manifests_tensors_are_refused(tmp_path: Path, linear: Path) -> None:
    variants = [NewVariant("onnx", "onnxruntime", linear)]
    Registry(tmp_path / "registry").add("m", source="onnx", inputs=(X,), outputs=(Y,), variants=variants)
    other = Model(source="m.onnx", inputs=(TensorSpec(name="x", shape=(-1, 5)),), outputs=(Y,))
    with pytest.raises(BuildError, match=r"the inputs of 'm' .* are .*\[-1, 4\].*model.inputs are .*\[-1, 5\]"):
        source.fetch(fetched(tmp_path), manifest(tmp_path, other), "latest")


def test_nothing_promoted_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="model 'm' has no promoted version"):
        source.fetch(fetched(tmp_path), manifest(tmp_path, model()))


def test_a_stored_estimator_is_a_base_by_itself(tmp_path: Path) -> None:
    """It comes from the registry with nothing of model.source, and is known to be trees."""
    from sklearn.ensemble import RandomForestClassifier

    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    forest = RandomForestClassifier(3, random_state=0).fit(rows, rows[:, 0] > 0)
    made_here, _ = made(fetched(tmp_path), live(forest), {"x": rows}, (X,))
    variant = NewVariant("sklearn", made_here.runtime, Path(made_here.path))
    version = Registry(tmp_path / "registry").add("m", source="sklearn", inputs=(X,), outputs=(Y,), variants=[variant])
    (tmp_path / "there").mkdir()
    (found,) = source.fetch(tmp_path / "there", manifest(tmp_path, model("gone:build")), version.id)
    assert (found.kind, found.variant, found.runtime, found.trees) == ("sklearn", "sklearn", "skops", True)
    assert found.live_code == ()
    assert Path(found.path).name == "sklearn.skops"
