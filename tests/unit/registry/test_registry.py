"""registry: adding, promoting, finding, and everything that can go wrong on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import TensorSpec
from tailcut.registry import NewVariant, Registry, VariantEvidence, Version, VersionEvidence

X = (TensorSpec(name="x", shape=(-1, 4)),)
Y = (TensorSpec(name="y"),)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def add(registry: Registry, content: bytes = b"weights", *, model: str = "flights", refused: str = "") -> Version:
    registry.root.parent.mkdir(exist_ok=True)
    artifact = registry.root.parent / "artifact"
    artifact.write_bytes(content)
    return registry.add(
        model,
        source="torch",
        inputs=X,
        outputs=Y,
        variants=[
            NewVariant("torch", "torch", artifact, evidence=VariantEvidence(metrics={"auc": 0.75})),
            NewVariant("onnx", "onnxruntime", artifact, refused=refused),
            NewVariant("int8-dynamic", "onnxruntime", None, refused="nothing to quantise"),
        ],
        evidence=VersionEvidence(versions={"onnx": "1.18"}),
    )


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_was_added_is_found_again(registry: Registry) -> None:
    version = add(registry)
    found = registry.variant("flights", "torch", version.id)
    assert found.artifact.read_bytes() == b"weights"
    assert (found.inputs, found.outputs, found.version) == (X, Y, version.id)
    assert found.evidence == VariantEvidence(metrics={"auc": 0.75})
    assert registry.version("flights", "latest") == version
    listed = registry.list()[0]
    assert listed.id == version.id
    assert listed.evidence == VersionEvidence(), "quick to list"
    assert listed.variants["torch"].evidence == VariantEvidence()


def test_the_same_content_gives_the_same_id_and_one_artifact(registry: Registry) -> None:
    first, again, other = add(registry), add(registry), add(registry, b"other")
    assert first.id == again.id != other.id
    assert len(list(registry.root.glob("blobs/sha256/*/*"))) == 2
    assert [version.id for version in registry.list("flights")] == [other.id, first.id]


def test_promotion_decides_what_is_served_and_can_go_back(registry: Registry) -> None:
    first, second = add(registry), add(registry, b"other")
    registry.promote("flights", first.id, "onnx")
    assert registry.variant("flights").name == "onnx"
    registry.promote("flights", "latest", "torch")
    assert (registry.variant("flights").version, registry.variant("flights").name) == (second.id, "torch")
    assert registry.variant("flights", "onnx").version == second.id
    registry.promote("flights", first.id, "onnx")
    assert registry.variant("flights").version == first.id


def test_a_refused_variant_is_promoted_by_force_only(registry: Registry) -> None:
    version = add(registry, refused="auc fell 0.012, budget 0.004")
    with pytest.raises(ArtifactError, match=r"was refused: auc fell 0\.012"):
        registry.promote("flights", version.id, "onnx")
    assert registry.promotion("flights") is None
    registry.promote("flights", version.id, "onnx", force=True)
    assert registry.variant("flights").refused == "auc fell 0.012, budget 0.004"


def test_what_is_not_there_is_named_with_what_is(registry: Registry) -> None:
    with pytest.raises(ArtifactError, match="model 'flights' has no promoted version") as nothing:
        registry.variant("flights")
    assert "models here: none" in nothing.value.hint
    version = add(registry)
    with pytest.raises(ArtifactError, match="has no version '0123'") as wrong:
        registry.version("flights", "0123")
    assert version.id in wrong.value.hint
    with pytest.raises(ArtifactError, match="has no variant 'openvino'") as unknown:
        registry.variant("flights", "openvino", version.id)
    assert "torch, onnx, int8-dynamic" in unknown.value.hint
    with pytest.raises(ArtifactError, match="was not built: nothing to quantise"):
        registry.variant("flights", "int8-dynamic", version.id)


@pytest.mark.parametrize("model", ["", "../other", ".hidden"])
def test_a_model_name_cannot_leave_the_folder(registry: Registry, model: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be a model's name"):
        registry.promotion(model)
    with pytest.raises(ArtifactError, match="is not a version id"):
        registry.version("flights", "../../x")


def test_a_corrupt_artifact_is_refused_by_name(registry: Registry) -> None:
    version = add(registry)
    blob = registry.variant("flights", "torch", version.id).artifact
    blob.write_bytes(b"weightz")
    with pytest.raises(
        ArtifactError, match=rf"{blob.name}.* is corrupt: SHA-256 is [0-9a-f]{{64}}, expected {blob.name}"
    ):
        registry.variant("flights", "torch", version.id)


def test_a_truncated_artifact_is_refused_with_both_sizes(registry: Registry) -> None:
    version = add(registry)
    blob = registry.variant("flights", "torch", version.id).artifact
    blob.write_bytes(b"weig")
    with pytest.raises(ArtifactError, match="has 4 bytes, expected 7"):
        registry.variant("flights", "torch", version.id)
    blob.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        registry.variant("flights", "torch", version.id)


def test_building_again_mends_a_corrupt_artifact(registry: Registry) -> None:
    version = add(registry)
    registry.variant("flights", "torch", version.id).artifact.write_bytes(b"weightz")
    add(registry)
    assert registry.variant("flights", "torch", version.id).artifact.read_bytes() == b"weights"


def test_a_changed_or_cut_record_is_refused_by_name(registry: Registry) -> None:
    version = add(registry)
    path = registry.root / "models" / "flights" / "versions" / version.id / "version.json"
    whole = path.read_text()
    path.write_text(whole.replace('"size_bytes": 7', '"size_bytes": "seven"'))
    with pytest.raises(ArtifactError, match=r"version\.json is corrupt: .*size_bytes"):
        registry.version("flights", version.id)
    record = json.loads(whole)
    record["variants"]["onnx"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match=rf"version\.json is corrupt: .*expected {version.id}"):
        registry.version("flights", version.id)
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"version\.json is corrupt"):
        registry.version("flights", version.id)


def test_a_missing_artifact_file_leaves_the_registry_as_it_was(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    before = everything(registry.root)
    with pytest.raises(ArtifactError, match="does not exist"):
        registry.add(
            "flights",
            source="torch",
            inputs=X,
            outputs=Y,
            variants=[NewVariant("torch", "torch", tmp_path / "artifact"), NewVariant("onnx", "x", tmp_path / "none")],
        )
    assert everything(registry.root) == before


def test_a_full_disk_leaves_the_registry_as_it_was(registry: Registry, tmp_path: Path) -> None:
    """The kernel refuses the second artifact half-way (a limit on file size stands in for a full disk)."""
    add(registry)
    before = everything(registry.root)
    (tmp_path / "small").write_bytes(b"s" * 100)
    (tmp_path / "large").write_bytes(b"l" * 200_000)
    script = f"""
