"""Where each file of a registry lies, and how records become files and back.

blobs/sha256/ab/abcd...                               artifacts, named by their own hash
models/<model>/versions/<id>/version.json             what a version is: small
models/<model>/versions/<id>/evidence-<hash>.json     what was measured of it, and the manifest
models/<model>/promoted.json                          the pointer to what is served, with its history
models/<model>/confirmations.json                     which artifacts each confirmation split has judged
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tailcut.errors import ArtifactError, NotInRegistry
from tailcut.registry.evidence import VariantEvidence, VersionEvidence
from tailcut.registry.records import SCHEMA, Promotion, Version, version_id
from tailcut.registry.storage import Batch, Storage

_Record = TypeVar("_Record", bound=msgspec.Struct)
_AGAIN = "run `tailcut build` again, or promote another version"

POINTER = "promoted.json"
"""Name of the file of a model that says what is served."""


class _Form(msgspec.Struct, frozen=True):
    """The number of a record's form, whatever else is in it."""

    schema: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The file beside version.json; ``manifest`` as in ``Version``."""

    model: str
    version: str
    evidence: VersionEvidence
    manifest: dict[str, Any]
    variants: dict[str, VariantEvidence]


def blob_path(sha256: str) -> str:
    """Where an artifact lies."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"


def is_model(name: str) -> bool:
    """Tell whether a name can be a model's: one that could leave the folder cannot, nor one of a hidden file."""
    return bool(name) and not name.startswith(".") and not set(name) & {"/", "\\", "\0"}


def is_version(name: str) -> bool:
    """Tell whether a name can be a version's id."""
    return name.isascii() and name.isalnum()


def model_path(model: str, name: str = "") -> str:
    """Where a file of a model lies.

    Raises:
        NotInRegistry: the name could leave the folder.
    """
    if not is_model(model):
        raise NotInRegistry(f"{model!r} cannot be a model's name", hint="use letters, digits, '_', '.' and '-' only")
    return f"models/{model}/{name}".rstrip("/")


def version_path(model: str, version: str, name: str = "version.json") -> str:
    """Where a file of a version lies.

    Raises:
        NotInRegistry: model or id could leave the folder.
    """
    if not is_version(version):
        raise NotInRegistry(f"{version!r} is not a version id", hint="`tailcut registry list` shows the ids")
    return model_path(model, f"versions/{version}/{name}")


def evidence_path(version: Version) -> str:
    """Where a version's evidence lies."""
    return version_path(version.model, version.id, f"evidence-{version.evidence_sha256[:12]}.json")


def write_version(batch: Batch, version: Version) -> Version:
    """Write a version's two files, evidence first; return the version with its seal."""
    content = encode(
        Evidence(
            model=version.model,
            version=version.id,
            evidence=version.evidence,
            manifest=version.manifest,
            variants={name: each.evidence for name, each in version.variants.items()},
        )
    )
    sealed = replace(version, evidence_sha256=hashlib.sha256(content).hexdigest())
    batch.write(evidence_path(sealed), content)
    write_header(batch, sealed)
    return sealed


def write_header(batch: Batch, version: Version) -> None:
    """Write version.json alone; the evidence that it names stays."""
    bare = {name: replace(each, evidence=VariantEvidence()) for name, each in version.variants.items()}
    header = replace(version, evidence=VersionEvidence(), manifest={}, variants=bare)
    batch.write(version_path(version.model, version.id), encode(header))


def read_version(storage: Storage, model: str, version: str, *, evidence: bool) -> Version:
    """Read a version and check it against its id and its seal.

    Raises:
        ArtifactError: a file is missing or corrupt, or of another tailcut.
        FileNotFoundError: there is no such version.
    """
    path = version_path(model, version)
    content, where = storage.read(path), f"{storage.url}/{path}"
    schema = _decoded(content, where, _Form).schema
    if schema != SCHEMA:
        raise ArtifactError(
            f"{where} has schema {schema}, but this tailcut reads schema {SCHEMA}",
            hint="upgrade tailcut, or build the model again with this version"
            if schema > SCHEMA
            else "an earlier tailcut wrote it: run `tailcut build` to make the version again, or delete its folder",
        )
    found = _decoded(content, where, Version)
    if found.model != model:
        raise ArtifactError(
            f"{where} is of model {found.model!r}: its folder was renamed or copied",
            hint=f"build {model!r} itself; a built model cannot be renamed",
        )
    expected = version_id(found.model, found.inputs, found.outputs, found.variants, found.code)
    if not found.id == expected == version:
        raise ArtifactError(f"{where} is corrupt: its content has the id {expected}, expected {version}", hint=_AGAIN)
    return _with_evidence(storage, found) if evidence else found


def read_promotion(storage: Storage, model: str) -> Promotion | None:
    """Read what is promoted; None where nothing is.

    Raises:
        ArtifactError: the pointer is corrupt, or cannot be read.
    """
    content = read_pointer(storage, model)
    return decode_pointer(storage, model, content) if content is not None else None


def read_pointer(storage: Storage, model: str) -> bytes | None:
    """Read the pointer to what is promoted as it is; None where there is none."""
    try:
        return storage.read(model_path(model, POINTER))
    except FileNotFoundError:
        return None


def decode_pointer(storage: Storage, model: str, content: bytes) -> Promotion:
    """Make a promotion of a pointer.

    Raises:
        ArtifactError: it is corrupt.
    """
    where = f"{storage.url}/{model_path(model, POINTER)}"
    return _decoded(content, where, Promotion, "promote a version: this writes the file again, without its history")


def encode(record: msgspec.Struct | Mapping[str, Any]) -> bytes:
    """JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode(storage: Storage, path: str, kind: type[_Record]) -> _Record:
    """Read a record.

    Raises:
        ArtifactError: it is corrupt.
        FileNotFoundError: there is none.
    """
    return _decoded(storage.read(path), f"{storage.url}/{path}", kind)


def _decoded(content: bytes, where: str, kind: type[_Record], hint: str = _AGAIN) -> _Record:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{where} is corrupt: {error}", hint=hint) from error


def _with_evidence(storage: Storage, version: Version) -> Version:
    path = evidence_path(version)
    where = f"{storage.url}/{path}"
    try:
        content = storage.read(path)
    except FileNotFoundError as error:
        raise ArtifactError(f"{where} is missing", hint=_AGAIN) from error
    found = hashlib.sha256(content).hexdigest()
    if found != version.evidence_sha256:
        message = f"{where} is corrupt: SHA-256 is {found}, expected {version.evidence_sha256}"
        raise ArtifactError(message, hint=_AGAIN)
    kept = _decoded(content, where, Evidence)
    variants = {name: replace(each, evidence=kept.variants[name]) for name, each in version.variants.items()}
    return replace(version, evidence=kept.evidence, manifest=kept.manifest, variants=variants)
