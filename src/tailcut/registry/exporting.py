"""Writes the artifact of a variant to a file of the user's, with a description beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tailcut.errors import ArtifactError, ManifestError
from tailcut.registry import checking
from tailcut.registry.records import Variant, Version
from tailcut.registry.store import Registry
from tailcut.system.atomic_files import Staging

_WAY_OUT = "write to another folder"


def export(registry: Registry, version: Version, name: str, file: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write a variant's artifact to ``file``, and what it takes, gives and needs to ``file`` with ".json" behind it.

    Both files appear whole or not at all.

    Args:
        version: of the variant.
        name: of the variant.
        force: overwrite files that are there.

    Returns:
        both files.

    Raises:
        NotInRegistry: there is no such variant.
        ManifestError: a file is there already, or its folder is not.
        ArtifactError: the variant is no model by itself, its artifact is damaged, or the files cannot be written.
    """
    description = file.with_name(f"{file.name}.json")
    _refuse_in_place(file, description, force=force)
    found = checking.built(version, name)
    what = f"variant {name!r} of model {version.model!r} version {version.id}"
    if found.parts:
        commands = [f"`tailcut registry export {version.id} {part} FILE`" for part in found.parts]
        raise ArtifactError(
            f"{what} is a pair of {' and '.join(map(repr, found.parts))}, which only tailcut can run",
            hint=f"export its parts: {', '.join(commands)}",
        )
    if found.runtime == "sklearn":
        raise ArtifactError(
            f"{what} was not stored: its artifact holds rows and answers, but no model",
            hint=f"take the model from {', '.join(found.live_code)}, or export another variant",
        )
    variant = registry.artifact(version.model, name, version.id)
    content = msgspec.json.format(msgspec.json.encode(_described(version, variant)), indent=2) + b"\n"
    with Staging(file.parent, _WAY_OUT) as staging:
        if staging.copy(file, variant.artifact) != variant.sha256:
            raise ArtifactError(f"{variant.artifact} changed while it was read", hint="run the command again")
        staging.write(description, content)
        staging.commit()
    return file, description


def _refuse_in_place(*files: Path, force: bool) -> None:
    folder = files[0].parent
    if not folder.is_dir():
        raise ManifestError(f"{folder} is not a folder", hint="create it first, or write to another folder")
    for file in files:
        if file.is_dir():
            raise ManifestError(f"{file} is a folder", hint="name a file")
        if file.exists() and not force:
            raise ManifestError(f"{file} already exists", hint="name another file, or overwrite it with --force")


def _described(version: Version, variant: Variant) -> Mapping[str, object]:
    return {
        "model": version.model,
        "version": version.id,
        "variant": variant.name,
        "runtime": variant.runtime,
        "sha256": variant.sha256,
        "inputs": variant.inputs,
        "outputs": variant.outputs,
        "classes": version.variants[version.source].evidence.recipe.classes,
        "settings": variant.settings,
        "built_with": version.evidence.versions,
        "live_code": version.variants[variant.name].live_code,
    }
