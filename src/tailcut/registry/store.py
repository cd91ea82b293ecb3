"""The registry: content-addressed artifacts, one record per version, and a pointer to what is served.

Everything is written atomically, nothing is pickled, an artifact's size and hash are checked before it is opened, and
what was judged on another machine is not taken for judged on this one. See ``documents`` for where each file lies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from tailcut.code.digest import identity
from tailcut.common.fingerprint import Machine, Trust, keys_of, uses_gpu
from tailcut.common.redaction import tree_without_secrets
from tailcut.errors import ArtifactError, NotInRegistry, NotServable
from tailcut.manifest import Manifest, TensorSpec
from tailcut.registry import checking, collect
from tailcut.registry.checking import Check, Trial, nothing
from tailcut.registry.diff import Diff, diff_versions
from tailcut.registry.documents import (
    POINTER,
    blob_path,
    decode,
    decode_pointer,
    encode,
    is_model,
    is_version,
    model_path,
    read_pointer,
    read_promotion,
    read_version,
    version_path,
    write_header,
    write_version,
)
from tailcut.registry.evidence import VersionEvidence
from tailcut.registry.history import promoted, rolled_back
from tailcut.registry.records import KeptFile, Move, NewVariant, Promotion, Variant, VariantRecord, Version, version_id
from tailcut.registry.storage import Batch, Storage, open_storage
from tailcut.registry.storage_local import LocalStorage
from tailcut.system.atomic_files import digest
from tailcut.system.clock import now
from tailcut.system.machine import read_machine


class Registry:
    """Artifacts and their evidence.

    Args:
        root: a local folder, made when something is first added, or a URL that fsspec knows ("s3://bucket/models").
        machine: whose keys variants get, and are judged by; this one where None.
        cache: local folder for artifacts that are fetched from a URL; the user's cache folder where None.

    Raises:
        MissingExtra: a URL, and fsspec or its scheme's package is not installed.
    """

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

    # -- Verifying -----------------------------------------------------------------------------------------------------

    def verify(self, trial: Trial | None = None) -> Iterator[tuple[str, ArtifactError | None]]:
        """Check every record, artifact and pointer; yield what was checked, and what is wrong with it.

        A variant that is whole and cannot be served here has a NotServable; one that is promoted, another error.

        Args:
            trial: opens a variant whose artifact is whole; None: none is opened.
        """
        for model in self.models():
            served: tuple[str, str] | None = None
            try:
                served = self._served(model)
            except ArtifactError as error:
                yield f"{model} {POINTER}", _broken_promise(error)
            for each in self._ids(model):
                try:
                    record = self.version(model, each)
                except ArtifactError as error:
                    yield f"{model} {each}", error
                    continue
                for name, kept in record.files.items():
                    yield checking.outcome(
                        f"{model} {each} file {name} {kept.sha256}", partial(self.file, record, name)
                    )
                for name, found in record.variants.items():
                    if found.sha256:
                        what, problem = checking.outcome(
                            f"{model} {each} {name} {found.sha256}",
                            partial(self._checked, record, name),
                            trial and partial(trial, record, name),
                        )
                        yield what, _broken_promise(problem) if problem and served == (each, name) else problem

    # -- Building ------------------------------------------------------------------------------------------------------

    def build_lock(self, model: str) -> AbstractContextManager[None]:
        """Lock ``model`` against other builds; a BuildError names the process that holds it."""
        return self._storage.build_lock(model_path(model, "build.lock"), model)

    def add(
        self,
        model: str,
        *,
        source: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        variants: Sequence[NewVariant],
        evidence: VersionEvidence | None = None,
        manifest: Mapping[str, Any] | None = None,
        origins: Mapping[Path, str] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> Version:
        """Store artifacts and the record of one build.

        The id is made from tensors, artifacts and code: the same again give the same version with new evidence, and
        one that was retired is back.

        Args:
            model: name of the deployment.
            source: name of the variant that all others are judged against.
            inputs, outputs: tensors of the model.
            variants: all that were tried.
            evidence: of the build as a whole, with the user's code.
            manifest: the deployment as plain values; passwords in addresses are left out.
            origins: files that the source model came from, with the SHA-256 that each had when the build began.
            files: what is kept beside the artifacts, by what it is: see ``file``.

        Raises:
            ArtifactError: an artifact is missing, a pair's part is no variant of the version, an origin changed
                meanwhile, or the registry cannot be written; it is as it was.
        """
        records = {each.name: record_of(each, self.machine, source=each.name == source) for each in variants}
        check_parts(records)
        evidence = evidence or VersionEvidence()
        code = evidence.code
        told = identity(code) if code is not None and (code.modules or code.data) else ""
        version = Version(
            model=model,
            id=version_id(model, tuple(inputs), tuple(outputs), records, told),
            created=now(),
            serial=1 + max((each.serial for _, each in self.scan(model) if isinstance(each, Version)), default=0),
            source=source,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            variants=records,
            evidence=evidence,
            manifest=dict(manifest or {}),
            origins={str(path): sha for path, sha in (origins or {}).items()},
            files={
                name: KeptFile(sha256=digest(path), size_bytes=path.stat().st_size)
                for name, path in (files or {}).items()
            },
            code=told,
        )
        artifacts = {each.name: each.artifact for each in variants if each.artifact is not None}
        return write_build(self._storage, version, artifacts, files or {})

    def confirmations(self, model: str, split_sha256: str, artifacts: Sequence[str]) -> int:
        """Count the other sets of artifacts that earlier builds judged on this confirmation split."""
        return count_other(self._ledger(model), split_sha256, artifacts)

    def record_confirmation(self, model: str, split_sha256: str, artifacts: Sequence[str]) -> None:
        """Note that a confirmation split has judged these artifacts (their SHA-256s); kept for good."""
        with self._storage.changing(model_path(model, "pointers.lock")):
            after = recorded(self._ledger(model), split_sha256, artifacts)
            self._write(model_path(model, "confirmations.json"), encode(after))

    # -- Promoting -----------------------------------------------------------------------------------------------------

    def promote(
        self,
        model: str,
        version: str,
        variant: str,
        *,
        force: bool = False,
        check: Check = nothing,
        trial: Trial | None = None,
    ) -> Promotion:
        """Make a variant the one that is served from now on; a running server follows.

        A pointer that is corrupt is put aside and written anew; the history that was in it is lost.

        Args:
            force: although it was refused or never passed the gate.
            check: raises an ArtifactError where the variant of a version must not be promoted for a reason that the
                registry does not know.
            trial: opens the variant first; None: its file is checked alone.

        Raises:
            NotInRegistry: no such version or variant.
            ArtifactError: a corrupt artifact, a retired version, one that was refused or never passed the gate
                without ``force``, or one that cannot be served.
        """
        with self._storage.changing(model_path(model, "pointers.lock")):
            record = self.version(model, version)
            checking.refuse_retired(record)
            chosen = self._checked(record, variant)
            checking.refuse(record, variant, check, force=force)
            if trial is not None:
                trial(record, variant)
            move = Move(version=record.id, variant=variant, at=now(), how="force" if chosen.refused else "promote")
            before = self._mended(model)
            after = promoted(before, move)
            if after is not before:
                self._write(model_path(model, POINTER), encode(after))
        return after

    def rollback(
        self,
        model: str,
        *,
        check: Check = nothing,
        trial: Trial | None = None,
        notice: Callable[[str], object] = lambda text: None,
    ) -> Promotion:
        """Serve what was served before; again, what was served before that.

        Args:
            check: as for ``promote``; one that it refuses is not passed over.
            trial: opens the variant first, and one that cannot be opened is passed over; None: its file is checked
                alone.
            notice: is given a text about each promotion that was passed over.

        Raises:
            ArtifactError: there is nothing to go back to, with the reason for each earlier promotion.
        """
        with self._storage.changing(model_path(model, "pointers.lock")):
            before = self._promoted(model)
            passed: dict[str, ArtifactError] = {}
            after = rolled_back(before, now(), partial(self._unusable, model, check, trial, passed))
            said = [f"{what}: {error.message}" for what, error in passed.items()]
            if after is None:
                ways_out = dict.fromkeys(error.hint for error in passed.values() if error.hint)
                raise ArtifactError(
                    "; ".join((f"model {model!r} has no earlier promotion to roll back to in {self.url}", *said)),
                    hint="; ".join((*ways_out, "`tailcut registry list` lists what can be promoted")),
                )
            self._write(model_path(model, POINTER), encode(after))
        for each in said:
            notice(f"skipped {each}")
        return after

    # -- Clearing up ---------------------------------------------------------------------------------------------------

    def retire(self, model: str, version: str) -> Version:
        """Serve a version no more; ``collect_garbage`` may remove it.

        Raises:
            ArtifactError: there is none, or it is promoted.
        """
        with self._storage.changing(model_path(model, "pointers.lock")):
            record = self.version(model, version)
            promotion = self.promotion(model)
            if promotion is not None and promotion.version == record.id:
                raise ArtifactError(
                    f"version {record.id} of model {model!r} is promoted ({promotion.variant!r} is served)",
                    hint="promote another version first, or roll back",
                )
            retired = replace(record, retired=record.retired or now())
            with self._storage.adding(), self._storage.batch() as batch:
                write_header(batch, retired)
                batch.commit()
        return retired

    def collect_garbage(self, *, dry_run: bool = False) -> collect.Collected:
        """Remove retired versions, artifacts that nothing refers to, and what failed writes left behind.

        What is promoted and what the next rollback goes to stay.

        Raises:
            BuildError: a build is under way, or artifacts are being added.
            ArtifactError: a record is corrupt or missing, so that nobody knows what it refers to.
        """
        with collect.locked(self._storage, self._folders()):
            promotions, versions = {model: self.promotion(model) for model in self._folders()}, self.list()
            collect.refuse_incomplete(self._storage, versions, promotions)
            found = collect.plan(self._storage, versions, promotions)
            if not dry_run:
                for path in found.files:  # records first, so that none refers to what is gone
                    self._storage.remove(path)
        return found

    # -- Inside --------------------------------------------------------------------------------------------------------

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

    def _served(self, model: str) -> tuple[str, str] | None:
        """Return version and variant of what is promoted, which is there; None where nothing is.

        Raises:
            ArtifactError: the pointer is corrupt, or leads to what is not there or is not served any more.
        """
        promotion = self.promotion(model)
        if promotion is None:
            return None
        record = self.version(model, promotion.version)
        checking.refuse_retired(record)
        checking.built(record, promotion.variant)
        return promotion.version, promotion.variant

    def _unusable(
        self, model: str, check: Check, trial: Trial | None, passed: dict[str, ArtifactError], move: Move
    ) -> str:
        """Say why a variant that was promoted once cannot be served now; empty where it can.

        Args:
            passed: takes the error, by variant and version.

        Raises:
            ArtifactError: of ``check``.
        """
        what = f"{move.variant} of {move.version}"
        if what in passed:
            return passed[what].message
        try:
            record = self.version(model, move.version)
            checking.refuse_retired(record)
            self._checked(record, move.variant)
        except ArtifactError as error:
            passed[what] = error
            return error.message
        check(record, move.variant)
        try:
            if trial is not None:
                trial(record, move.variant)
        except ArtifactError as error:
            passed[what] = error
            return error.message
        return ""

    def _mended(self, model: str) -> Promotion | None:
        """Read what is promoted; what cannot be understood is put aside and counts as nothing."""
        content = read_pointer(self._storage, model)
        if content is None:
            return None
        try:
            return decode_pointer(self._storage, model, content)
        except ArtifactError:
            self._write(model_path(model, f"{POINTER}.corrupt"), content)
            return None

    def _ledger(self, model: str) -> Ledger:
        try:
            return decode(self._storage, model_path(model, "confirmations.json"), Ledger)
        except FileNotFoundError:
            return Ledger()

    def _write(self, path: str, content: bytes) -> None:
        with self._storage.batch() as batch:
            batch.write(path, content)
            batch.commit()


def _broken_promise(error: ArtifactError) -> ArtifactError:
    """Return the error of what is promoted: that it cannot be served is a fault of the registry then."""
    if not isinstance(error, NotServable):
        return error
    return ArtifactError(f"{error.message}; it is promoted", hint=error.hint, detail=error.detail)


def _age(version: Version) -> tuple[int, str, str]:
    """By the order in which they were added; clocks of several machines may differ."""
    return version.serial, version.created, version.id


# -- How often a holdout was used --------------------------------------------------------------------------------------


# Each set of artifacts that a confirmation split judged counts as one use of it.
#
# A split that is asked again and again about variants that were chosen by its earlier answers no longer is an unseen
# judge (Dwork et al. 2015, "The reusable holdout", Science 349). The gate corrects for the number of looks.

MOST_SETS = 1000
"""Sets of artifacts that are recorded per split; of older ones only the number is."""

MOST_SPLITS = 1000
"""Splits that are remembered; the one that was used longest ago is forgotten first."""


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """Of one split: the sets that it judged, oldest first, and how many more there were before."""

    sets: tuple[str, ...] = ()
    older: int = 0


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model: uses per split, by the split's SHA-256, the split that was used last at the end."""

    splits: dict[str, Uses] = {}


