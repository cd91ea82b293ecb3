"""registry: what may be opened on which machine, and artifacts that run code."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.registry_kit import AVX2, X, Y, add

from tailcut.common.fingerprint import FLAGS, Machine
from tailcut.errors import ArtifactError
from tailcut.registry import NewVariant, Registry, state_of
from tailcut.registry.records import SCHEMA

VNNI = replace(AVX2, flags=(*FLAGS[:7], "avx512_vnni"), processor="Intel Xeon 8481C")


def on(tmp_path: Path, machine: Machine) -> Registry:
    """The same registry, seen from a machine."""
    return Registry(tmp_path / "registry", machine=machine)


def test_on_the_machine_that_built_it_a_variant_is_trusted(tmp_path: Path) -> None:
    version = add(on(tmp_path, AVX2), tmp_path)
    assert on(tmp_path, AVX2).variant("flights", "int8", version.id).trust.level == "trusted"
    keys = version.variants["int8"].keys
    assert keys is not None
    assert (keys.numerics.isa, keys.performance.processor, keys.load.version) == ("avx2", "AMD EPYC 7763", "1.31.1")
    assert version.variants["fp16"].keys is None


def test_a_variant_of_another_instruction_set_is_not_trusted(tmp_path: Path) -> None:
    version = add(on(tmp_path, AVX2), tmp_path)
    there = on(tmp_path, VNNI)
    there.promote("flights", version.id, "int8")
    with pytest.raises(ArtifactError, match=r"unverified here.*avx2 where it was built, avx512\+vnni here") as refused:
        there.variant("flights")
    assert "`tailcut build --from-registry`" in refused.value.hint
    assert "serve one of its base: torch, onnx" in refused.value.hint
    allowed = there.variant("flights", unverified=True)
    assert (allowed.name, allowed.trust.level) == ("int8", "unverified")


def test_the_base_opens_everywhere_and_is_to_be_measured_again(tmp_path: Path) -> None:
    version = add(on(tmp_path, AVX2), tmp_path)
    arm = replace(AVX2, architecture="aarch64", flags=("asimd",), processor="Neoverse-V2")
    for name in ("torch", "onnx"):
        found = on(tmp_path, arm).variant("flights", name, version.id)
        assert found.trust.level == "remeasure"
        assert "AMD EPYC 7763 where it was built, Neoverse-V2 here" in found.trust.reason
    with pytest.raises(
        ArtifactError, match="cannot be opened here: architecture: x86_64 where it was built, aarch64 here"
    ):
        on(tmp_path, arm).variant("flights", "int8", version.id, unverified=True)
    assert on(tmp_path, arm).artifact("flights", "int8", version.id).sha256, (
        "to build from, the machine does not matter"
    )


def test_building_again_on_this_machine_judges_it_here(tmp_path: Path) -> None:
    first = add(on(tmp_path, AVX2), tmp_path)
    again = add(on(tmp_path, VNNI), tmp_path)
    assert again.id == first.id
    assert on(tmp_path, VNNI).variant("flights", "int8", first.id).trust.level == "trusted"


@pytest.mark.parametrize(
    ("schema", "way_out"),
    [
        (1, "an earlier tailcut wrote it: run `tailcut build` to make the version again, or delete its folder"),
        (SCHEMA + 1, "upgrade tailcut, or build the model again with this version"),
    ],
)
def test_a_record_of_another_form_is_refused_whatever_is_in_it(tmp_path: Path, schema: int, way_out: str) -> None:
    registry = on(tmp_path, AVX2)
    version = add(registry, tmp_path)
    path = registry.root / "models" / "flights" / "versions" / version.id / "version.json"
    record = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(record | {"schema": schema, "variants": [], "evidence": {"seed": 2}}))
    with pytest.raises(ArtifactError, match=f"has schema {schema}, but this tailcut reads schema {SCHEMA}") as refused:
        registry.version("flights", version.id)
    assert refused.value.hint == way_out


def test_states_go_from_candidate_to_passed_promoted_and_retired(tmp_path: Path) -> None:
    registry = on(tmp_path, AVX2)
    version = add(registry, tmp_path, refused="auc fell 0.012, budget 0.004")
    other = add(registry, tmp_path, b"other")

    def states() -> dict[str, str]:
        record = registry.version("flights", version.id)
        return {name: state_of(record, name, registry.promotion("flights")) for name in record.variants}

    assert states() == {"torch": "passed", "onnx": "passed", "int8": "candidate", "fp16": "candidate"}
    registry.promote("flights", version.id, "onnx")
    assert states()["onnx"] == "promoted"
    with pytest.raises(ArtifactError, match=f"version {version.id} .* is promoted"):
        registry.retire("flights", version.id)
    registry.promote("flights", other.id, "onnx")
    assert registry.retire("flights", version.id).retired
    assert set(states().values()) == {"retired"}
    for refused in (
        lambda: registry.variant("flights", "onnx", version.id),
        lambda: registry.promote("flights", version.id, "onnx", force=True),
    ):
        with pytest.raises(ArtifactError, match="was retired at"):
            refused()
    add(registry, tmp_path, refused="auc fell 0.012, budget 0.004")
    assert states()["onnx"] == "passed", "built again, it is back"


@pytest.mark.parametrize("runtime", ["pickle", "sklearn"])
def test_a_pickle_is_opened_on_trust_only(tmp_path: Path, runtime: str) -> None:
    registry = on(tmp_path, AVX2)
    (tmp_path / "model").write_bytes(pickle.dumps({"coefficients": [1.0]}))
    version = registry.add(
        "flights", source="model", inputs=X, outputs=Y, variants=[NewVariant("model", runtime, tmp_path / "model")]
    )
    with pytest.raises(ArtifactError, match="is a pickle, and loading a pickle runs the code in it") as refused:
        registry.variant("flights", "model", version.id)
    assert "--trust" in refused.value.hint
    assert registry.variant("flights", "model", version.id, trust=True).size_bytes > 0
