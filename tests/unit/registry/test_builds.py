"""registry: what a build may hand in, and what happens where the disk, the sources or a neighbour do not play along."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.registry_kit import AVX2, add

from tailcut.errors import ArtifactError, BuildError
from tailcut.registry import Registry, digest
from tailcut.system import atomic_files


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry", machine=AVX2)


def everything(registry: Registry) -> dict[str, bytes]:
    return {
        str(path.relative_to(registry.root)): path.read_bytes() for path in registry.root.rglob("*") if path.is_file()
    }


def test_a_source_that_changed_while_it_was_built_is_refused(registry: Registry, tmp_path: Path) -> None:
    weights, code = tmp_path / "models" / "weights.pt", tmp_path / "models" / "src" / "model.py"
    code.parent.mkdir(parents=True)
    for file in (weights, code):
        file.write_text("one")
    origins = {file: digest(file) for file in (weights, code)}
    first = add(registry, tmp_path, origins=origins)
    assert set(first.origins) == {"weights.pt", "src/model.py"}, "not where they lay on the machine that built"
    before = everything(registry)
    weights.write_text("two")
    with pytest.raises(ArtifactError, match=rf"{weights} changed during the build.*{origins[weights]} and is"):
        add(registry, tmp_path, b"other", origins=origins)
    weights.unlink()
    with pytest.raises(ArtifactError, match="it no longer exists") as gone:
        add(registry, tmp_path, b"other", origins=origins)
    assert "the registry is unchanged" in gone.value.hint
    assert everything(registry) == before


def test_the_manifest_is_kept_without_passwords(registry: Registry, tmp_path: Path) -> None:
    manifest = {
        "name": "flights",
        "features": {"database": "postgresql://me:sec/ret@host/db", "groups": [{"name": "g", "url": "redis://:pw@h"}]},
    }
    version = add(registry, tmp_path, manifest=manifest)
    assert registry.version("flights", version.id).manifest == {
        "name": "flights",
        "features": {"database": "postgresql://…@host/db", "groups": [{"name": "g", "url": "redis://…@h"}]},
    }
    assert not [path for path, content in everything(registry).items() if b"sec/ret" in content or b":pw@" in content]


def test_evidence_is_sealed(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    file = next((registry.root / "models" / "flights" / "versions" / version.id).glob("evidence-*.json"))
    file.write_bytes(file.read_bytes().replace(b"0.75", b"0.95"))
    with pytest.raises(ArtifactError, match=rf"{file.name} is corrupt: SHA-256 is"):
        registry.variant("flights", "torch", version.id)
    assert [each.id for each in registry.list()] == [version.id], "listing does not read it"
    assert [what for what, error in registry.verify() if error is not None] == [f"flights {version.id}"]
    file.unlink()
    with pytest.raises(ArtifactError, match=f"{file.name} is missing"):
        registry.version("flights", version.id)


@pytest.mark.parametrize("part", ["blobs", "evidence-", "version.json"])
def test_a_disk_that_fills_up_anywhere_leaves_the_registry_as_it_was(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    add(registry, tmp_path)
    before = everything(registry)
    flush = atomic_files._flush

    def full(file: Any) -> None:
        if part in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(file)

    monkeypatch.setattr(atomic_files, "_flush", full)
    with pytest.raises(ArtifactError, match=r"cannot write .*No space left on device; \d+ bytes are free"):
        add(registry, tmp_path, b"other")
    assert everything(registry) == before


def test_a_promotion_that_cannot_be_written_leaves_the_old_one(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = add(registry, tmp_path)
    registry.promote("flights", version.id, "torch")
    before = everything(registry)

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files, "_flush", full)
    for change in (
        lambda: registry.promote("flights", version.id, "onnx"),
        lambda: registry.record_confirmation("flights", "split", ["a"]),
    ):
        with pytest.raises(ArtifactError, match="No space left on device"):
            change()
    assert everything(registry) == before
    assert registry.variant("flights").name == "torch"


def test_a_second_build_of_one_model_is_refused_and_of_another_is_not(registry: Registry) -> None:
    other = Registry(registry.root)
    with (
        registry.build_lock("flights"),
        pytest.raises(BuildError, match="'flights' is being built by process"),
        other.build_lock("flights"),
    ):
        pass
    with registry.build_lock("flights"), other.build_lock("another"):
        pass


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    registry = Registry(tmp_path / "file", machine=AVX2)
    for refused in (lambda: registry.build_lock("flights").__enter__(), lambda: add(registry, tmp_path)):
        with pytest.raises(ArtifactError, match=r"cannot write .*/file/") as error:
            refused()
        assert "registry.path" in error.value.hint
    assert registry.list() == ()
