"""The reading half of the registry: what is there, what is promoted, and whether it may be opened here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from tailcut.common.fingerprint import Machine, Trust
from tailcut.errors import ArtifactError, NotInRegistry
from tailcut.manifest import Manifest
from tailcut.registry import checking
from tailcut.registry.diff import Diff, diff_versions
from tailcut.registry.documents import (
    POINTER,
    blob_path,
    is_model,
    is_version,
    model_path,
    read_promotion,
    read_version,
    version_path,
)
from tailcut.registry.records import Promotion, Variant, Version
from tailcut.registry.storage import open_storage
from tailcut.registry.storage_local import LocalStorage
from tailcut.system.machine import read_machine


class RegistryReader:
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
    def folder(self) -> Path | None:
        """The folder of a local registry, there or not; None behind a URL."""
        return self._storage.root if isinstance(self._storage, LocalStorage) else None

    @property
    def root(self) -> Path:
        """The folder of a local registry."""
        if self.folder is None:
            raise ArtifactError(f"the registry {self.url} is not a local folder", hint="use its url")
        return self.folder

    @cached_property
    def machine(self) -> Machine:
        """The machine that variants are judged by; read once."""
        return self._machine or read_machine()

    def promotion(self, model: str) -> Promotion | None:
        """Return what is promoted, or None."""
        return read_promotion(self._storage, model)

    def promotion_stamp(self, model: str) -> Hashable:
        """Return something that changes with every promotion, for polling; None where nothing was promoted yet."""
        return self._storage.stamp(model_path(model, POINTER))

    def models(self) -> tuple[str, ...]:
        """Names of the models that have a version, sorted."""
        return tuple(each for each in self._storage.names("models") if is_model(each) and self._ids(each))

    def list(self, model: str | None = None) -> tuple[Version, ...]:
        """Return the versions of ``model`` (or of every model), newest first within a model, without evidence.

        Raises:
            ArtifactError: a record cannot be read, so that nobody knows what is there; see ``scan``.
        """
        names = self.models() if model is None else (model,)
        return tuple(version for name in names for version in self._versions(name))

    def scan(self, model: str) -> Iterator[tuple[str, Version | ArtifactError]]:
        """Yield the id of every version of a model with its record, without evidence, or with what is wrong with it.

        Newest first; those that cannot be read come last.
        """
        found: list[Version] = []
        broken: list[tuple[str, ArtifactError]] = []
        for each in self._ids(model):
            try:
                found.append(read_version(self._storage, model, each, evidence=False))
            except FileNotFoundError:
                continue  # removed since it was listed
            except ArtifactError as error:
                broken.append((each, error))
        yield from ((version.id, version) for version in sorted(found, key=_age, reverse=True))
        yield from broken

    def version(self, model: str, version: str = "promoted") -> Version:
        """Read the record of a version, with its evidence and manifest.

        Args:
            model: name of the deployment.
            version: "promoted", "latest" or an id.

        Raises:
            NotInRegistry: there is none of that model or id.
            ArtifactError: nothing is promoted, or a file of it is corrupt.
        """
        if version == "promoted":
            version = self._promoted(model).version
        elif version == "latest":
            versions = self._versions(model)
            if not versions:
                raise self._missing(model, "latest")
            version = versions[0].id
        try:
            return read_version(self._storage, model, version, evidence=True)
        except FileNotFoundError as error:
            raise self._missing(model, version) from error

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
        checking.built(record, name)
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

    def file(self, of: Version | Variant, name: str) -> Path | None:
        """Fetch a file that is kept beside the artifacts of a version, or of a variant's; None where it keeps no such.

        Raises:
            ArtifactError: it is missing, truncated or corrupt.
        """
        kept = of.files.get(name)
        if kept is None:
            return None
        what = f"file {name!r} of model {of.model!r} version {of.id if isinstance(of, Version) else of.version}"
        return self._storage.fetch(blob_path(kept.sha256), kept.sha256, kept.size_bytes, what)

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
            kind = ArtifactError if self._ids(model) else NotInRegistry
            raise kind(f"model {model!r} has no promoted version in {self.url}", hint=self._here(model))
        return promotion

    def _checked(self, record: Version, name: str, trust: Trust | None = None) -> Variant:
        found = checking.built(record, name)
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
            part_runtimes=tuple(record.variants[part].runtime for part in found.parts),
            bounds=record.evidence.bounds,
            code=record.evidence.code,
            files=record.files,
            manifest=record.manifest,
            feature_models=record.evidence.feature_models,
        )

    def _part(self, record: Version, what: str, part: str, sha: str) -> Path:
        kept = record.variants.get(part)
        if kept is None or kept.sha256 != sha:
            raise ArtifactError(
                f"{what} runs {part!r} with SHA-256 {sha}, which its version lacks",
                hint="the record was edited: run `tailcut build` again",
            )
        return self._storage.fetch(blob_path(sha), sha, kept.size_bytes, f"part {part!r} of {what}")

    def _versions(self, model: str) -> tuple[Version, ...]:
        found = []
        for _, version in self.scan(model):
            if isinstance(version, ArtifactError):
                raise version
            found.append(version)
        return tuple(found)

    def _ids(self, model: str) -> Sequence[str]:
        names = self._storage.names(model_path(model, "versions"))
        paths = {each: version_path(model, each) for each in names if is_version(each)}
        return [each for each, path in paths.items() if self._storage.size_bytes(path) is not None]

    def _folders(self) -> Sequence[str]:
        """Names of the models that have a folder with something in it; what else lies there is not the registry's."""
        names = self._storage.names("models")
        return [each for each in names if is_model(each) and self._storage.names(model_path(each))]

    def _missing(self, model: str, version: str) -> NotInRegistry:
        named = f" {version!r}" if version != "latest" else ""
        return NotInRegistry(f"model {model!r} has no version{named} in {self.url}", hint=self._here(model))

    def _here(self, model: str) -> str:
        ids, way_out = self._ids(model), "run `tailcut build`, or `tailcut registry promote`"
        if ids:
            return f"versions of {model!r}: {', '.join(ids)}; {way_out}"
        return f"models here: {', '.join(self.models()) or 'none'}; {way_out}"


def _age(version: Version) -> tuple[int, str, str]:
    """By the order in which they were added; clocks of several machines may differ."""
    return version.serial, version.created, version.id
