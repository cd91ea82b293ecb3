"""Imports at request time where several deployments share a process: each finds its own files, or the import fails.

``sys.path`` has the folders of all of them. A module that one deployment imports inside a function must not come from
another one's folder that happens to stand in front, where the other has a file of that name that it does not import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import ModuleType

from tailcut.manifest.module_files import same_file
from tailcut.manifest.modules import UserModules, deployments


class DeploymentFinder:
    """A finder of ``sys.meta_path``; it decides on names only that deployments have different files for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module for the deployment that imports it.

        Raises:
            ImportError: several deployments have a module of that name, and their sources do not show which imports it.
            ModuleNotFoundError: only deployments have it that do not import it.
        """
        parent = sys.modules.get(name.rpartition(".")[0])
        if getattr(parent, "__file__", None):
            return None  # a package's own folder says where its modules are
        present = deployments.present
        files = [(one, file) for one in present if (file := one.file_of(name))]
        if not files or BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return None
        importer = next((one for one in present if name in one.names), None)
        if importer is None:
            _check_only(name, files)
            return None
        if all(same_file(file, importer.file_of(name)) for _, file in files):
            return None
        foreign = deployments.foreign(importer)
        searched = [entry for entry in (sys.path if path is None else path) if not _inside(entry, foreign)]
        found = PathFinder.find_spec(name, searched)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r} for deployment {importer.label!r}", name=name)
        return found


def _check_only(name: str, files: Sequence[tuple[UserModules, str]]) -> None:
    first, file = files[0]
    for other, others in files[1:]:
        if not same_file(file, others):
            raise ImportError(
                f"{name} is {file} for deployment {first.label!r} and {others} for deployment {other.label!r}, which "
                "share this process; rename one of the two files, or serve the deployments in two processes",
                name=name,
            )


def _inside(entry: str, folders: set[str]) -> bool:
    return any(entry == folder or entry.startswith(f"{folder}/") for folder in folders)


def install() -> None:
    """Put the finder in front of the others, once."""
    if not any(isinstance(finder, DeploymentFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeploymentFinder())
