"""registry: what is corrupt, missing, copied or left behind costs itself only, and there is a way out of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.registry_kit import AVX2, add

from tailcut.common.fingerprint import Trust
from tailcut.errors import ArtifactError, NotInRegistry
from tailcut.registry import Registry, collect, store
from tailcut.system.atomic_files import digest
from tailcut.system.file_lock import Held, locked


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry", machine=AVX2)


def model(registry: Registry) -> Path:
    return registry.root / "models" / "flights"


@pytest.mark.parametrize("damage", ["", "{", '{"version": 5}', "[" * 100_000])
def test_a_corrupt_pointer_is_mended_by_the_next_promotion(registry: Registry, tmp_path: Path, damage: str) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    registry.promote("flights", old.id, "onnx")
    pointer = model(registry) / "promoted.json"
    pointer.write_text(damage)
    for refused in (
        lambda: registry.variant("flights"),
        lambda: registry.rollback("flights"),
        lambda: registry.retire("flights", old.id),
        registry.collect_garbage,
    ):
        with pytest.raises(ArtifactError, match=r"promoted\.json is corrupt") as error:
            refused()
        assert "promote a version" in error.value.hint
    registry.promote("flights", new.id, "onnx")
    assert registry.variant("flights").version == new.id
    assert (model(registry) / "promoted.json.corrupt").read_text() == damage, "for whoever wants to know what happened"
    registry.collect_garbage()


def test_an_artifact_that_changes_while_it_is_added_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a build that still writes its file, when the file was hashed, then its copy is another one."""

    def digest_and_change(path: Path) -> str:
        found = digest(path)
        path.write_bytes(path.read_bytes() + b" and more")
        return found

    monkeypatch.setattr(store, "digest", digest_and_change)
    with pytest.raises(ArtifactError, match="changed while it was read"):
        add(registry, tmp_path)
    with pytest.raises(NotInRegistry):
        registry.version("flights")


def test_verify_finds_a_pointer_that_leads_nowhere(registry: Registry, tmp_path: Path) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    registry.promote("flights", new.id, "onnx")
    assert [error for _, error in registry.verify() if error] == []
    shutil.rmtree(model(registry) / "versions" / new.id)
    found = {what: error for what, error in registry.verify() if error}
    assert list(found) == ["flights promoted.json"]
    assert f"has no version '{new.id}'" in str(found["flights promoted.json"])
    assert old.id in found["flights promoted.json"].hint


def test_what_the_registry_did_not_write_is_passed_over(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    registry.promote("flights", version.id, "onnx")
    for path in (
        registry.root / "models" / "README.txt",
        registry.root / "models" / ".DS_Store",
        model(registry) / "versions" / ".DS_Store",
        model(registry) / "versions" / "notes of march",
    ):
        path.write_text("?")
    assert registry.models() == ("flights",)
    assert [each.id for each in registry.list()] == [version.id]
    assert [error for _, error in registry.verify() if error] == []
    assert registry.collect_garbage().files == ()


def test_a_model_whose_folder_was_copied_is_not_taken_for_another(registry: Registry, tmp_path: Path) -> None:
    """Its records name the first: to retire one of the copy would retire the first one's."""
    version = add(registry, tmp_path)
    shutil.copytree(model(registry), model(registry).with_name("copy"))
    with pytest.raises(ArtifactError, match="is of model 'flights': its folder was renamed or copied"):
        registry.retire("copy", version.id)
    assert not registry.version("flights", version.id).retired


@pytest.mark.parametrize("moved", ["models", "models/flights/versions"])
def test_nothing_is_removed_where_records_are_missing(registry: Registry, tmp_path: Path, moved: str) -> None:
    version = add(registry, tmp_path)
    registry.promote("flights", version.id, "onnx")
    (registry.root / moved).rename(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"holds artifacts, but no model|is promoted in .* but has no record") as no:
        registry.collect_garbage()
    assert "nothing was removed" in no.value.hint
    (tmp_path / "elsewhere").rename(registry.root / moved)
    assert [error for _, error in registry.verify() if error] == []


def test_nothing_is_promoted_while_garbage_is_collected(registry: Registry, tmp_path: Path) -> None:
    """Its new pointer lies beside the old one for a moment, under the name of what a failed write leaves behind."""
    add(registry, tmp_path)
    lock = model(registry) / "pointers.lock"
    with (
        collect.locked(registry._storage, ["flights"]),
        pytest.raises(Held),
        locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB),
    ):
        pass
    with locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass


