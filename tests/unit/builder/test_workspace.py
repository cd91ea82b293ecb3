"""A full disk: what a build or a report says, and what it leaves."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailcut.errors import ArtifactError, LoadTestError
from tailcut.manifest import TensorSpec
from tailcut.registry import NewVariant, Registry
from tailcut.system.atomic_files import write_file

MIB = 1 << 20


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own in memory; skipped where mounting is not permitted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def artifact(path: Path, size_bytes: int, fill: bytes = b"x") -> Path:
    path.write_bytes(fill * size_bytes)
    return path


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def add(registry: Registry, *artifacts: Path) -> str:
    return registry.add(
        "m",
        source="v0",
        inputs=(TensorSpec(name="x"),),
        outputs=(TensorSpec(name="y"),),
        variants=[NewVariant(f"v{number}", "onnxruntime", path) for number, path in enumerate(artifacts)],
    ).id


def test_a_disk_that_becomes_full_in_the_middle_leaves_the_registry_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3 * MIB) as disk:
        registry = Registry(disk / "registry")
        first = add(registry, artifact(tmp_path / "a", MIB))
        registry.promote("m", first, "v0")
        before = files(disk)
        with pytest.raises(
            ArtifactError, match=r"cannot write .* bytes\): No space left on device; \d+ bytes are free"
        ):
            add(registry, artifact(tmp_path / "b", MIB, b"b"), artifact(tmp_path / "c", 2 * MIB, b"c"))
        assert files(disk) == before
        assert [each.id for each in registry.list("m")] == [first]
        assert registry.variant("m").version == first
        second = add(registry, artifact(tmp_path / "d", MIB // 2, b"d"))
        registry.promote("m", second, "v0")
        assert registry.variant("m").version == second


def test_a_report_without_room_says_how_much_it_needs_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as disk:
        write_file(disk / "report.json", b"old")
        with pytest.raises(LoadTestError, match="No space left on device") as refused:
            write_file(disk / "report.json", b"x" * 2 * MIB)
        assert refused.value.hint.startswith(f"it has {2 * MIB} bytes, ")
        assert [path.name for path in disk.iterdir()] == ["report.json"]
        assert (disk / "report.json").read_bytes() == b"old"


def test_another_error_of_a_report_has_its_own_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LoadTestError, match=os.strerror(errno.EEXIST)) as refused:
        write_file(tmp_path / "file" / "report.json", b"x")
    assert refused.value.hint == "choose a writable folder"


def test_a_report_goes_into_a_pipe_or_through_a_link_as_it_is(tmp_path: Path) -> None:
    """As ``/dev/stdout``, which must not be replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", b"x")
    assert os.read(reader, 2) == b"x"
    os.close(reader)
    (tmp_path / "link").symlink_to(tmp_path / "report.json")
    write_file(tmp_path / "link", b"y")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "report.json").read_bytes() == b"y"
