"""The reading half of the registry: what is there, what is promoted, and whether it may be opened here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from tailcut.core.fingerprint import Machine, Trust
from tailcut.errors import ArtifactError
from tailcut.manifest import Manifest
from tailcut.registry import checking
from tailcut.registry.diff import Diff, diff_versions
from tailcut.registry.documents import blob_path, model_path, read_promotion, read_version, version_path
from tailcut.registry.machine import read_machine
from tailcut.registry.records import Promotion, Variant, VariantRecord, Version
from tailcut.registry.storage import open_storage
from tailcut.registry.storage_local import LocalStorage


class Reader:
    """Reads a registry; use ``Registry``."""

    def __init__(self, root: Path | str, *, machine: Machine | None = None, cache: Path | None = None) -> None:
        self._storage = open_storage(root, cache)
        self._machine = machine

    @classmethod
    def of(cls, manifest: Manifest, *, machine: Machine | None = None) -> Self:
        """Open the registry of a manifest: a URL, or a path that starts at the manifest's folder."""
        path = manifest.deployment.registry.path
        return cls(path if "://" in path else manifest.directory / path, machine=machine)

    @property
    def url(self) -> str:
        """The folder or the URL, for messages."""
        return self._storage.url

    @property
    def root(self) -> Path:
        """The folder of a local registry."""
        if isinstance(self._storage, LocalStorage):
            return self._storage.root
        raise ArtifactError(f"the registry {self.url} is not a local folder", hint="use its url")

    @cached_property
    def machine(self) -> Machine:
        """The machine that variants are judged by; read once."""
        return self._machine or read_machine()

    def promotion(self, model: str) -> Promotion | None:
        """Return what is promoted, or None."""
        return read_promotion(self._storage, model)

    def promotion_stamp(self, model: str) -> Hashable:
        """Return something that changes with every promotion, for polling; None where nothing was promoted yet."""
        return self._storage.stamp(model_path(model, "promoted.json"))

    def models(self) -> tuple[str, ...]:
        """Names of the models that have a version, sorted."""
        return tuple(model for model in self._storage.names("models") if self._ids(model))

    def list(self, model: str | None = None) -> tuple[Version, ...]:
        """Return the versions of ``model`` (or of every model), newest first within a model, without evidence."""
        names = self.models() if model is None else (model,)
        return tuple(version for name in names for version in self._versions(name))

    def version(self, model: str, version: str = "promoted") -> Version:
        """Read the record of a version, with its evidence and manifest.

        Args:
            model: name of the deployment.
            version: "promoted", "latest" or an id.

        Raises:
            ArtifactError: there is none, or a file of it is corrupt.
        """
        if version == "promoted":
            version = self._promoted(model).version
        elif version == "latest":
            versions = self._versions(model)
            if not versions:
                raise self._missing(model, f"model {model!r} has no version in {self.url}")
            version = versions[0].id
        try:
            return read_version(self._storage, model, version, evidence=True)
        except FileNotFoundError as error:
            raise self._missing(model, f"model {model!r} has no version {version!r} in {self.url}") from error

    def diff(self, model: str, old: str, new: str) -> Diff:
        """Compare two versions; each is "promoted", "latest" or an id."""
        return diff_versions(self.version(model, old), self.version(model, new))

    def variant(
        self,
        model: str,
        name: str = "promoted",
        version: str = "promoted",
        *,
        unverified: bool = False,
        trust: bool = False,
    ) -> Variant:
        """Find a variant to serve: check that it may be opened here, and its artifact's size and SHA-256.

        Args:
            model: name of the deployment.
            name: "promoted" or a variant's name.
            version: "promoted", "latest" or an id.
            unverified: open it although its quality verdict comes from other kernels.
            trust: open a pickle, which runs the code that is in it.

        Raises:
            ArtifactError: there is none, it could not be built, its file is missing, truncated or corrupt, it was
                retired, it is not openable or unverified on this machine, or it is a pickle.
        """
        record, name = self._find(model, name, version)
        checking.refuse_retired(record)
        _built(record, name)
        found = self.trust(record, name)
        checking.refuse_untrusted(record, name, found, unverified=unverified)
        variant = self._checked(record, name, found)
        if not trust:
            checking.refuse_pickle(variant)
        return variant

    def artifact(self, model: str, name: str = "promoted", version: str = "promoted") -> Variant:
        """Find a variant to build from or to verify: its file is checked, the machine is not.

        Raises:
            ArtifactError: there is none, it could not be built, or its file is missing, truncated or corrupt.
        """
        record, name = self._find(model, name, version)
        return self._checked(record, name)

    def verify(self) -> Iterator[tuple[str, ArtifactError | None]]:
        """Check every record and artifact of every version; yield what was checked, and what is wrong with it."""
        for model in self.models():
            for each in self._ids(model):
                try:
                    record = self.version(model, each)
                except ArtifactError as error:
                    yield f"{model} {each}", error
                    continue
                for name in (name for name, found in record.variants.items() if found.sha256):
                    try:
                        checked = self._checked(record, name)
                    except ArtifactError as error:
                        yield f"{model} {each} {name}", error
                    else:
                        yield f"{model} {each} {name} {checked.sha256}", None

    def trust(self, version: Version, name: str) -> Trust:
        """Judge how far a variant's evidence holds on this machine."""
        return checking.trust_here(version, name, self.machine)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _find(self, model: str, name: str, version: str) -> tuple[Version, str]:
        if name == "promoted":
            promotion = self._promoted(model)
            name, version = promotion.variant, promotion.version
        return self.version(model, version), name

    def _promoted(self, model: str) -> Promotion:
        promotion = self.promotion(model)
        if promotion is None:
            raise self._missing(model, f"nothing of model {model!r} is promoted in {self.url}")
        return promotion

    def _checked(self, record: Version, name: str, trust: Trust | None = None) -> Variant:
        found = _built(record, name)
        what = f"variant {name!r} of model {record.model!r} version {record.id}"
        return Variant(
            model=record.model,
            name=name,
            runtime=found.runtime,
            artifact=self._storage.fetch(blob_path(found.sha256), found.sha256, found.size_bytes, what),
            sha256=found.sha256,
            inputs=record.inputs,
            outputs=record.outputs,
            version=record.id,
            evidence=found.evidence,
            refused=found.refused,
            size_bytes=found.size_bytes,
            settings=found.settings,
            trust=trust or self.trust(record, name),
            parts={part: self._part(record, what, part, sha) for part, sha in found.parts.items()},
        )

    def _part(self, record: Version, what: str, part: str, sha: str) -> Path:
        kept = record.variants.get(part)
        if kept is None or kept.sha256 != sha:
            raise ArtifactError(
                f"{what} runs {part!r} with SHA-256 {sha}, which its version does not hold",
                hint="the record was changed by hand: run `tailcut build` again",
            )
        return self._storage.fetch(blob_path(sha), sha, kept.size_bytes, f"part {part!r} of {what}")

    def _versions(self, model: str) -> tuple[Version, ...]:
        found = [read_version(self._storage, model, each, evidence=False) for each in self._ids(model)]
        return tuple(sorted(found, key=lambda version: (version.created, version.id), reverse=True))

    def _ids(self, model: str) -> Sequence[str]:
        names = self._storage.names(model_path(model, "versions"))
        return [each for each in names if self._storage.size_bytes(version_path(model, each)) is not None]

    def _missing(self, model: str, message: str) -> ArtifactError:
        ids = self._ids(model)
        here = (
            f"versions of {model!r}: {', '.join(ids)}" if ids else f"models here: {', '.join(self.models()) or 'none'}"
        )
        return ArtifactError(message, hint=f"{here}; run `tailcut build`, or `tailcut registry promote`")


def _built(record: Version, name: str) -> VariantRecord:
    """Find a variant that has an artifact.

    Raises:
        ArtifactError: there is none of that name, or it could not be built.
    """
    found = record.variants.get(name)
    if found is None:
        raise ArtifactError(
            f"model {record.model!r} version {record.id} has no variant {name!r}",
            hint=f"it has: {', '.join(record.variants)}",
        )
    if not found.sha256:
        built = ", ".join(each for each, other in record.variants.items() if other.sha256)
        raise ArtifactError(
            f"variant {name!r} of model {record.model!r} version {record.id} was not built: {found.refused}",
            hint=f"mend that and run `tailcut build` again, or choose one of: {built}",
        )
    return found