def test_the_latest_version_is_the_last_one_whatever_the_clocks_say(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = add(registry, tmp_path, b"1")
    monkeypatch.setattr(store, "now", lambda: "1970-01-01T00:00:00.000000+00:00")
    second = add(registry, tmp_path, b"2")
    assert registry.version("flights", "latest").id == second.id
    assert [each.id for each in registry.list()] == [second.id, first.id]
    add(registry, tmp_path, b"1")
    assert registry.version("flights", "latest").id == first.id, "it was built again"


def test_a_record_that_cannot_be_read_holds_up_no_other(registry: Registry, tmp_path: Path) -> None:
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    (model(registry) / "versions" / second.id / "version.json").write_text("{")
    found = dict(registry.scan("flights"))
    assert list(found) == [first.id, second.id]
    assert found[first.id].id == first.id  # type: ignore[union-attr]
    assert isinstance(found[second.id], ArtifactError)
    third = add(registry, tmp_path, b"3")
    assert next(registry.scan("flights"))[0] == third.id
    with pytest.raises(ArtifactError, match="is corrupt"):
        registry.version("flights", "latest")  # it may be that one


def test_a_version_that_goes_while_it_is_listed_is_not_listed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    read = registry._storage.read

    def gone(path: str) -> bytes:
        if first.id in path:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(registry._storage, "read", gone)
    assert [each.id for each in registry.list()] == [second.id]


def test_a_pair_without_its_part_is_not_opened(registry: Registry, tmp_path: Path) -> None:
    version = registry.version("flights", add(registry, tmp_path).id)
    pair = replace(version.variants["onnx"], parts={"gone": "0" * 64})
    changed = replace(version, variants={**version.variants, "onnx": pair})
    assert registry.trust(changed, "onnx") == Trust(
        level="not openable", reason="its part 'gone' is not in its version"
    )


@pytest.mark.parametrize("name", ["a/b", "a\\b", ".a", "", "a\0b"])
def test_names_that_are_no_names_are_not_in_the_registry(registry: Registry, name: str) -> None:
    with pytest.raises(NotInRegistry):
        registry.promotion(name)
    with pytest.raises(NotInRegistry):
        registry.version("flights", name or "../x")


def test_what_the_system_refuses_names_the_path(registry: Registry, tmp_path: Path) -> None:
    add(registry, tmp_path)
    name = "m" * 300
    with pytest.raises(ArtifactError, match=r"cannot read .*mmm.*: File name too long"):
        registry.list(name)
    with pytest.raises(ArtifactError, match=r"cannot read .*mmm.*: File name too long"):
        registry.promotion_stamp(name)
    (model(registry) / "loop").symlink_to("loop")
    with pytest.raises(ArtifactError, match=r"cannot read .*loop"):
        registry._storage.read("models/flights/loop")


def test_what_a_record_refers_to_is_on_the_disk_before_the_record_is(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut every folder's names are as they were when it was last synced."""
    synced: list[Path] = []
    done: list[tuple[str, Path]] = []
    fsync, renamed = os.fsync, Path.replace

    def seen(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append(path)
        done.append(("sync", path))
        fsync(handle)

    def rename(source: Path, target: Path) -> Path:
        assert source in synced, "its content comes first"
        done.append(("rename", target))
        return renamed(source, target)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Path, "replace", rename)
    version = add(registry, tmp_path)
    folder = model(registry) / "versions" / version.id
    record = done.index(("rename", folder / "version.json"))
    blobs = registry.root / "blobs" / "sha256"
    needed = {registry.root.parent, registry.root, blobs.parent, blobs, folder, *folder.parents[:3]}
    needed |= {blobs / each.sha256[:2] for each in version.variants.values() if each.sha256}
    before = [path for what, path in done[:record] if what == "sync"]
    assert needed <= set(before)
    assert ("sync", folder) in done[record:]
    last_blob = max(place for place, (what, path) in enumerate(done) if what == "rename" and blobs in path.parents)
    assert last_blob < done.index(("sync", blobs))


def test_a_staged_file_whose_place_is_taken_by_a_folder_is_an_error_with_the_path(
    registry: Registry, tmp_path: Path
) -> None:
    version = add(registry, tmp_path)
    (model(registry) / "promoted.json").mkdir()
    with pytest.raises(ArtifactError, match=r"promoted\.json"):
        registry.promote("flights", version.id, "onnx")
    assert [path.name for path in model(registry).iterdir() if path.suffix == ".tmp"] == []


def test_a_record_without_a_serial_number_is_older_than_any_with_one(registry: Registry, tmp_path: Path) -> None:
    old = add(registry, tmp_path, b"1")
    path = model(registry) / "versions" / old.id / "version.json"
    record = json.loads(path.read_bytes())
    del record["serial"]
    path.write_text(json.dumps(record))
    assert registry.version("flights", "latest").id == old.id
    new = add(registry, tmp_path, b"2")
    assert [each.serial for each in registry.list()] == [1, 0]
    assert registry.version("flights", "latest").id == new.id


def test_a_file_kept_beside_the_artifacts_is_found_checked_and_collected(registry: Registry, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(b"eight rows")
    version = add(registry, tmp_path / "first", files={"rows": rows})
    kept = registry.file(version, "rows")
    assert kept is not None
    assert kept.read_bytes() == b"eight rows"
    assert registry.file(version, "code") is None
    registry.collect_garbage()
    assert [error for _, error in registry.verify() if error] == []
    kept.chmod(0o600)
    kept.write_bytes(b"eight rowz")
    (found,) = [(what, error) for what, error in registry.verify() if error]
    assert found[0].startswith(f"flights {version.id} file rows ")
    assert "corrupt" in found[1].message
    add(registry, tmp_path / "second", b"others")
    registry.retire("flights", version.id)
    registry.collect_garbage()
    assert not kept.exists()
