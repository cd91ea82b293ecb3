"""registry: garbage collection removes what nobody needs, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.registry_kit import AVX2, add

from tailcut.errors import ArtifactError, BuildError
from tailcut.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry", machine=AVX2)


def files(registry: Registry) -> set[str]:
    return {str(path.relative_to(registry.root)) for path in registry.root.rglob("*") if path.is_file()}


def blobs(registry: Registry) -> set[str]:
    return {path.name for path in registry.root.glob("blobs/sha256/*/*")}


def test_nothing_goes_that_was_not_retired(registry: Registry, tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        add(registry, tmp_path, content)
    before = files(registry)
    found = registry.collect_garbage()
    assert (found.versions, found.files, found.freed_bytes) == ((), (), 0)
    assert before <= files(registry)


def test_a_retired_version_goes_with_the_artifacts_that_only_it_has(registry: Registry, tmp_path: Path) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    shared = add(registry, tmp_path, b"1", model="another")
    registry.promote("flights", new.id, "onnx")
    registry.retire("flights", old.id)
    before, kept_blobs = files(registry), blobs(registry)
    planned = registry.collect_garbage(dry_run=True)
    assert before <= files(registry), "a dry run removes nothing"
    done = registry.collect_garbage()
    assert done == planned
    assert done.versions == (f"flights/{old.id}",)
    assert {Path(path).name.partition("-")[0] for path in done.files} == {"version.json", "evidence"}
    assert blobs(registry) == kept_blobs, "another model has the same artifacts"
    registry.retire("another", shared.id)
    freed = registry.collect_garbage()
    assert freed.freed_bytes >= len(b"torch1" + b"onnx1" + b"int81")
    assert blobs(registry) == {each.sha256 for each in new.variants.values() if each.sha256}
    assert registry.models() == ("flights",)
    assert registry.variant("flights").version == new.id


def test_the_way_back_stays(registry: Registry, tmp_path: Path) -> None:
    ids = [add(registry, tmp_path, content).id for content in (b"1", b"2", b"3")]
    for each in ids:
        registry.promote("flights", each, "onnx")
    for each in ids[:2]:
        registry.retire("flights", each)
    found = registry.collect_garbage()
    assert found.versions == (f"flights/{ids[0]}",)
    assert found.kept == (f"flights/{ids[1]}",)
    assert [each.id for each in registry.list("flights")] == [ids[2], ids[1]]


def test_what_failed_writes_and_older_builds_left_goes(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    add(registry, tmp_path, manifest={"name": "flights"})
    folder = registry.root / "models" / "flights" / "versions" / version.id
    assert len(list(folder.glob("evidence-*.json"))) == 2
    orphan = registry.root / "blobs" / "sha256" / "ab" / ("ab" * 32)
    left = registry.root / "blobs" / "sha256" / "ab" / f".{'ab' * 32}.0123456789ab.tmp"
    foreign = registry.root / "models" / "flights" / "README.txt"
    for path in (orphan, left, foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1234")
    assert len(registry.collect_garbage().files) == 3
    assert not orphan.exists()
    assert not left.exists()
    assert foreign.exists(), "what the registry did not write is not its garbage"
    assert len(list(folder.glob("evidence-*.json"))) == 1
    assert registry.version("flights", version.id).manifest == {"name": "flights"}


def test_a_build_under_way_keeps_garbage_collection_out(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    registry.retire("flights", version.id)
    before = files(registry)
    other = Registry(registry.root, machine=AVX2)
    with registry.build_lock("flights"), pytest.raises(BuildError, match="'flights' is being built by process"):
        other.collect_garbage()
    with registry._storage.adding(), pytest.raises(BuildError, match="is adding artifacts"):
        other.collect_garbage()
    assert before <= files(registry)
    assert other.collect_garbage().versions == (f"flights/{version.id}",)


def test_a_corrupt_record_stops_it_because_nobody_knows_what_it_refers_to(registry: Registry, tmp_path: Path) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    registry.retire("flights", old.id)
    (registry.root / "models" / "flights" / "versions" / new.id / "version.json").write_text("{")
    before = blobs(registry)
    with pytest.raises(ArtifactError, match=f"{new.id}/version.json is corrupt"):
        registry.collect_garbage()
    assert blobs(registry) == before


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "promote", "retire", "rollback", "gc"]), st.integers(0, 3)), max_size=20)
)
def test_whatever_was_done_what_is_listed_can_be_opened(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("gc")
    registry = Registry(folder / "registry", machine=AVX2)
    ids = [add(registry, folder, str(number).encode()).id for number in range(4)]
    for what, number in steps:
        # A step may be refused: retiring what is promoted, promoting what was retired or collected.
        with suppress(ArtifactError):
            match what:
                case "add":
                    add(registry, folder, str(number).encode())
                case "promote":
                    registry.promote("flights", ids[number], "onnx")
                case "retire":
                    registry.retire("flights", ids[number])
                case "rollback":
                    registry.rollback("flights")
                case "gc":
                    registry.collect_garbage()
    assert [error for _, error in registry.verify() if error is not None] == []
    if registry.promotion("flights"):
        assert registry.variant("flights").artifact.is_file()
