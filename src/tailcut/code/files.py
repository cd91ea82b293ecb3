"""The user's code as it lies in the manifest's folder now, found without importing any of it."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Set
from pathlib import Path

from msgspec.structs import replace

from tailcut.code.digest import SOURCE_FILES, Code, CodeFile, Distribution, differing, without_modules
from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, modules
from tailcut.manifest.references import folders_of, source_path


def code_on_disk(manifest: Manifest, recorded: Code | None = None, *, strict: bool = False) -> Code:
    """List every Python file of ``python_path``, the data files, and what is installed.

    Args:
        recorded: a list whose modules outside of ``python_path`` are listed too, where their files are there.
        strict: refuse a pattern of ``model.files`` that matches nothing.

    Raises:
        ManifestError: a data file cannot be read or is missing, or there are too many Python files.
    """
    found: dict[str, CodeFile] = {}
    for name, path in modules.python_files(folders_of(manifest)).items():
        if sha := sha256_of(path):  # a link to nothing, say, cannot be imported either
            found[name] = CodeFile(sha256=sha, file=file_of(path, manifest))
    for name, each in recorded.modules.items() if recorded is not None else ():
        if name not in found and (sha := sha256_of(manifest.directory / each.file)):
            found[name] = replace(each, sha256=sha)
    data = _hashed(manifest, strict=strict)
    return Code(modules=found, data=data, distributions=_distributions())


def part_of(code: Code, manifest: Manifest, *, live: bool) -> Code:
    """Return the code that a variant depends on: all of it, or the data files alone.

    Args:
        live: whether it runs the user's own object; else the hooks and feature functions decide.
    """
    runs = live or serving_references(manifest) or manifest.deployment.model.trusted
    return code if runs else without_modules(code)


def lacks(manifest: Manifest, recorded: Code, *, live: bool) -> tuple[str, ...]:
    """Name the files of a version's code whose content in the manifest's folder differs, or is imported but missing."""
    here = code_on_disk(manifest, recorded)
    return lacking(manifest, recorded, here, imported_names(manifest, live=live), live=live)


def lacking(manifest: Manifest, recorded: Code, here: Code, imported: Set[str], *, live: bool) -> tuple[str, ...]:
    """Name the files of a version's code that differ here, or are missing below ``python_path`` although imported.

    Args:
        imported: see ``imported_names``.
        live: see ``part_of``.
    """
    wanted, there = (part_of(code, manifest, live=live) for code in (recorded, here))
    inside = tuple(modules.within(os.path.realpath(folder)) for folder in folders_of(manifest))
    paths = {name: os.path.realpath(manifest.directory / each.file) for name, each in wanted.modules.items()}
    return differing(wanted, there, {name for name in imported & paths.keys() if paths[name].startswith(inside)})


def imported_names(manifest: Manifest, *, live: bool) -> Set[str]:
    """Return the names that the code of a variant imports, as its text on the disk says, found or not.

    Args:
        live: see ``part_of``.
    """
    model = manifest.deployment.model
    own = (model.source,) if live and source_path(manifest) is None else ()
    references = (*serving_references(manifest), *model.trusted, *own)
    return modules.imports(folders_of(manifest), [each.partition(":")[0] for each in references]).keys()


def serving_references(manifest: Manifest) -> tuple[str, ...]:
    """Return the references to functions that every variant's answers depend on."""
    deployment = manifest.deployment
    groups = deployment.features.groups
    named = [deployment.model.preprocess, deployment.model.postprocess]
    named += [group.function for group in groups]
    named += [group.ttl for group in groups if ":" in group.ttl]
    named.append(deployment.features.clock)
    return tuple(dict.fromkeys(filter(None, named)))


def changed(manifest: Manifest, listed: Code) -> tuple[str, ...]:
    """Name the files of a list that are not what they were, or gone, and data files that are new."""
    hashes = {each.file: each.sha256 for each in listed.modules.values()}
    return (*changed_files(manifest.directory, hashes), *changed_data(manifest, listed.data))


def changed_files(directory: Path, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Name the files, given by their paths from a folder, that do not have these hashes."""
    return tuple(sorted(file for file, sha in hashes.items() if sha256_of(directory / file) != sha))


def sha256_of(path: str | Path) -> str:
    """Hash a file; empty where there is none, or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def file_of(path: str, manifest: Manifest) -> str:
    """Return a file's path relative to the manifest's folder, with links among its folders resolved."""
    folder, name = os.path.split(path)
    above = os.path.relpath(os.path.realpath(folder), os.path.realpath(manifest.directory))
    return Path(above, name).as_posix()


def _distributions() -> dict[str, Distribution]:
    """Read the versions of installed distributions from the names of their metadata folders, which is fast."""
    found = {"python": Distribution(version=f"{sys.version_info[0]}.{sys.version_info[1]}")}
    for folder in filter(os.path.isdir, sys.path):
        for entry in sorted(os.listdir(folder)):
            stem, suffix = os.path.splitext(entry)
            if suffix in (".dist-info", ".egg-info") and "-" in stem:
                name, version, *_ = stem.split("-")
                found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), Distribution(version=version))
    return found


# -- Data files --------------------------------------------------------------------------------------------------------


# Files that the user's code reads: those of ``model.files``, and the small ones of a folder of a model.

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


def _hashed(manifest: Manifest, *, strict: bool = True) -> dict[str, str]:
    """Return the SHA-256 of each of ``data_files``.

    Raises:
        ManifestError: see ``data_files``; or one cannot be read.
    """
    return {name: _sha256(name, path) for name, path in data_files(manifest, strict=strict).items()}


def changed_data(manifest: Manifest, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Name the data files that do not have these hashes, or are new or gone."""
    here = _hashed(manifest, strict=False)
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