import resource, sys
from pathlib import Path
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.registry import NewVariant, Registry
from tailcut.registry import VariantEvidence, VersionEvidence
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
folder = Path({str(tmp_path)!r})
try:
    Registry({str(registry.root)!r}).add("flights", source="torch",
        inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y"),),
        variants=[NewVariant("torch", "torch", folder / "small"), NewVariant("onnx", "onnxruntime", folder / "large")])
except ArtifactError as error:
    print(error)
    sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "(200000 bytes): File too large" in done.stdout
    assert "the registry is unchanged" in done.stdout
    assert everything(registry.root) == before


def test_two_builds_of_one_model_at_once_are_refused_by_process(registry: Registry) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from tailcut.registry import Registry\n"
            f"with Registry({str(registry.root)!r}).build_lock('flights'): print('held', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline().strip() == "held"
        with (
            pytest.raises(BuildError, match=f"'flights' is being built by process {holder.pid}"),
            registry.build_lock("flights"),
        ):
            pass
        with registry.build_lock("another"):
            pass
        holder.stdin.close()
        assert holder.wait(20) == 0
        with registry.build_lock("flights"):
            pass
    finally:
        holder.kill()
        holder.wait()
        for pipe in (holder.stdin, holder.stdout):
            if pipe is not None:
                pipe.close()
