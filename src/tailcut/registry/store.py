"""The registry: a folder of content-addressed artifacts, one record per version, and a pointer to what is served.

    <root>/blobs/sha256/ab/abcd...                 artifacts, named by their own hash
    <root>/models/<model>/versions/<id>/version.json
    <root>/models/<model>/promoted.json
    <root>/models/<model>/build.lock

Everything is written atomically, nothing is pickled, and an artifact's size and hash are checked when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tailcut.errors import ArtifactError
from tailcut.manifest import Tensor
from tailcut.registry._files import Staging, digest
from tailcut.registry._lock import build_lock
from tailcut.registry.records import (
    SCHEMA,
    NewVariant,
    Promotion,
    Variant,
    VariantRecord,
    Version,
    version_id,
)

_Record = TypeVar("_Record", Version, Promotion)


class Registry:
    """Artifacts and their evidence in a local folder.

    Args:
        root: the folder; made when something is first added.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    # -- Writing -----------------------------------------------------------------------------------------------------

    def build_lock(self, model: str) -> AbstractContextManager[None]:
        """Lock ``model`` against other builds; a BuildError names the process that holds it."""
        return build_lock(self._folder(model) / "build.lock", model)

    def add(
        self,
        model: str,
        *,
        source: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        variants: Sequence[NewVariant],
        evidence: Mapping[str, Any] | None = None,
    ) -> Version:
        """Store artifacts and the record of one build.

        The id is made from tensors and artifacts: the same artifacts again give the same version with new evidence.

        Raises:
            ArtifactError: an artifact is missing or the folder cannot be written; the registry is as it was.
        """
        with Staging() as staging:
            records = {each.name: self._stage(staging, each) for each in variants}
            version = Version(
                model=model,
                id=version_id(model, tuple(inputs), tuple(outputs), records),
                created=_now(),
                source=source,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                variants=records,
                evidence=dict(evidence or {}),
            )
            staging.write(self._version_file(model, version.id), _encode(version))
            staging.commit()
        return version

    def promote(self, model: str, version: str, variant: str, *, force: bool = False) -> Promotion:
        """Make a variant the one that is served from now on.

        Raises:
            ArtifactError: no such version or variant, a corrupt artifact, or a refused variant without ``force``.
        """
        chosen = self.variant(model, variant, version)
        if chosen.refused and not force:
            raise ArtifactError(
                f"variant {variant!r} of model {model!r} version {chosen.version} was refused: {chosen.refused}",
                hint="promote another variant, raise the quality budget and build again, or say --force",
            )
        promotion = Promotion(version=chosen.version, variant=chosen.name, promoted=_now())
        with Staging() as staging:
            staging.write(self._folder(model) / "promoted.json", _encode(promotion))
            staging.commit()
        return promotion

    # -- Reading -----------------------------------------------------------------------------------------------------

    def models(self) -> tuple[str, ...]:
        """Names of the models that have a version, sorted."""
        return tuple(sorted({path.parents[2].name for path in self.root.glob("models/*/versions/*/version.json")}))

    def list(self, model: str | None = None) -> tuple[Version, ...]:
        """Return the versions of ``model`` (or of every model), newest first within a model."""
        names = self.models() if model is None else (model,)
        return tuple(version for name in names for version in self._versions(name))

    def promotion(self, model: str) -> Promotion | None:
        """Return what is promoted, or None."""
        path = self._folder(model) / "promoted.json"
        return _decode(path, Promotion) if path.exists() else None

    def version(self, model: str, version: str = "promoted") -> Version:
        """Read the record of a version.

        Args:
            model: name of the deployment.
            version: "promoted", "latest" or an id.

        Raises:
            ArtifactError: there is none, or its file is corrupt.
        """
        if version == "promoted":
            promotion = self.promotion(model)
            if promotion is None:
                raise self._missing(model, f"nothing of model {model!r} is promoted in {self.root}")
            version = promotion.version
        elif version == "latest":
            versions = self._versions(model)
            if not versions:
                raise self._missing(model, f"model {model!r} has no version in {self.root}")
            return versions[0]
        path = self._version_file(model, version)
        if not path.exists():
            raise self._missing(model, f"model {model!r} has no version {version!r} in {self.root}")
        return self._read_version(path)

    def variant(self, model: str, name: str = "promoted", version: str = "promoted") -> Variant:
        """Find a variant and check its artifact's size and SHA-256.

        Args:
            model: name of the deployment.
            name: "promoted" or a variant's name.
            version: "promoted", "latest" or an id.

        Raises:
            ArtifactError: there is none, it could not be built, or its file is missing, truncated or corrupt.
        """
        if name == "promoted":
            promotion = self.promotion(model)
            if promotion is None:
                raise self._missing(model, f"nothing of model {model!r} is promoted in {self.root}")
            name, version = promotion.variant, promotion.version
        record = self.version(model, version)
        found = record.variants.get(name)
        if found is None:
            raise ArtifactError(
                f"model {model!r} version {record.id} has no variant {name!r}",
                hint=f"it has: {', '.join(record.variants)}",
            )
        if not found.sha256:
            raise ArtifactError(
                f"variant {name!r} of model {model!r} version {record.id} was not built: {found.refused}",
                hint=f"mend that and run `tailcut build` again, or choose one of: {', '.join(_built(record))}",
            )
        return self._checked(record, name, found)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _stage(self, staging: Staging, variant: NewVariant) -> VariantRecord:
        sha, size_bytes = "", 0
        if variant.artifact is not None:
            if not variant.artifact.is_file():
                raise ArtifactError(f"artifact {variant.artifact} of variant {variant.name!r} does not exist")
            sha, size_bytes = digest(variant.artifact), variant.artifact.stat().st_size
            blob = self._blob(sha)
            if not (blob.exists() and blob.stat().st_size == size_bytes and digest(blob) == sha):
                copied = staging.copy(blob, variant.artifact)
                if copied != sha:
                    raise ArtifactError(
                        f"artifact {variant.artifact} changed while it was read", hint="build into a folder of its own"
                    )
        return VariantRecord(
            runtime=variant.runtime,
            sha256=sha,
            size_bytes=size_bytes,
            refused=variant.refused,
            evidence=dict(variant.evidence),
            settings=dict(variant.settings),
        )

    def _checked(self, record: Version, name: str, found: VariantRecord) -> Variant:
        path = self._blob(found.sha256)
        what = f"artifact {path} (variant {name!r} of model {record.model!r} version {record.id})"
        hint = "run `tailcut build` again, or promote another version"
        if not path.exists():
            raise ArtifactError(f"{what} is missing", hint=hint)
        size_bytes = path.stat().st_size
        if size_bytes != found.size_bytes:
            raise ArtifactError(f"{what} has {size_bytes} bytes, expected {found.size_bytes}", hint=hint)
        sha = digest(path)
        if sha != found.sha256:
            raise ArtifactError(f"{what} is corrupt: SHA-256 is {sha}, expected {found.sha256}", hint=hint)
        return Variant(
            model=record.model,
            name=name,
            runtime=found.runtime,
            artifact=path,
            sha256=sha,
            inputs=record.inputs,
            outputs=record.outputs,
            version=record.id,
            evidence=found.evidence,
            refused=found.refused,
            size_bytes=size_bytes,
            settings=found.settings,
        )

    def _versions(self, model: str) -> tuple[Version, ...]:
        found = [self._read_version(path) for path in self._folder(model).glob("versions/*/version.json")]
        return tuple(sorted(found, key=lambda version: (version.created, version.id), reverse=True))

    def _read_version(self, path: Path) -> Version:
        version = _decode(path, Version)
        if version.schema > SCHEMA:
            raise ArtifactError(
                f"{path} has schema {version.schema}, this tailcut reads up to {SCHEMA}",
                hint="upgrade tailcut, or build the model again with this one",
            )
        expected = version_id(version.model, version.inputs, version.outputs, version.variants)
        if not version.id == expected == path.parent.name:
            raise ArtifactError(
                f"{path} is corrupt: its content has the id {expected}, expected {path.parent.name}",
                hint="run `tailcut build` again, or promote another version",
            )
        return version

    def _folder(self, model: str) -> Path:
        if not model or model.startswith(".") or os.sep in model:
            raise ArtifactError(f"{model!r} cannot be a model's name", hint="letters, digits, '_', '.' and '-' only")
        return self.root / "models" / model

    def _version_file(self, model: str, version: str) -> Path:
        if not version.isalnum():
            raise ArtifactError(f"{version!r} is not a version id", hint="`tailcut registry list` shows the ids")
        return self._folder(model) / "versions" / version / "version.json"

    def _blob(self, sha: str) -> Path:
        return self.root / "blobs" / "sha256" / sha[:2] / sha

    def _missing(self, model: str, message: str) -> ArtifactError:
        ids = sorted(path.name for path in self._folder(model).glob("versions/*"))
        known = (
            f"versions of {model!r}: {', '.join(ids)}" if ids else f"models here: {', '.join(self.models()) or 'none'}"
        )
        return ArtifactError(message, hint=f"{known}; run `tailcut build`, or `tailcut registry promote`")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _built(version: Version) -> tuple[str, ...]:
    return tuple(name for name, each in version.variants.items() if each.sha256)


def _encode(record: Version | Promotion) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def _decode(path: Path, kind: type[_Record]) -> _Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ArtifactError(
            f"cannot read {path}: {error.strerror}", hint="check that it exists and its rights"
        ) from error
    except msgspec.MsgspecError as error:
        raise ArtifactError(
            f"{path} is corrupt: {error}", hint="run `tailcut build` again, or promote another version"
        ) from error
