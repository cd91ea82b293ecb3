"""Parity: which variants are asked, and which of them their values count against."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.graphs import linear

from tailcut.errors import NotInRegistry
from tailcut.manifest import Manifest, TensorSpec, load
from tailcut.manifest.subject import find_subject
from tailcut.parity.run import CACHES_OFF, caches_of, choose_variants, deployment_asker
from tailcut.registry import NewVariant, Registry
from tailcut.registry.evidence import RecipeEvidence, VariantEvidence

MANIFEST = """
name = "m"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y" }]
[cache.tensor]
enabled = true
[registry]
path = "registry"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A promoted version with a source, an exact copy, one that is proven equal, INT8, and one that was refused."""
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    model = linear(tmp_path / "model.onnx")
    proven = VariantEvidence(recipe=RecipeEvidence(exact=True))
    registry = Registry(tmp_path / "registry")
    version = registry.add(
        "m",
        source="onnx",
        inputs=[TensorSpec(name="x", shape=(-1, 4))],
        outputs=[TensorSpec(name="y")],
        variants=[
            NewVariant("int8", "onnxruntime", linear(tmp_path / "int8.onnx", seed=1)),
            NewVariant("onnx", "onnxruntime", model),
            NewVariant("openvino", "onnxruntime", linear(tmp_path / "openvino.onnx", seed=2), evidence=proven),
            NewVariant("refused", "onnxruntime", linear(tmp_path / "refused.onnx", seed=3), refused="not faster"),
            NewVariant("failed", "onnxruntime", None, refused="could not be built"),
        ],
    )
    registry.promote("m", version.id, "onnx")
    return tmp_path


def uncached(folder: Path, *overrides: str) -> Manifest:
    return find_subject([folder], overrides=overrides).again(CACHES_OFF).manifest


def test_all_that_may_be_served_are_asked_and_exact_ones_are_judged(folder: Path) -> None:
    found = choose_variants(uncached(folder), ())
    assert [(one.name, one.exact, one.judged) for one in found] == [
        ("onnx", True, True), ("int8", False, False), ("openvino", True, True),
    ]  # fmt: skip


def test_a_variant_that_is_named_is_judged_by_its_values(folder: Path) -> None:
    (found,) = choose_variants(uncached(folder), ("int8",))
    assert (found.name, found.exact, found.judged) == ("int8", False, True)
    with pytest.raises(NotInRegistry, match="no variant 'int4'"):
        choose_variants(uncached(folder), ("int4",))


def test_caches_are_off_unless_a_setting_turns_one_on(folder: Path) -> None:
    assert caches_of(uncached(folder).deployment) == "all off"
    again = uncached(folder, "cache.tensor.enabled=true")
    assert caches_of(again.deployment) == "on: outputs by tensor"


def test_no_fallback_answers_for_the_variant_that_is_asked(folder: Path) -> None:
    """Given a fallback that needs a cache, too; then both are off together."""
    more = '\n[serve]\nfallback = ["int8", "stale"]\n'
    (folder / "tailcut.toml").write_text(MANIFEST.replace("enabled = true", 'enabled = true\nstale_for = "1m"') + more)
    assert load(folder).deployment.serve.fallback == ("int8", "stale")
    assert uncached(folder).deployment.serve.fallback == ()


@pytest.mark.parametrize("url", ["http://host:1/", "http://host:1", "http://host:1/predict/other"])
def test_a_deployments_address_may_name_its_route(folder: Path, url: str) -> None:
    asker = deployment_asker(url, uncached(folder).deployment, 1.0)
    assert asker.url == ("http://host:1/predict/other" if "other" in url else "http://host:1/predict/m")
