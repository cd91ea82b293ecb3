"""registry behind a URL: fsspec's memory and local file systems, and a store that fails on demand."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from tests.registry_kit import AVX2, add

from tailcut.errors import ArtifactError, BuildError, MissingExtra
from tailcut.registry import Registry, storage_fsspec
from tailcut.registry.storage_fsspec import FsspecStorage
from tailcut.registry.storage_local import LocalStorage


@pytest.fixture(params=["memory", "file"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    url = f"memory://{secrets.token_hex(6)}" if request.param == "memory" else f"file://{tmp_path}/store"
    registry = Registry(url, machine=AVX2, cache=tmp_path / "cache")
    # file:// would be opened as the folder that it is.
    registry._storage = FsspecStorage(url, tmp_path / "cache")
    return registry


def everything(registry: Registry) -> dict[str, bytes]:
    files = registry._storage._files
    return {path: files.cat_file(path) for path in files.find(registry._storage._base)}


class Full:
    """A file system that is full: it writes half of what it is given, then refuses."""

    def __init__(self, files: Any, at: str) -> None:
        self._files = files
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def put_file(self, source: str, target: str, **more: Any) -> None:
        self._refuse(target, Path(source).read_bytes())
        self._files.put_file(source, target, **more)

    def pipe_file(self, target: str, content: bytes, **more: Any) -> None:
        self._refuse(target, content)
        self._files.pipe_file(target, content, **more)

    def _refuse(self, target: str, content: bytes) -> None:
        if self._at in target:
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(target, content[: len(content) // 2])
            raise OSError(28, "No space left on device")


def test_all_that_a_folder_can_do(registry: Registry, tmp_path: Path) -> None:
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2", manifest={"name": "flights"})
    assert [each.id for each in registry.list()] == [second.id, first.id]
    assert registry.version("flights", "latest").manifest == {"name": "flights"}
    assert registry.promotion_stamp("flights") is None
    registry.promote("flights", first.id, "onnx")
    stamp = registry.promotion_stamp("flights")
    registry.promote("flights", second.id, "int8")
    assert registry.promotion_stamp("flights") != stamp
    found = registry.variant("flights")
    assert found.artifact.read_bytes() == b"int82"
    assert found.artifact.is_relative_to(tmp_path / "cache")
    assert registry.rollback("flights").version == first.id
    registry.record_confirmation("flights", "split", ["a"])
    assert registry.confirmations("flights", "split", ["b"]) == 1
    assert [error for _, error in registry.verify()] == [None] * 6
    registry.retire("flights", second.id)
    done = registry.collect_garbage()
    assert done.versions == (f"flights/{second.id}",)
    assert [each.id for each in registry.list()] == [first.id]
    assert not any(second.variants["onnx"].sha256 in path for path in everything(registry))
    assert registry.variant("flights").version == first.id
    assert not [path for path in everything(registry) if "/locks/" in path or path.endswith((".lock", ".tmp"))]


def test_a_fetched_artifact_is_checked_and_fetched_once(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    kept = registry.variant("flights", "torch", version.id).artifact
    stamp = kept.stat().st_mtime_ns, kept.stat().st_ino
    again = registry.variant("flights", "torch", version.id).artifact
    assert (again.stat().st_mtime_ns, again.stat().st_ino) == stamp
    kept.write_bytes(b"spoiled in the cache")
    assert registry.variant("flights", "torch", version.id).artifact.read_bytes() == b"torchweights"
    kept.unlink()
    blob = next(path for path in everything(registry) if path.endswith(kept.name))
    registry._storage._files.pipe_file(blob, b"torchweightz")
    with pytest.raises(ArtifactError, match=rf"{kept.name} .*is corrupt: SHA-256 is .* expected {kept.name}"):
        registry.variant("flights", "torch", version.id)
    registry._storage._files.pipe_file(blob, b"torch")
    with pytest.raises(ArtifactError, match="has 5 bytes, expected 12"):
        registry.variant("flights", "torch", version.id)
    registry._storage._files.rm_file(blob)
    with pytest.raises(ArtifactError, match="is missing"):
        registry.variant("flights", "torch", version.id)
    assert list((tmp_path / "cache").rglob("*.tmp")) == []


@pytest.mark.parametrize("at", ["blobs/", "evidence-", "version.json"])
def test_a_full_place_leaves_every_record_as_it_was(registry: Registry, tmp_path: Path, at: str) -> None:
    first = add(registry, tmp_path, b"1")
    registry.promote("flights", first.id, "onnx")
    before = everything(registry)
    whole = registry._storage._files
    registry._storage._files = Full(whole, at)
    with pytest.raises(ArtifactError, match=r"cannot write .*: OSError: .*No space left on device") as refused:
        add(registry, tmp_path, b"2")
    assert "the registry is unchanged" in refused.value.hint
    registry._storage._files = whole
    after = everything(registry)
    assert {path: after[path] for path in before} == before
    assert [each.id for each in registry.list()] == [first.id]
    assert all(error is None for _, error in registry.verify())
    registry.collect_garbage()
    assert everything(registry) == before, "what was put before it failed is garbage, and nothing else is"


def test_two_builds_at_once_and_a_lock_that_was_left_behind(registry: Registry) -> None:
    with (
        registry.build_lock("flights"),
        pytest.raises(BuildError, match=r"'flights' is being built by process \d+ on .* since 20.*build\.lock") as held,
        registry.build_lock("flights"),
    ):
        pass
    assert "if its process no longer runs, remove that object" in held.value.hint
    with registry.build_lock("flights"), registry.build_lock("another"):
        pass


def test_additions_and_garbage_collection_keep_out_of_each_others_way(registry: Registry, tmp_path: Path) -> None:
    add(registry, tmp_path)
    with registry._storage.adding(), pytest.raises(BuildError, match=r"process .* is adding artifacts"):
        registry.collect_garbage()
    with registry._storage.collecting(), pytest.raises(BuildError, match=r"process .* is removing unused artifacts"):
        add(registry, tmp_path, b"2")
    add(registry, tmp_path, b"2")
    registry.collect_garbage()


def test_a_file_url_is_the_folder_with_the_kernels_locks(tmp_path: Path) -> None:
    registry = Registry(f"file://{tmp_path}/store", machine=AVX2)
    assert isinstance(registry._storage, LocalStorage)
    assert registry.root == tmp_path / "store"
    with pytest.raises(ArtifactError, match="is not a local folder"):
        _ = Registry("memory://somewhere").root


def test_an_address_that_cannot_be_used_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArtifactError, match="URL nowhere://x, which fsspec does not support"):
        Registry("nowhere://x")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match="fsspec is not installed") as missing:
        Registry("s3://bucket/models")
    assert missing.value.hint == "pip install 'tailcut[remote]'"


class InPlace(AbstractFileSystem):  # type: ignore[misc]
    """A file system behind a URL, as SFTP or SMB: a write goes to its place bit by bit, a move is a rename."""

    def __init__(self, at: str, *, moves_onto: bool) -> None:
        super().__init__()
        self.files = LocalFileSystem(auto_mkdir=False)
        self.full = False
        self._at = at
        self._moves_onto = moves_onto

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        if self.full and self._at in path:
            self.files.pipe_file(path, value[: len(value) // 2])
            raise OSError(28, "No space left on device")
        self.files.pipe_file(path, value, mode=mode, **more)

    def mv(self, path1: str, path2: str, **more: Any) -> None:
        if self.files.exists(path2) and not self._moves_onto:
            raise FileExistsError(path2)
        self.files.mv(path1, path2)

    def invalidate_cache(self, path: str | None = None) -> None:
        return None


for _name in ("cat_file", "info", "ls", "find", "rm_file", "put_file", "get_file", "makedirs"):
    setattr(InPlace, _name, lambda self, *given, _name=_name, **more: getattr(self.files, _name)(*given, **more))


def in_place(tmp_path: Path, files: InPlace, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(storage_fsspec, "_open", lambda _: (files, str(tmp_path / "store")))
    return Registry("sftp://host/store", machine=AVX2, cache=tmp_path / "cache")


def test_a_pointer_on_a_file_system_is_replaced_by_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in place, a promotion that fails half-way would leave half a pointer, and no server could start."""
    files = InPlace("promoted.json", moves_onto=True)
    registry = in_place(tmp_path, files, monkeypatch)
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    registry.promote("flights", first.id, "onnx")
    files.full = True
    with pytest.raises(ArtifactError, match="No space left on device"):
        registry.promote("flights", second.id, "onnx")
    assert registry.variant("flights").version == first.id
    assert not [path for path in (tmp_path / "store").rglob("*") if path.suffix == ".tmp"]


