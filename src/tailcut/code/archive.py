"""A copy of the user's code in one file: the same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tailcut.code.digest import SOURCE_FILES, Code, few
from tailcut.code.files import data_files
from tailcut.errors import ArtifactError, ManifestError
from tailcut.manifest import Manifest

MOST_BYTES = 16 * 1024 * 1024
"""Larger code is not kept: a registry is no place for it. Data files are left out first."""

_OUTSIDE = ".outside"
"""Folder of an archive for files that did not lie in the manifest's folder; hidden, so that no module lies in it."""


class Packed(NamedTuple):
    """Whether a copy was written, and a description of what was left out."""

    written: bool
    left_out: str = ""


def pack(code: Code, manifest: Manifest, archive: Path) -> Packed:
    """Write the files of a listing into an archive; data files only where there is room, and nothing where none is.

    Raises:
        OSError: a file cannot be read any more.
    """
    modules = {_inside(each.file): manifest.directory / each.file for each in code.modules.values()}
    paths = data_files(manifest)
    data = {_inside(name): paths[name] for name in code.data if not name.startswith(SOURCE_FILES)}
    size_bytes = sum(path.stat().st_size for path in modules.values())
    if size_bytes > MOST_BYTES:
        return Packed(False, f"your modules, which are larger than {MOST_BYTES >> 20} MiB")
    left_out = ""
    if size_bytes + sum(path.stat().st_size for path in data.values()) > MOST_BYTES:
        data, left_out = {}, f"the data files, which are larger than {MOST_BYTES >> 20} MiB together with the modules"
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in sorted((modules | data).items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return Packed(True, left_out)


def extract(archive: Path, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the files of an archive into a folder.

    Args:
        force: replace files that are there and differ.

    Returns:
        every file of the archive, those that were there already included.

    Raises:
        ManifestError: a file is there and differs, something else is in a file's place, or one cannot be written.
            Nothing is written in the first two cases.
        ArtifactError: the archive is no copy of code.
    """
    files = {folder / name: content for name, content in _read(archive).items()}
    for path in files:
        _refuse_place(path, folder)
    other = [path for path, content in files.items() if path.is_file() and path.read_bytes() != content]
    if other and not force:
        names = few(tuple(str(path.relative_to(folder)) for path in other))
        raise ManifestError(
            f"{folder} has other content in {names}",
            hint="name an empty folder, or replace these files with --force",
        )
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
        except OSError as error:
            raise ManifestError(
                f"{path} cannot be written: {error.strerror}",
                hint="make the folder writable, or name another one; earlier files are already written",
            ) from error
    return list(files)


def _refuse_place(path: Path, folder: Path) -> None:
    """Refuse a path that leads out of the folder by a link, or where files and folders stand in each other's place."""
    hint = "name an empty folder, or remove this path"
    for above in [folder, *(each for each in path.parents if folder in each.parents)]:
        if above.exists() and not above.is_dir():
            raise ManifestError(f"{above} is a file, but {path} needs a folder there", hint=hint)
    if path.is_dir():
        raise ManifestError(f"{path} is a folder, but the copy has a file of that name", hint=hint)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ManifestError(f"{path} lies outside of {folder}: a link leads to {path.resolve()}", hint=hint)


def _inside(name: str) -> str:
    """Name a file from above the manifest's folder: "../../a.csv" -> ".outside/up2/a.csv"."""
    return name if _is_inside(name) else f"{_OUTSIDE}/up{name.count('../')}/{name.replace('../', '')}"


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(file) and not path.is_absolute() and ".." not in path.parts


def _read(archive: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is None or not _is_inside(member.name):
                    raise ArtifactError(f"{archive} holds {member.name!r}, which is not a file of a folder")
                found[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ArtifactError(f"{archive} is not a copy of code: {error}", hint="run `tailcut build` again") from error
    return found
