"""``tailcut registry code``, and what other commands say of versions that need other code than the folder has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli._registry import Model, Place, chosen, load_named
from tailcut.cli.console import write
from tailcut.cli.options import ManifestPaths, Settings
from tailcut.code.digest import few
from tailcut.common.fingerprint import LIVE
from tailcut.errors import ArtifactError
from tailcut.manifest import Manifest
from tailcut.manifest.answer_settings import other_settings
from tailcut.registry import Registry, Version
from tailcut.registry.code import ARCHIVE, Check, code_of, nothing


def code(
    version: Annotated[str, typer.Argument(metavar="ID", help="A version's id, 'latest' or 'promoted'.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to; created if missing.")],
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files that differ.")] = False,
) -> None:
    """Write out the copy of your code that was kept with a version, and name its files."""
    with chosen(manifest, model, settings, place) as (registry, name):
        record = registry.version(name, version)
    for path in write_out(registry, record, folder, force=force):
        write(str(path))


def code_check(
    manifest: list[Path] | None, model: str, settings: list[str] | None, place: str | None, *, force: bool
) -> Check:
    """Return the check that a variant which is to be served was built with the manifest and its folder's code.

    Args:
        place: a registry that was named without a manifest; nothing is checked then.
        force: check nothing.
    """
    if place is not None or force:
        return nothing
    loaded = load_named(manifest, model, settings)

    def check(version: Version, variant: str) -> None:
        if version.model != loaded.deployment.name:
            if code_of(version) is not None:
                raise ArtifactError(
                    f"variant {variant!r} of version {version.id} was built with the code of model {version.model!r}, "
                    f"but the manifest in {loaded.directory} is of {loaded.deployment.name!r}",
                    hint=f"run this with the manifest of {version.model!r}, or skip the comparison with --force",
                )
            return
        live = version.variants[variant].runtime in LIVE
        if differ := other_settings(loaded.deployment, version.manifest, live=live):
            raise ArtifactError(
                f"variant {variant!r} of version {version.id} was built with another manifest than the one in "
                f"{loaded.directory}: {few(differ)}",
                hint="restore that manifest (`tailcut registry show --json` prints it); or give --force and restart "
                "the servers to serve the variant with the current manifest",
            )
        lacks = _lacks(loaded, version, [variant])
        if lacks:
            raise ArtifactError(
                f"variant {variant!r} of version {version.id} was built with other code than {loaded.directory} has: "
                f"{few(lacks)}",
                hint=f"restore that code (`tailcut registry code {version.id} FOLDER` writes it); or give --force and "
                "restart the servers to serve the variant with the current code",
            )

    return check


def other_code(
    registry: Registry, manifest: list[Path] | None, model: str, settings: list[str] | None, place: str | None
) -> Iterator[str]:
    """Say which versions of the manifest's model were built with other code than the manifest's folder has."""
    if place is not None:
        return
    loaded = load_named(manifest, model, settings)
    name = loaded.deployment.name
    for found, record in registry.scan(name):
        if isinstance(record, ArtifactError):
            continue
        try:
            version = registry.version(name, found)
        except ArtifactError:  # `registry verify` has named it
            continue
        built = [name for name, each in version.variants.items() if each.sha256]
        if lacks := _lacks(loaded, version, built):
            yield f"{name} {found} needs other code than {loaded.directory} has: {few(lacks)}"


def write_out(registry: Registry, version: Version, folder: Path, *, force: bool) -> list[Path]:
    """Write the copy of a version's code into a folder.

    Raises:
        ArtifactError: the registry keeps none, or it is damaged.
        ManifestError: a file is there and differs, without ``force``.
    """
    from tailcut.code.archive import extract

    kept = registry.file(version, ARCHIVE)
    if kept is None:
        raise ArtifactError(
            f"{registry.url} keeps no copy of the code of model {version.model!r} version {version.id}",
            hint="`tailcut registry show --json` prints its hashes; set registry.keep_code = true, and `tailcut build` "
            "keeps a copy from now on",
        )
    return extract(kept, folder, force=force)


def _lacks(manifest: Manifest, version: Version, variants: list[str]) -> tuple[str, ...]:
    from tailcut.code.files import lacks

    code = code_of(version)
    if code is None:
        return ()
    live = any(version.variants[name].runtime in LIVE for name in variants)
    return lacks(manifest, code, live=live)
