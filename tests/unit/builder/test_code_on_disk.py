"""The user's code as it lies on the disk, while a build runs: which changes end the build."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tests.code_kit import HOOKS, Project, imported

from tailcut.builder.code_snapshot import check_unchanged, write_down
from tailcut.code.files import data_files
from tailcut.errors import ArtifactError, ManifestError


def zipped(archive: Path, **modules: str) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for name, text in modules.items():
            file.writestr(f"{name}.py", text)


def settings(project: Project, text: str) -> None:
    """Put settings in front of the manifest."""
    project.write("tailcut.toml", text + (project.folder / "tailcut.toml").read_text())


@pytest.mark.parametrize(
    "change",
    [
        {"from_archive_x": "N = 2"},
        {"from_archive_x": "N = 1", "added": "", "from_archive_y": "M = 22222"},
        {"added": "x = 1\n" * 100, "from_archive_y": "M = 1"},
    ],
)
def test_an_archive_counts_as_a_file(tmp_path: Path, change: dict[str, str]) -> None:
    hooks = "import from_archive_x\ndef preprocess(rows):\n    import from_archive_y\n"
    project = Project(tmp_path, {"hooks.py": hooks})
    settings(project, 'python_path = [".", "lib.zip"]\n')
    zipped(tmp_path / "lib.zip", from_archive_x="N = 1", from_archive_y="M = 1")
    with imported():
        found = write_down(project.manifest, tmp_path, source=True)
        assert "lib.zip" in {each.file for each in found.code.modules.values()}
        check_unchanged(found, project.manifest)
        zipped(tmp_path / "lib.zip", **change)
        with pytest.raises(ArtifactError, match=r"lib\.zip changed during the build"):
            check_unchanged(found, project.manifest)


@pytest.mark.parametrize("registry", [".tailcut/registry", "models/kept", "./models/../models/kept"])
def test_what_a_build_writes_is_no_data_file(tmp_path: Path, registry: str) -> None:
    project = Project(tmp_path, {"words.json": "{}", "models/tables.json": "{}"}, data=("**/*.json", "models"))
    settings(project, f"registry.path = '{registry}'\n")
    with imported():
        found = write_down(project.manifest, tmp_path, source=True)
        for name in (f"{registry}/m/pointers/promoted.json", ".tailcut/tensorrt/1.json"):
            project.write(name, "{}")
        check_unchanged(found, project.manifest)
        assert set(found.code.data) == {"words.json", "models/tables.json"}
        project.write("models/more.json", "{}")
        with pytest.raises(ArtifactError, match=r"models/more\.json changed during"):
            check_unchanged(found, project.manifest)


@pytest.mark.parametrize("registry", [".", "..", "s3://bucket/models"])
def test_a_registry_that_is_not_below_the_folder_leaves_no_file_out(tmp_path: Path, registry: str) -> None:
    project = Project(tmp_path / "app", {"words.json": "{}"}, data=("*.json",))
    settings(project, f"registry.path = '{registry}'\n")
    assert set(data_files(project.manifest)) == {"words.json"}


def test_a_pattern_that_matches_the_registry_alone_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, {".tailcut/registry/m/a.json": "{}"}, data=("**/*.json",))
    with pytest.raises(ManifestError, match="matches no file"):
        data_files(project.manifest)


def test_a_file_that_is_gone_ends_the_build(tmp_path: Path) -> None:
    project = Project(tmp_path, {"hooks.py": "import helper_x\n" + HOOKS, "helper_x.py": ""})
    with imported():
        found = write_down(project.manifest, tmp_path, source=True)
        (tmp_path / "helper_x.py").unlink()
        with pytest.raises(ArtifactError, match=r"helper_x\.py changed during"):
            check_unchanged(found, project.manifest)
