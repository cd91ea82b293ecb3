"""The copy of the user's code: where it is written to, and where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.code_kit import Project, imported

from tailcut.builder.code_snapshot import write_down
from tailcut.code import archive
from tailcut.errors import ManifestError


def made(folder: Path, data: tuple[str, ...] = ()) -> Path:
    """Pack the code of a project in "app/deep" of a folder."""
    project = Project(folder / "app" / "deep", {"aaa.txt": "0", "pkg/x.txt": "1"}, data=("aaa.txt", "pkg", *data))
    with imported():
        write_down(project.manifest, folder, source=False)
    return next(folder.glob("*.tar.gz"))


def linked(path: Path) -> None:
    (path.parent.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("name", "put", "said"),
    [
        ("pkg", Path.touch, r"out/pkg is a file, but .*out/pkg/x.txt needs a folder"),
        ("hooks.py", Path.mkdir, r"out/hooks.py is a folder, but the copy has a file"),
        ("pkg", linked, r"out/pkg/x.txt lies outside of .*out: a link leads to .*elsewhere/x.txt"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_in_the_way_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, put: Callable[[Path], None], said: str, force: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    put(out / name)
    with pytest.raises(ManifestError, match=said):
        archive.extract(made(tmp_path), out, force=force)
    assert [each.name for each in out.iterdir()] == [name]
    assert list(tmp_path.glob("elsewhere/*")) == []


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ManifestError, match="out is a file, but"):
        archive.extract(made(tmp_path), tmp_path / "out")


def test_what_cannot_be_written_is_said_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = made(tmp_path)

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ManifestError, match=r"aaa\.txt cannot be written: No space left on device"):
        archive.extract(kept, tmp_path / "out")


def test_files_of_one_name_above_the_folder_are_all_kept(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "t.csv").write_text("1")
    (tmp_path / "t.csv").write_text("2")
    written = archive.extract(made(tmp_path, ("../t.csv", "../../t.csv")), tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in written}
    assert (found[".outside/up1/t.csv"], found[".outside/up2/t.csv"]) == ("1", "2")