def test_where_a_rename_takes_free_names_only_the_pointer_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = in_place(tmp_path, InPlace("", moves_onto=False), monkeypatch)
    for content in (b"1", b"2"):
        version = add(registry, tmp_path, content)
        registry.promote("flights", version.id, "onnx")
        assert registry.variant("flights").version == version.id
    assert not [path for path in (tmp_path / "store").rglob("*") if path.suffix == ".tmp"]


def test_an_artifact_that_goes_while_it_is_fetched_is_missing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = add(registry, tmp_path)

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("collected")

    monkeypatch.setattr(registry._storage._files, "get_file", gone)
    with pytest.raises(ArtifactError, match="is missing"):
        registry.variant("flights", "onnx", version.id)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_says_which_setting_moves_it(tmp_path: Path) -> None:
    url = f"memory://{secrets.token_hex(6)}"
    version = add(Registry(url, machine=AVX2, cache=tmp_path / "cache"), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot write .*/file/") as refused:
        Registry(url, machine=AVX2, cache=tmp_path / "file").variant("flights", "onnx", version.id)
    assert "XDG_CACHE_HOME" in refused.value.hint


def test_without_a_home_the_cache_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ArtifactError, match="no folder for fetched artifacts") as refused:
        Registry("memory://somewhere")
    assert "XDG_CACHE_HOME" in refused.value.hint


def test_no_message_has_the_password_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = InPlace("", moves_onto=True)
    monkeypatch.setattr(storage_fsspec, "_open", lambda _: (files, str(tmp_path / "store")))
    registry = Registry("sftp://me:hunter2@host/store", machine=AVX2, cache=tmp_path / "cache")
    with pytest.raises(ArtifactError) as nothing:
        registry.variant("flights")
    assert "sftp://…@host/store" in nothing.value.message
    assert "hunter2" not in f"{nothing.value} {registry.url}"
