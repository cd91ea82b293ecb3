"""Files that the user's code reads: those of ``model.files``, and the small ones of a folder of a model."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from tailcut.code.digest import SOURCE_FILES
from tailcut.errors import ManifestError
from tailcut.manifest import Manifest
from tailcut.manifest.references import source_path

_OWN = ".tailcut"
"""Folder beside the manifest where tailcut writes by itself."""

_SMALL = {".json", ".txt", ".model", ".py", ".jinja"}
"""Of a Hugging Face folder: settings, vocabularies and code. Its weights are in the artifact."""


def data_files(manifest: Manifest, *, strict: bool = True) -> dict[str, Path]:
    """Find the files that an answer depends on beside the modules, by name; what tailcut itself writes is none of them.

    Args:
        strict: refuse a pattern that matches nothing.

    Returns:
        path of each; its name is the path from the manifest's folder.

    Raises:
        ManifestError: a pattern of ``model.files`` matches nothing, or is absolute.
    """
    found: dict[str, Path] = {}
    for pattern in manifest.deployment.model.files:
        found |= _matching(pattern, manifest, strict=strict)
    return dict(sorted(found.items())) | _of_folder(source_path(manifest))


def hashed(manifest: Manifest, *, strict: bool = True) -> dict[str, str]:
    """Return the SHA-256 of each of ``data_files``.

    Raises:
        ManifestError: see ``data_files``; or one cannot be read.
    """
    return {name: _sha256(name, path) for name, path in data_files(manifest, strict=strict).items()}


def changed_data(manifest: Manifest, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Name the data files that do not have these hashes, or are new or gone."""
    here = hashed(manifest, strict=False)
    return tuple(sorted(name for name in {*hashes, *here} if hashes.get(name) != here.get(name)))


def _sha256(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ManifestError(
            f"model.files: {name} cannot be read: {error.strerror}", hint="correct its permissions, or the pattern"
        ) from error


def _matching(pattern: str, manifest: Manifest, *, strict: bool) -> dict[str, Path]:
    directory = manifest.directory
    if os.path.isabs(pattern):
        raise ManifestError(
            f"model.files: {pattern!r} is absolute, but paths differ between servers",
            hint=f"write it relative to the manifest's folder {directory}: 'vocabulary.txt', 'tables/*.csv'",
        )
    literal = (directory / pattern).exists()
    names = [pattern] if literal else glob.glob(pattern, root_dir=directory, recursive=True, include_hidden=True)
    found: dict[str, Path] = {}
    left_out = _written_by_tailcut(manifest)
    for name in names:
        path = directory / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not os.path.abspath(file).startswith(left_out):
                found[Path(os.path.relpath(file, directory)).as_posix()] = file
    if not found and strict:
        raise ManifestError(
            f"model.files: {pattern!r} matches no file in {directory}",
            hint="correct the pattern, or remove it",
        )
    return found


def _written_by_tailcut(manifest: Manifest) -> tuple[str, ...]:
    """Beginnings of the paths of what tailcut writes: a build would change what its own hash is made of."""
    directory = os.path.join(os.path.abspath(manifest.directory), "")
    registry = manifest.deployment.registry.path
    folders = [_OWN] if "://" in registry else [_OWN, registry]
    paths = [os.path.join(os.path.abspath(os.path.join(directory, folder)), "") for folder in folders]
    return tuple(path for path in paths if not directory.startswith(path))  # a registry around it leaves files in


def _of_folder(folder: Path | None) -> dict[str, Path]:
    if folder is None or not folder.is_dir():
        return {}
    files = sorted(each for each in folder.rglob("*") if each.suffix in _SMALL and each.is_file())
    return {SOURCE_FILES + each.relative_to(folder).as_posix(): each for each in files}
