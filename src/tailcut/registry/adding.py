"""Puts one build into a registry: artifacts first, then the evidence, the record last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from tailcut.common.fingerprint import Machine, keys_of, uses_gpu
from tailcut.common.redaction import tree_without_secrets
from tailcut.errors import ArtifactError
from tailcut.registry.documents import blob_path, write_version
from tailcut.registry.records import KeptFile, NewVariant, VariantRecord, Version
from tailcut.registry.storage import Batch, Storage
from tailcut.system.atomic_files import digest


def store(storage: Storage, version: Version, artifacts: Mapping[str, Path], files: Mapping[str, Path]) -> Version:
    """Store a version whose records are made; see ``Registry.add``.

    Args:
        storage: where.
        version: the record; ``origins`` are checked once more when everything is copied.
        artifacts: file of each variant that has one.
        files: what is kept beside them.
    """
    cleared = replace(version, manifest=tree_without_secrets(version.manifest), origins=_relative(version.origins))
    with storage.adding(), storage.batch() as batch:
        for name, path in artifacts.items():
            _copy(storage, batch, path, version.variants[name])
        for name, path in files.items():
            _copy(storage, batch, path, version.files[name])
        check_origins({Path(path): sha for path, sha in version.origins.items()})
        sealed = write_version(batch, cleared)
        batch.commit()
    return sealed


def record(variant: NewVariant, machine: Machine, *, source: bool) -> VariantRecord:
    """Make the record of a variant: hash and size of its artifact, its state, its keys.

    Raises:
        ArtifactError: the artifact is not there or cannot be read, or the settings are no JSON.
    """
    sha, size_bytes = "", 0
    if variant.artifact is not None:
        if not variant.artifact.is_file():
            raise ArtifactError(f"artifact {variant.artifact} of variant {variant.name!r} does not exist")
        sha, size_bytes = digest(variant.artifact), variant.artifact.stat().st_size
    gpu = uses_gpu(variant.runtime, variant.settings)
    return VariantRecord(
        runtime=variant.runtime,
        sha256=sha,
        size_bytes=size_bytes,
        refused=variant.refused,
        evidence=dict(variant.evidence),
        settings=dict(variant.settings),
        state="passed" if sha and not variant.refused else "candidate",
        base=bool(sha) and (source or variant.base),
        keys=(variant.keys or keys_of(machine, variant.runtime, gpu=gpu)) if sha and not variant.parts else None,
        parts={name: digest(path) for name, path in variant.parts.items()},
        live_code=variant.live_code,
    )


def kept(path: Path) -> KeptFile:
    """Make the record of a file that is kept beside the artifacts."""
    return KeptFile(sha256=digest(path), size_bytes=path.stat().st_size)


def check_parts(records: Mapping[str, VariantRecord]) -> None:
    """Check that what a pair runs are artifacts of variants of the same version: so they are kept as long as it is.

    Raises:
        ArtifactError: a part is no variant, or another artifact than that variant's.
    """
    for name, record in records.items():
        for part, sha in record.parts.items():
            other = records.get(part)
            if other is None or other.parts or other.sha256 != sha:
                kept = "is no variant with one artifact" if other is None or other.parts else f"has {other.sha256}"
                raise ArtifactError(
                    f"variant {name!r} runs {part!r} with SHA-256 {sha}; in this version {part!r} {kept}",
                    hint="add a pair together with the variants that it was made from",
                )


def check_origins(origins: Mapping[Path, str]) -> None:
    """Check that the files that a model came from are still what they were.

    Raises:
        ArtifactError: one changed meanwhile, or is gone.
    """
    for path, expected in origins.items():
        found = digest(path) if path.is_file() else ""
        if found != expected:
            became = f"its SHA-256 was {expected} and is {found}" if found else "it no longer exists"
            raise ArtifactError(
                f"{path} changed during the build: {became}",
                hint="the registry is unchanged; run `tailcut build` again and do not change the file meanwhile",
            )


def _copy(storage: Storage, batch: Batch, path: Path, kept: VariantRecord | KeptFile) -> None:
    blob = blob_path(kept.sha256)
    if storage.holds(blob, kept.sha256, kept.size_bytes):
        return
    if batch.copy(blob, path) != kept.sha256:
        raise ArtifactError(f"artifact {path} changed while it was read", hint="build into a separate folder")


def _relative(origins: Mapping[str, str]) -> dict[str, str]:
    """Keep names below the folder that all have in common, not the folders of the machine that built it."""
    common = os.path.commonpath([os.path.dirname(path) for path in origins]) if origins else ""
    return {os.path.relpath(path, common or "."): sha for path, sha in origins.items()}