def count_other(ledger: Ledger, split_sha256: str, artifacts: Iterable[str]) -> int:
    """Count the different sets of artifacts, other than this one, that the split has judged."""
    uses = ledger.splits.get(split_sha256, Uses())
    return uses.older + len(set(uses.sets) - {_set_of(artifacts)})


def recorded(ledger: Ledger, split_sha256: str, artifacts: Iterable[str]) -> Ledger:
    """Note that the split has judged this set of artifacts; judging the same set again is no further look."""
    splits = dict(ledger.splits)
    uses = splits.pop(split_sha256, Uses())
    mine = _set_of(artifacts)
    if mine not in uses.sets:
        sets = (*uses.sets, mine)
        dropped = max(0, len(sets) - MOST_SETS)
        uses = replace(uses, sets=sets[dropped:], older=uses.older + dropped)
    splits[split_sha256] = uses
    for oldest in list(splits)[: max(0, len(splits) - MOST_SPLITS)]:
        del splits[oldest]
    return Ledger(splits=splits)


def _set_of(artifacts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(artifacts))).encode()).hexdigest()[:16]


# -- Adding versions and variants --------------------------------------------------------------------------------------


# Puts one build into a registry: artifacts first, then the evidence, the record last.


def write_build(
    storage: Storage, version: Version, artifacts: Mapping[str, Path], files: Mapping[str, Path]
) -> Version:
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


def record_of(variant: NewVariant, machine: Machine, *, source: bool) -> VariantRecord:
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
        evidence=variant.evidence,
        settings=dict(variant.settings),
        state="passed" if sha and not variant.refused else "candidate",
        base=bool(sha) and (source or variant.base),
        keys=(variant.keys or keys_of(machine, variant.runtime, gpu=gpu)) if sha and not variant.parts else None,
        parts={name: digest(path) for name, path in variant.parts.items()},
        live_code=variant.live_code,
    )


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
