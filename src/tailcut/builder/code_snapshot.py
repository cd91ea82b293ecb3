"""The user's code in a build: written down when the build begins, kept with the version, and unchanged until then."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailcut.code import archive, files
from tailcut.code.digest import Code, few
from tailcut.code.loaded import LoadedCode, begin
from tailcut.errors import ArtifactError, ManifestError
from tailcut.manifest import Manifest, resolve
from tailcut.manifest.references import source_path
from tailcut.registry.records import ARCHIVE

_FILE = "code.tar.gz"


class WrittenCode(msgspec.Struct, frozen=True, kw_only=True):
    """The user's code as a build found it.

    Attributes:
        code: the list of it.
        kept: whether there is a copy of it in the build's folder.
        left_out: what of it is not in the copy, for people.
    """

    code: Code
    kept: bool = False
    left_out: str = ""


def write_down(manifest: Manifest, folder: Path, *, source: bool) -> WrittenCode:
    """List the user's code, and copy it into the build's folder where the registry keeps it.

    Args:
        source: import ``model.source``, too.

    Raises:
        ManifestError: hooks or ``model.source`` cannot be imported, or a file of ``model.files`` is missing.
    """
    before, began_s = begin()
    for reference in files.serving_references(manifest):
        try:
            resolve(reference, manifest)
        except ManifestError:
            # A function of a feature group may need what only servers have, and the build does not call it.
            if reference in (manifest.deployment.model.preprocess, manifest.deployment.model.postprocess):
                raise
    loaded = LoadedCode(manifest, before, began_s)
    is_callable = source_path(manifest) is None
    if source and is_callable:
        loaded.import_also([manifest.deployment.model.source])
    code = files.part_of(loaded.code, manifest, live=is_callable)
    if not manifest.deployment.registry.keep_code or not (code.modules or code.data):
        return WrittenCode(code=code)
    packed = archive.pack(code, manifest, folder / _FILE)
    return WrittenCode(code=code, kept=packed.written, left_out=packed.left_out)


def files_of(found: WrittenCode, folder: Path) -> dict[str, Path]:
    """Return the copy as a file to keep with the version."""
    return {ARCHIVE: folder / _FILE} if found.kept else {}


def check_unchanged(found: WrittenCode, manifest: Manifest) -> None:
    """Check that the code is what it was when the build began.

    Raises:
        ArtifactError: a file changed during the build, so that its steps may have run with different code.
    """
    if changed := files.changed(manifest, found.code):
        raise ArtifactError(
            f"{few(changed)} changed during the build",
            hint="the registry is unchanged; run `tailcut build` again and do not change the files meanwhile",
        )
